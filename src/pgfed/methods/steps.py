"""Local training: SGD with momentum on flat vectors, as functions that methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng, torch_stream
from pgfed.methods.settings import TrainConfig
from pgfed.model.flat import Stepped
from pgfed.model.task import Task

Kept = Mapping[str, Any]  # a client's state, or as much of it as holds momentum buffers


@dataclass(frozen=True)
class Terms:
    """What else a step does beside the loss's gradient. Vectors have task.d entries: no buffers.

    ``constant`` is added to the gradient g of every step, ``extra(theta, g)`` adds to whatever g
    holds what depends on theta. ``before(theta)`` and ``after(theta)``, called around each step,
    may change theta in place. ``clip`` bounds the norm of g, all its terms included (0: no bound).
    """

    constant: Tensor | None = None
    extra: Callable[[Tensor, Tensor], None] | None = None
    before: Callable[[Tensor], None] | None = None
    after: Callable[[Tensor], None] | None = None
    clip: float = 0.0


NONE = Terms()


class Step:
    """One momentum step after the other: v <- rho v + g, theta <- theta - eta v.

    For methods with loops of their own: `collect` gives the place to add the loss's gradient to,
    `take` takes the step. ``kept[key]`` is the momentum buffer to go on with; what was passed in
    stays as it was. Where ``part`` is not all, the other part rests: its values and its velocity.
    """

    def __init__(
        self,
        task: Task,
        theta: Tensor,
        train: TrainConfig,
        kept: Kept,
        *,
        terms: Terms = NONE,
        part: Stepped = "all",
        key: str = "v",
    ) -> None:
        layout = task.layout
        moved = {"all": slice(0, task.d), "base": layout.base, "head": layout.head}[part]
        self.theta = theta.clone()
        self._vector = self.theta[: task.d]
        old = kept.get(key)
        self._v = torch.zeros_like(self._vector) if old is None else old.clone()
        self._moving, self._speed = self._vector[moved], self._v[moved]
        self._train, self._terms, self._key, self._moved = train, terms, key, moved
        self._steady = None if terms.constant is None else terms.constant[moved]
        # The gradient is collected in the momentum buffer itself: one pass over memory less. Not
        # where it is bounded first, or where ``extra`` may write to a part that rests.
        self._apart = terms.clip > 0 or (terms.extra is not None and part != "all")
        self._g = torch.empty_like(self._v) if self._apart else self._v

    @property
    def kept(self) -> dict[str, Tensor]:
        """The momentum buffer, for the client's next participation."""
        return {self._key: self._v}

    def collect(self) -> Tensor:
        """Begin a step: the vector that the loss's gradient is to be added to."""
        terms, rho = self._terms, self._train.momentum
        if terms.before is not None:
            terms.before(self._vector)
        if self._apart:
            self._speed.mul_(rho)
            self._g.zero_()
            if self._steady is not None:
                self._g[self._moved] = self._steady
        elif self._steady is None:
            self._speed.mul_(rho)
        else:  # both in one pass
            torch.add(self._steady, self._speed, alpha=rho, out=self._speed)
        if terms.extra is not None:
            terms.extra(self._vector, self._g)
        return self._g

    def take(self) -> None:
        """Go along the velocity."""
        terms = self._terms
        if self._apart:
            own = self._g[self._moved]
            if terms.clip:
                own = own.mul_(terms.clip / own.norm().clamp_(min=terms.clip))
            self._speed.add_(own)
        self._moving.add_(self._speed, alpha=-self._train.lr)
        if terms.after is not None:
            terms.after(self._vector)


def sgd(
    task: Task,
    theta: Tensor,
    data: Shard,
    rng: Rng,
    train: TrainConfig,
    kept: Kept | None = None,
    *,
    terms: Terms = NONE,
    part: Stepped = "all",
    key: str = "v",
    purpose: str = "train",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mini-batch SGD with momentum from ``theta``: the new theta, and ``{key: momentum buffer}``.

    ``kept`` is where the buffer of the last participation is found (none: it starts at zero);
    ``purpose`` names the random stream that orders the samples. See `Terms` and `Step`.
    """
    step = Step(task, theta, train, kept or {}, terms=terms, part=part, key=key)
    for x, y in task.batches(data, train.batch_size, rng, epochs=train.epochs, purpose=purpose):
        task.add_gradient(step.theta, x, y, step.collect(), part=part)
        step.take()
    return step.theta, step.kept


def head_then_base(
    task: Task,
    theta: Tensor,
    data: Shard,
    rng: Rng,
    train: TrainConfig,
    kept: Kept | None = None,
    *,
    head_epochs: int,
    terms: Terms = NONE,
    key: str = "v",
    purpose: str = "train",
) -> tuple[Tensor, dict[str, Tensor]]:
    """FedRep's way: first the head on the features of the resting base, then the base under it.

    As `sgd`; ``terms`` act in the base's phase only. The features are computed once, in evaluation
    mode.
    """
    step = Step(task, theta, train, kept or {}, part="head", key=key)
    for z, y in task.head_batches(
        step.theta, data, train.batch_size, rng, epochs=head_epochs, purpose="head"
    ):
        task.add_head_gradient(step.theta, z, y, step.collect())
        step.take()
    return sgd(
        task,
        step.theta,
        data,
        rng,
        train,
        step.kept,
        terms=terms,
        part="base",
        key=key,
        purpose=purpose,
    )


def fine_tuned(
    task: Task,
    theta: Tensor,
    data: Shard,
    streams: Iterable[Rng],
    train: TrainConfig,
    *,
    purpose: str = "train",
) -> Iterator[Tensor]:
    """A new client's model after each epoch of plain SGD, one stream of randomness per epoch.

    As in the authors' code the momentum starts afresh with every epoch.
    """
    once = replace(train, epochs=1)
    for rng in streams:
        with torch_stream(rng.generator(f"torch-{purpose}"), task.device):
            theta, _ = sgd(task, theta, data, rng, once, purpose=purpose)
        yield theta
