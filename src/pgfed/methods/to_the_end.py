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
    have brought nothing, or after ``most``. Fewer than ``least`` are never taken. Samples of one
    group (a patient's) are held out together.
    """
    epochs = 0
    folds = _folds(data, rng)
    if len(data) < FEW:
        data = data.as_floats()  # once, not in each epoch
    if len(folds) > 1:
        epochs = _best(task, theta, data, folds, rng, train, most, patience)
    elif least:
        epochs = patience
    return _after(task, theta, data, rng, train, max(epochs, least))


def _folds(data: Shard, rng: Rng) -> list[Tensor]:
    """Fifths of the samples, by lot; none where there are too few. Groups stay whole: then as near
    to fifths as that allows, and fewer of them where groups are few."""
    device = data.y.device
    if data.group is None:
        if len(data) < FOLDS:
            return []
        return list(rng.permutation(len(data), "held out").to(device).tensor_split(FOLDS))
    _, unit, size = torch.unique(data.group, return_inverse=True, return_counts=True)
    order = rng.permutation(len(size), "held out")
    middle = torch.empty(len(size))
    middle[order] = size[order].cumsum(0) - size[order] / 2
    fold = (middle / len(data) * FOLDS).long()[unit]
    parts = (torch.nonzero(fold == k)[:, 0].to(device) for k in range(FOLDS))
    return [part for part in parts if len(part)]


def _best(
    task: Task,
    theta: Tensor,
    data: Shard,
    folds: Sequence[Tensor],
    rng: Rng,
    train: TrainConfig,
    most: int,
    patience: int,
) -> int:
    """The number of epochs after which the models are best on the folds that they were not trained
    on: one for each fold, of many samples one for the first."""
    once = replace(train, epochs=1)
    held_out = folds if len(data) < FEW else folds[:1]
    apart = [data.only(fold) for fold in held_out]
    rests = [data.only(torch.cat([f for f in folds if f is not fold])) for fold in held_out]
    groups = task.alike(rests, train.batch_size)
    models: list[tuple[Tensor, dict[str, Tensor]]] = [
        (theta.repeat(len(group), 1) if len(group) > 1 else theta, {}) for group in groups
    ]
    judge = torch.zeros_like(data.y, dtype=torch.int64)  # the model that has not seen the sample
    for number, fold in enumerate(held_out):
        judge[fold] = number
    best, top = 0, _standing(task, task.score_all([theta] * len(apart), apart))
    for epoch in range(1, most + 1):
        models = [
            sgd(
                task,
                theta,
                group if len(group) > 1 else group[0],
                rng,
                once,
                kept,
                purpose=f"choose {epoch}",
            )
            for (theta, kept), group in zip(models, groups, strict=True)
        ]
        if len(apart) > 1 and len(groups) == 1:
            found = task.score_apart(models[0][0], data, judge)
        else:
            each = [row for theta, _ in models for row in (theta if theta.dim() > 1 else [theta])]
            found = task.score_all(each, apart)
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
