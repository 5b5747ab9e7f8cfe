"""Training without rounds: as long as it helps on samples held out, then on all of them."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import sgd
from pgfed.model.task import Task

FEWEST = 5  # samples; of fewer none are held out


def trained_to_the_end(
    task: Task,
    theta: Tensor,
    data: Shard,
    rng: Rng,
    train: TrainConfig,
    *,
    held_out: float,
    most: int,
    patience: int,
    least: int = 1,
) -> Tensor:
    """The model after as many epochs on all of ``data`` as were best on a share held out of it.

    Judged by the loss, which is defined for any few samples; it stops when ``patience`` epochs have
    brought nothing, or after ``most``. Fewer than ``least`` are never taken.
    """
    epochs = patience if least else 0
    if len(data) >= FEWEST:
        order = rng.permutation(len(data), "held out").to(data.y.device)
        n = max(1, round(held_out * len(data)))
        rest, apart = (Shard(data.x[part], data.y[part]) for part in (order[n:], order[:n]))
        epochs = _best(task, theta, rest, apart, rng, train, most, patience)
    return _after(task, theta, data, rng, train, max(epochs, least))


def _best(
    task: Task,
    theta: Tensor,
    data: Shard,
    apart: Shard,
    rng: Rng,
    train: TrainConfig,
    most: int,
    patience: int,
) -> int:
    """The number of epochs on ``data`` after which the loss on ``apart`` is lowest."""
    best, lowest = 0, task.loss(theta, apart)
    once = replace(train, epochs=1)
    kept: dict[str, Tensor] = {}
    for epoch in range(1, most + 1):
        theta, kept = sgd(task, theta, data, rng, once, kept, purpose=f"choose {epoch}")
        loss = task.loss(theta, apart)
        if loss < lowest:
            best, lowest = epoch, loss
        if epoch - best >= patience or not math.isfinite(loss):
            break
    return best


def _after(
    task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig, epochs: int
) -> Tensor:
    once = replace(train, epochs=1)
    kept: dict[str, Tensor] = {}
    for epoch in range(1, epochs + 1):
        theta, kept = sgd(task, theta, data, rng, once, kept, purpose=f"to the end {epoch}")
    return theta
