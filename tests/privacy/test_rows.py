"""What each method releases in a participation, and whether its model may leave: counted by its dry
run, compared with what was derived from the papers by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pgfed.config.privacy import Privacy
from pgfed.engine.backends.base import Serial
from pgfed.engine.personal import covered
from pgfed.engine.privacy import check_method, exempt, released
from pgfed.errors import UserError
from pgfed.methods.contract import FederationInfo
from pgfed.methods.registry import METHODS, get
from pgfed.model.private.policy import Personal, Releases
from pgfed.testing import TRAIN, make, small_model, trivial_federation

SIZE, BATCH, EPOCHS = 40, 10, 2
T = EPOCHS * 4  # steps: 40 records in batches of ten
Q = BATCH / SIZE

PASS, LOSSES, COUNTS = ("pass", 1.0), ("losses", 1.0), ("counts", 1.0)
# method -> (gradients, sums over all units, covered)
ROWS: dict[str, tuple[int, list[tuple[str, float]], bool]] = {
    "fedavg": (T, [], True),
    "fedavg-local": (T, [], True),
    "fedavg-ft": (T, [], False),
    "fedavg-framed": (T, [COUNTS], True),
    "feddyn": (T, [], True),
    "pfedme": (5 * T, [], True),  # each inner step has its own draw
    "fedfomo": (T, [LOSSES], True),
    "apfl": (T, [], False),
    "fedrep": (20 + T, [], True),  # five passes of the head: it is sent in what it did to the body
    "lg-fedavg": (T, [], True),
    "fedper": (T, [], True),
    "per-fedavg": (T, [], False),  # half as many steps of two draws
    "fedrod": (T, [COUNTS], False),
    "fedbabu": (T, [], False),
    "pgfed": (T, [PASS], True),
    "pgfed-mo": (T, [PASS], True),
    "pgfed-ce": (T, [PASS], True),
    "fedprox": (T, [], True),
    "scaffold": (T, [], True),
    "moon": (T, [], True),
    "fedbn": (T, [], True),
    "fedala": (T + 3, [], True),  # its weights: one pass over the 80 % that it draws
    "ifca": (T, [LOSSES], False),  # the model that is kept is chosen by exact losses, at home
    "fedamp": (T, [], True),
    "ditto": (T, [], False),
    "apple": (T, [], True),
    "mr-mtl": (T, [], True),
}
TWICE = {"apfl", "ditto", "fedrod"}  # where personal parts are charged, too


def counted(method: str, personal: Personal) -> tuple[Releases, bool]:
    algorithm = make(get(method), {"train": replace(TRAIN, epochs=EPOCHS, batch_size=BATCH)})
    task = Serial(trivial_federation(), small_model).task(3)
    info, table = FederationInfo(6, 3, task.layout), Privacy(epsilon=1.0, personal=personal)
    assert not exempt(algorithm, task.layout)
    check_method(method, algorithm, task.layout)
    return released(method, algorithm, task, info, SIZE, table, 4), covered(algorithm)


@pytest.mark.parametrize("personal", ["at-home", "private"])
@pytest.mark.parametrize("method", ROWS)
def test_a_participation_releases(method: str, personal: Personal) -> None:
    gradients, sums, may_leave = ROWS[method]
    if personal == "private" and method in TWICE:
        gradients *= 2
    # FedFomo compares models on a fifth of the records, which it does not train on.
    q = BATCH / 32 if method == "fedfomo" else Q
    found, known = counted(method, personal)
    assert found == Counter({("gradient", q): gradients, **dict.fromkeys(sums, 1)})
    assert known is may_leave


def test_every_other_method_sends_nothing_or_is_refused() -> None:
    assert set(METHODS) - set(ROWS) == {"local", "fedpac"}
    with pytest.raises(
        UserError, match=r"'fedpac' cannot be run with privacy: class means.*fedrep"
    ):
        counted("fedpac", "at-home")
    task = Serial(trivial_federation(), small_model).task(3)
    for name in ("local", "alone"):
        assert exempt(make(get(name), {}), task.layout)
