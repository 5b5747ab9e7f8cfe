"""Training without rounds: as many epochs as are best on samples held out, then on all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import Step
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
    folds = _folds(data, rng)
    if len(data) < FEW:
        data = data.as_floats()  # once, not in each epoch
    whole = _Whole(task, theta, data, rng, train, least)
    if len(folds) > 1:
        _choose(task, theta, data, folds, rng, train, most, patience, whole)
    elif least:
        whole.best_after(patience)
    return whole.trained()


class _Whole:
    """The model on all of the data, which takes as many epochs as turn out to be best.

    Until that is known it can go along with the models of the folds, as the last of their stack: a
    step of one model more costs little beside theirs. Its epochs are no shorter than theirs, so it
    has not gone past what they find to be best.
    """

    def __init__(
        self, task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig, least: int
    ) -> None:
        self._task, self._theta, self._train, self._least = task, theta, train, least
        self.size = min(train.batch_size or len(data), len(data))
        self._epoch = len(data) // self.size  # steps
        self._batches = (
            batch
            for epoch in count(1)
            for batch in task.batches(data, train.batch_size, rng, purpose=f"to the end {epoch}")
        )
        self._stack: Step | None = None  # whose last it is
        self._taken = 0
        self._wanted, self._there = least * self._epoch, theta.clone()  # after so many steps

    def beside(
        self, batches: Iterable[tuple[Tensor, Tensor]], stack: Step
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of the other models of a stack, with its own as the last."""
        self._stack = stack
        for xs, ys in batches:
            x, y = next(self._batches)
            yield torch.cat((xs, x[None])), torch.cat((ys, y[None]))
            self._taken += 1
            self._note()

    def best_after(self, epochs: int) -> None:
        """As far as is known."""
        self._wanted = max(epochs, self._least) * self._epoch
        self._note()

    def _note(self) -> None:
        if self._stack is not None and self._taken == self._wanted:
            self._there.copy_(self._stack.theta[-1])

    def trained(self) -> Tensor:
        """The model after as many epochs as are best."""
        if self._taken > self._wanted:
            return self._there
        theta, kept = self._theta, dict[str, Tensor]()
        if self._stack is not None:
            theta = self._stack.theta[-1]
            # AdamW's steps are counted once for all of the stack.
            kept = {k: v[-1] if v.dim() > 1 else v for k, v in self._stack.kept.items()}
        step = Step(self._task, theta, self._train, kept)
        _take(self._task, step, islice(self._batches, self._wanted - self._taken))
        return step.theta


def _take(task: Task, step: Step, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    with task.unnoted():
        for x, y in batches:
            task.add_gradient(step.theta, x, y, step.collect())
            step.take()


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


def _choose(
    task: Task,
    theta: Tensor,
    data: Shard,
    folds: Sequence[Tensor],
    rng: Rng,
    train: TrainConfig,
    most: int,
    patience: int,
    whole: _Whole,
) -> None:
    """Tell ``whole`` after how many epochs models are best on the folds that they were not trained
    on: one for each fold, of many samples one for the first."""
    held_out = folds if len(data) < FEW else folds[:1]
    apart = [data.only(fold) for fold in held_out]
    rests = [data.only(torch.cat([f for f in folds if f is not fold])) for fold in held_out]
    groups = task.alike(rests, train.batch_size)
    largest = max(groups, key=len)
    along = len(largest) > 1 and len(largest[0]) >= whole.size
    steps = []
    for group in groups:
        rows = len(group) + (along and group is largest)
        steps.append(Step(task, theta.repeat(rows, 1) if rows > 1 else theta, train, {}))
    judge = torch.zeros_like(data.y, dtype=torch.int64)  # the model that has not seen the sample
    for number, fold in enumerate(held_out):
        judge[fold] = number
    best, top = 0, _standing(task, task.score_all([theta] * len(apart), apart))
    for epoch in range(1, most + 1):
        for group, step in zip(groups, steps, strict=True):
            batches = _batches(task, group, train, rng, f"choose {epoch}")
            if along and group is largest:
                batches = whole.beside(batches, step)
            _take(task, step, batches)
        if len(apart) > 1 and len(groups) == 1:
            found = task.score_apart(steps[0].theta, data, judge)
        else:
            models = [
                model
                for group, step in zip(groups, steps, strict=True)
                for model in step.theta.view(-1, len(theta))[: len(group)]
            ]
            found = task.score_all(models, apart)
        if not math.isfinite(found.loss):
            break
        if (standing := _standing(task, found)) > top:
            best, top = epoch, standing
            whole.best_after(best)
        if epoch - best >= patience:
            break


def _batches(
    task: Task, data: Sequence[Shard], train: TrainConfig, rng: Rng, purpose: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of an epoch."""
    if len(data) == 1:
        return task.batches(data[0], train.batch_size, rng, purpose=purpose)
    return task.together(data, train.batch_size, rng, epochs=1, purpose=purpose)


def _standing(task: Task, found: Scores) -> tuple[float, float]:
    """More is better; where the metric is undefined, the loss alone."""
    score = 0.0 if found.score is None else task.objective.primary.sign * found.score
    return score, -found.loss
