"""Local training on flat vectors, SGD with momentum or AdamW, as functions that methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng, torch_stream
from pgfed.methods.settings import TrainConfig
from pgfed.model.flat import Stepped
from pgfed.model.task import Beside, Task

Kept = Mapping[str, Any]  # a client's state, or as much of it as holds momentum buffers


# AdamW's other constants, as Loshchilov and Hutter (ICLR 2019) and torch have them.
BETA2, EPSILON = 0.999, 1e-8


@dataclass(frozen=True)
class Terms:
    """What else a step does beside the loss's gradient. Vectors have task.d entries: no buffers.

    ``constant`` is added to the gradient g of every step, ``extra(theta, g)`` adds to whatever g
    holds what depends on theta. ``before(theta)`` and ``after(theta)``, called around each step,
    may change theta in place. ``beside`` is a term of each sample's loss.
    """

    constant: Tensor | None = None
    extra: Callable[[Tensor, Tensor], None] | None = None
    before: Callable[[Tensor], None] | None = None
    after: Callable[[Tensor], None] | None = None
    beside: Beside | None = None

    @property
    def inert(self) -> bool:
        """Whether nothing of it is code of a method, which may ask for autograd."""
        own = (self.extra, self.before, self.after, self.beside)
        return all(term is None for term in own)


NONE = Terms()


def pull(strength: float, anchor: Tensor) -> Terms:
    """A leash: the gradient of strength/2 |theta - anchor|^2, of the trained entries."""

    def add(theta: Tensor, gradient: Tensor) -> None:
        gradient.add_(theta - anchor, alpha=strength)

    return Terms(extra=add)


class Descent:
    """A vector that follows its gradients: v <- rho v + g, theta <- theta - eta v; or AdamW.

    `begin` a step, add the gradient to `g`, and `go`. ``kept[key]`` is the momentum buffer to go on
    with; what was passed in stays as it was. With ``parts`` only these slices of the vector move,
    each with its own count of steps; the rest keeps its values and its velocity. The bound on the
    norm is on all of g that moves, whatever a method added to it; weight decay is decoupled.
    """

    def __init__(
        self,
        vector: Tensor,
        train: TrainConfig,
        kept: Kept,
        key: str,
        *,
        parts: Mapping[int, slice] | None = None,
        apart: bool = False,
    ) -> None:
        self._parts = parts or {0: slice(0, vector.shape[-1])}
        slices = list(self._parts.values())
        self.moved = slice(slices[0].start, slices[-1].stop)  # they lie side by side
        self._vector, self._train, self._key = vector, train, key
        self._v = _kept(kept, key, vector)
        self._moving, self._speed = vector[..., self.moved], self._v[..., self.moved]
        self._adaptive = train.optimizer == "adamw"
        # The gradient is collected in the momentum buffer itself: one pass over memory less. Not
        # where something is done to it first.
        self._apart = apart or train.clip > 0 or self._adaptive
        self.g = torch.empty_like(self._v) if self._apart else self._v
        if self._adaptive:
            self._squares = _kept(kept, f"{key}_squares", vector)
            self._steps = _kept(kept, f"{key}_steps", torch.zeros(2, dtype=torch.int64))

    @property
    def kept(self) -> dict[str, Tensor]:
        """What the client's next participation goes on with."""
        if not self._adaptive:
            return {self._key: self._v}
        more = {f"{self._key}_squares": self._squares, f"{self._key}_steps": self._steps}
        return {self._key: self._v, **more}

    def begin(self, constant: Tensor | None = None) -> None:
        """Make `g` ready for a gradient, which ``constant`` is part of."""
        rho = self._train.momentum
        if self._apart:
            if not self._adaptive:
                self._speed.mul_(rho)
            self.g.zero_()
            if constant is not None:
                self.g[..., self.moved] = constant
        elif constant is None:
            self._speed.mul_(rho)
        else:  # both in one pass
            torch.add(constant, self._speed, alpha=rho, out=self._speed)

    def go(self) -> None:
        """Take the step."""
        train = self._train
        if self._apart:
            own = self.g[..., self.moved]
            if train.clip:
                norm = own.norm(dim=-1, keepdim=True)
                own.mul_(train.clip / norm.clamp_(min=train.clip))
            if not self._adaptive:
                self._speed.add_(own)
        if train.weight_decay:
            self._moving.mul_(1 - train.lr * train.weight_decay)
        if not self._adaptive:
            self._moving.add_(self._speed, alpha=-train.lr)
            return
        for number, part in self._parts.items():
            self._adapt(number, part)

    def _adapt(self, number: int, part: slice) -> None:
        """AdamW's step of one part."""
        beta1 = self._train.momentum
        g, mean, square = self.g[..., part], self._v[..., part], self._squares[..., part]
        mean.lerp_(g, 1 - beta1)
        square.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        self._steps[number] += 1
        t = int(self._steps[number])
        scale = square.sqrt().div_(math.sqrt(1 - BETA2**t)).add_(EPSILON)
        self._vector[..., part].addcdiv_(mean, scale, value=-self._train.lr / (1 - beta1**t))


def _kept(kept: Kept, key: str, like: Tensor) -> Tensor:
    old = kept.get(key)
    return torch.zeros_like(like) if old is None else old.clone()


class Step:
    """One step of a model after the other, see `Descent`.

    For methods with loops of their own: `collect` gives the place to add the loss's gradient to,
    `take` takes the step. Where ``part`` is not all, the other part rests: its values and its
    velocity.
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
        base, head = task.layout.base, task.layout.head
        parts = {"all": {0: base, 1: head}, "base": {0: base}, "head": {1: head}}[part]
        self.theta = theta.clone()
        self._vector = self.theta[..., : task.d]
        # ``extra`` may write to a part that rests.
        apart = terms.extra is not None and part != "all"
        self._descent = Descent(self._vector, train, kept, key, parts=parts, apart=apart)
        self._terms = terms
        moved = self._descent.moved
        self._steady = None if terms.constant is None else terms.constant[moved]

    @property
    def kept(self) -> dict[str, Tensor]:
        """The momentum buffer and the like, for the client's next participation."""
        return self._descent.kept

    def collect(self) -> Tensor:
        """Begin a step: the vector that the loss's gradient is to be added to."""
        terms = self._terms
        if terms.before is not None:
            terms.before(self._vector)
        self._descent.begin(self._steady)
        if terms.extra is not None:
            terms.extra(self._vector, self._descent.g)
        return self._descent.g

    def take(self) -> None:
        """Take the step along the gradient that was collected."""
        self._descent.go()
        if self._terms.after is not None:
            self._terms.after(self._vector)


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
    """Mini-batch steps as [train] has them from ``theta``: the new theta, and what is kept.

    By default SGD with momentum, and ``{key: momentum buffer}``. ``kept`` is where the buffer of
    the last participation is found (none: it starts at zero);
    ``purpose`` names the random stream that orders the samples. See `Terms` and `Step`.
    """
    step = Step(task, theta, train, kept or {}, terms=terms, part=part, key=key)
    size, epochs = train.batch_size, train.epochs
    batches = task.batches(data, size, rng, epochs=epochs, purpose=purpose)
    with task.unnoted() if terms.inert else nullcontext():
        for x, y in batches:
            task.add_gradient(step.theta, x, y, step.collect(), part=part, beside=terms.beside)
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
    with task.unnoted():
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
