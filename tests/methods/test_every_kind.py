"""Every method with every kind of task: methods know of none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from pgfed.data.federation import Federation
from pgfed.data.targets import Targets
from pgfed.engine.backends.base import Backend, Serial
from pgfed.engine.backends.process import Process
from pgfed.errors import UserError
from pgfed.methods.registry import METHODS, get
from pgfed.model.kinds import KINDS, make
from pgfed.testing import check_equal, outcome, started
from pgfed.testing import make as built

CLASSES_ONLY = {"fedrod", "fedpac"}  # they balance classes, or take their means
NEEDS = {"classes": 3, "binary": 2, "multilabel": 3, "regression": 2, "segmentation": 3}
SHAPE: dict[str, tuple[int, ...]] = {"segmentation": (1, 5, 5)}
# Every kind has one method that is tried on two processes daily; the others are, nightly.
DAILY = {
    ("classes", "apfl"),
    ("binary", "pgfed"),
    ("multilabel", "fedrep"),
    ("regression", "pfedme"),
    ("segmentation", "fedper"),
}


def world(kind: str) -> Federation:
    """Six clients, of which one has a single training sample and one has no test data."""
    rng = np.random.default_rng(0)
    sizes, outputs = (14, 12, 10, 12, 1, 9), NEEDS[kind]
    x, y, client, test = [], [], [], []
    for i, n in enumerate(sizes):
        held_out = 0 if i == 3 else 6
        x.append(rng.normal(size=(n + held_out, *SHAPE.get(kind, (5,)))))
        y.append(_targets(kind, x[-1], outputs))
        client += [i] * (n + held_out)
        test += [False] * n + [True] * held_out
    forms: dict[str, Targets] = {name: cls.targets for name, cls in KINDS.items()}
    return Federation.from_arrays(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y),
        client=np.array(client),
        split=np.array(test),
        targets=forms[kind],
    )


def _targets(kind: str, x: np.ndarray, outputs: int) -> np.ndarray:
    match kind:
        case "classes" | "binary":
            return x[:, :outputs].argmax(1)
        case "multilabel":
            return (x[:, :outputs] > 0).astype(np.int64)
        case "regression":
            return np.cumsum(x, axis=1)[:, :outputs]
        case _:
            return (x[:, 0] > 0).astype(np.int64) + (x[:, 0] > 1)


def network(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    if len(input_shape) == 3:
        first, last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, outputs, 1)
        return nn.Sequential(first, nn.GroupNorm(1, 4), nn.Tanh(), last)
    first, last = nn.Linear(input_shape[0], 6), nn.Linear(6, outputs)
    return nn.Sequential(first, nn.LayerNorm(6), nn.Tanh(), last)


def place(kind: str, cls: type[Serial] | type[Process] = Serial) -> Backend:
    data = world(kind)
    objective = make(kind, data.class_names)
    if cls is Process:
        return Process(data, network, workers=2, objective=objective)
    return Serial(data, network, objective=objective)


PAIRS = list(itertools.product(KINDS, METHODS))


@pytest.mark.parametrize(("kind", "method"), PAIRS)
def test_every_method_with_every_kind(kind: str, method: str) -> None:
    algorithm = built(get(method), {})
    if method in CLASSES_ONLY and kind not in ("classes", "binary"):
        said = f"'{method}' .* classes, and the task has none"
        with pytest.raises(UserError, match=said), started(algorithm, place(kind)):
            pass
        return
    with started(algorithm, place(kind), rounds=3) as run:
        start = run.task.initial()
        found = outcome(run)
        assert all(record["dropped"] == [] for record in run.history)
        for i in range(6):
            model = found[f"model {i}"]
            assert torch.isfinite(model).all()
            assert not run.touched(i) or not torch.equal(model, start)
        assert torch.isfinite(found["global model"]).all()
        low, high = run.task.objective.bounds
        means = [record["mean_score"] for record in run.history if record["mean_score"] is not None]
        assert means
        assert all(low <= mean <= high for mean in means)
        assert np.isnan(run.score[3])
        assert np.isfinite(np.delete(run.loss, 3)).all()


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(*pair, marks=() if pair in DAILY else pytest.mark.nightly)
        for pair in PAIRS
        if pair[1] not in CLASSES_ONLY or pair[0] in ("classes", "binary")
    ],
)
def test_worker_processes_give_the_same_bits(kind: str, method: str) -> None:
    with started(built(get(method), {}), place(kind)) as run:
        expected = outcome(run)
    with started(built(get(method), {}), place(kind, Process)) as run:
        check_equal(expected, outcome(run), f"{method}, {kind}: serial and process")
