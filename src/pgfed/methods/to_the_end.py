"""Training without rounds: as many epochs as are best on samples held out, then on all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import sgd
from pgfed.model.task import Scores, Task

FOLDS = 5  # each sample is held out once, where they are few
FEW = 500  # samples; of more a single fold tells enough


def trained_to_the_end(
    task: Task,
    theta: Tensor,
    data: Shard,
    rng: Rng,
    train: TrainConfig,
    *,
    most: int,
    patience: int,
    least: int = 1,
) -> Tensor:
    """The model after as many epochs on all of ``data`` as were best on a fifth held out of it.

    A fifth of few samples says little, so each of the five is held out in turn; what was held out
    is judged together, by the task's metric and then by the loss. It stops when ``patience`` epochs
    have brought nothing, or after ``most``. Fewer than ``least`` are never taken.
    """
    epochs = 0
    if len(data) >= FOLDS:
        order = rng.permutation(len(data), "held out").to(data.y.device)
        folds = order.tensor_split(FOLDS)
        pairs = [
            (_only(data, torch.cat([f for f in folds if f is not fold])), _only(data, fold))
            for fold in (folds if len(data) < FEW else folds[:1])
        ]
        epochs = _best(task, theta, pairs, rng, train, most, patience)
    elif least:
        epochs = patience
    return _after(task, theta, data, rng, train, max(epochs, least))


def _only(data: Shard, index: Tensor) -> Shard:
    return Shard(data.x[index], data.y[index])


def _best(
    task: Task,
    theta: Tensor,
    pairs: Sequence[tuple[Shard, Shard]],
    rng: Rng,
    train: TrainConfig,
    most: int,
    patience: int,
) -> int:
    """The number of epochs after which the models are best on what they were not trained on."""
    once = replace(train, epochs=1)
    models: list[tuple[Tensor, dict[str, Tensor]]] = [(theta, {}) for _ in pairs]
    apart = [held_out for _, held_out in pairs]
    best, top = 0, _standing(task, task.score_all([theta] * len(pairs), apart))
    for epoch in range(1, most + 1):
        models = [
            sgd(task, theta, rest, rng, once, kept, purpose=f"choose {epoch}")
            for (theta, kept), (rest, _) in zip(models, pairs, strict=True)
        ]
        found = task.score_all([theta for theta, _ in models], apart)
        if not math.isfinite(found.loss):
            break
        if (standing := _standing(task, found)) > top:
            best, top = epoch, standing
        if epoch - best >= patience:
            break
    return best


def _standing(task: Task, found: Scores) -> tuple[float, float]:
    """More is better; where the metric is undefined, the loss alone."""
    score = 0.0 if found.score is None else task.objective.primary.sign * found.score
    return score, -found.loss


def _after(
    task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig, epochs: int
) -> Tensor:
    once = replace(train, epochs=1)
    kept: dict[str, Tensor] = {}
    for epoch in range(1, epochs + 1):
        theta, kept = sgd(task, theta, data, rng, once, kept, purpose=f"to the end {epoch}")
    return theta
