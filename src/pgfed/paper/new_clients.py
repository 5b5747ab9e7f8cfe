"""New clients: how good a start is each method's global model for those who come later?

The last share of the clients takes no part in the training (data.new_clients). Each of them then
fine-tunes the global model of each method on its own data, with one learning rate for all methods,
and is scored before and after every epoch. As in the authors' code the momentum starts afresh with
every epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pgfed.data.federation import Federation
from pgfed.engine.parallel import side_by_side
from pgfed.errors import UserError
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import fine_tuned
from pgfed.model.task import Task

Floats = NDArray[np.float64]

EPOCHS = 20
SHARE = 0.2  # of the clients, where the experiment does not say


@dataclass(frozen=True)
class Curve:
    """Accuracy of the new clients that start from one method's global model."""

    method: str
    by_seed: dict[int, Floats]  # seed -> clients x (epochs + 1)

    @property
    def accuracy(self) -> Floats:
        """Mean over clients and seeds after 0, 1, ... epochs."""
        seeds = [np.nanmean(scores, axis=0) for scores in self.by_seed.values()]
        mean: Floats = np.mean(seeds, axis=0)
        return mean

    @property
    def best_epoch(self) -> int:
        return int(self.accuracy.argmax())


def study(
    task: Task,
    federation: Federation,
    first_id: int,
    starts: dict[tuple[str, int], Tensor],
    train: TrainConfig,
    *,
    epochs: int = EPOCHS,
    jobs: int = 1,
    done: Callable[[int, int], None] = lambda done, of: None,
) -> list[Curve]:
    """Fine-tune from each (method, seed) on each client of ``federation``, all of them new.

    ``first_id`` is the id that the first of them has among all clients.
    """
    if not federation.n_test.any():
        raise UserError("the study needs test data, and no new client has any")
    items = [(method, seed, k) for method, seed in starts for k in range(len(federation))]

    def work(item: tuple[str, int, int]) -> list[float | None]:
        method, seed, k = item
        start = starts[method, seed]
        return fine_tune(task, federation, k, first_id + k, start, train, seed, epochs)

    found: dict[tuple[str, int, int], list[float | None]] = {}
    for position, accuracy in side_by_side(work, items, jobs):
        found[items[position]] = accuracy
        done(len(found), len(items))
    curves: dict[str, Curve] = {}
    for method, seed in starts:
        scores = [found[method, seed, k] for k in range(len(federation))]
        curve = curves.setdefault(method, Curve(method, {}))
        curve.by_seed[seed] = np.array(scores, dtype=np.float64)  # None becomes NaN
    return list(curves.values())


def fine_tune(
    task: Task,
    federation: Federation,
    client: int,
    client_id: int,
    start: Tensor,
    train: TrainConfig,
    seed: int,
    epochs: int,
) -> list[float | None]:
    """Accuracy on the client's test data before and after each epoch."""
    test = federation.test(client)

    def accuracy(theta: Tensor) -> float | None:
        return task.score(theta, test).score if len(test) else None

    streams = [Rng(seed, client_id, epoch) for epoch in range(1, epochs + 1)]
    data = federation.train(client)
    tuned = fine_tuned(task, start, data, streams, train, purpose="new-client")
    return [accuracy(start), *map(accuracy, tuned)]


def document(curves: list[Curve], lr: float) -> dict[str, Any]:
    """The content of new_clients.json: one object per method."""
    return {
        curve.method: {
            "epochs": list(range(len(curve.accuracy))),
            "accuracy": curve.accuracy.tolist(),
            "by_seed": {
                str(seed): np.nanmean(scores, axis=0).tolist()
                for seed, scores in curve.by_seed.items()
            },
            "lr": lr,
        }
        for curve in curves
    }
