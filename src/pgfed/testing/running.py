"""A method in a small federation: what the checks begin with and compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pgfed.engine.backends.base import Backend, Serial
from pgfed.engine.rounds import Run
from pgfed.engine.storage.store import ClientStore
from pgfed.methods.contract import Algorithm
from pgfed.methods.settings import TrainConfig
from pgfed.methods.values import State
from pgfed.testing.material import small_model, trivial_federation

CLIENTS, COHORT, ROUNDS = 6, 3, 4
TRAIN = TrainConfig(epochs=2, batch_size=8, lr=0.05)


def make(cls: type[Algorithm], fields: dict[str, Any]) -> Algorithm:
    return cls(**{"train": TRAIN, **fields})


@contextmanager
def started(
    algorithm: Algorithm,
    backend: Backend | None = None,
    *,
    rounds: int = ROUNDS,
    store: ClientStore | None = None,
    **options: Any,
) -> Iterator[Run]:
    backend = backend or Serial(trivial_federation(), small_model)
    with backend:
        yield Run(
            algorithm,
            backend.federation,
            backend,
            seed=3,
            rounds=rounds,
            cohort=COHORT,
            store=store,
            **options,
        )


def outcome(run: Run) -> dict[str, Any]:
    """Everything that must be equal for two runs to be called equal."""
    while not run.finished:
        run.step()
    out: dict[str, Any] = {f"server {k}": v for k, v in run.server.items()}
    for i in range(run.info.clients):
        out |= {f"client {i} {k}": v for k, v in run.state(i).items()}
    out |= {f"model {i}": w for i, w in run.personal_models()}
    out["global model"] = run.global_model()
    for record in run.history:
        timeless = {k: v for k, v in record.items() if not k.endswith("seconds")}
        out[f"round {record['round']}"] = timeless
    return out


def check_equal(one: dict[str, Any], two: dict[str, Any], what: str) -> None:
    """Bit for bit."""
    assert one.keys() == two.keys(), f"{what}: {sorted(one.keys() ^ two.keys())}"
    for key, value in one.items():
        other = two[key]
        same = torch.equal(value, other) if isinstance(value, Tensor) else value == other
        assert same, f"{what}: {key} differs: {value} and {other}"


def flat_and_copied(values: State, what: str) -> State:
    """Check that ``values`` is a flat dictionary, and copy it."""
    assert isinstance(values, dict), f"{what} must be a dict, not {type(values).__name__}"
    for key, value in values.items():
        assert isinstance(key, str), f"{what}: key {key!r} must be a string"
        flat = isinstance(value, Tensor) or type(value) in (int, float)
        assert flat, f"{what}[{key!r}] must be a tensor, int or float, not {type(value).__name__}"
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
