"""The task as a method sees it under privacy: gradients and sums are noisy, samples are hidden.

Two primitives lead from samples to what is sent, and nothing else does:

* A, `add_gradient`: each unit is drawn with probability q; the drawn units' gradients, each no
  longer than C, are summed, noise of deviation sigma C is added, and the sum is divided by the
  number of units that is expected, q times the declared size. Every call draws anew: several
  gradients on one draw would be one dearer release.
* B, `_released`: of every unit a vector no longer than 1, summed, plus noise.

What a method does with the results (momentum, prox, alphas, averages) costs nothing more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.model.flat import Stepped
from pgfed.model.private import policy as kinds
from pgfed.model.private.gradients import Losses, pieces
from pgfed.model.private.noise import Keyed, Source, drawn, normals
from pgfed.model.private.policy import MARGIN, Meter, Policy
from pgfed.model.private.units import PrivateShard, SamplesAsked, Units
from pgfed.model.task import EVALUATION_BATCH, Beside, Streams, Task

NOTHING = float("nan")  # in the place of a loss, which is not given


@dataclass(frozen=True)
class Ticket:
    """One step: stands where a batch would. It counts steps, and holds no samples."""

    data: PrivateShard
    q: float
    batch: int
    purpose: str
    epoch: int
    place: int  # within the epoch
    rng: Streams


class PrivateTask(Task):
    """One call's view: built for each from (task, policy, source of randomness, meter).

    ``home``: whether the method may ask for exact gradients for what never leaves. ``dry``: count
    what would be released, and compute nothing.
    """

    def __init__(
        self,
        plain: Task,
        policy: Policy,
        source: Source,
        meter: Meter,
        *,
        who: str,
        offers_home: bool = True,
        dry: bool = False,
    ) -> None:
        self.__dict__.update(plain.__dict__)
        self._plain, self.policy, self._source, self.meter = plain, policy, source, meter
        self._who, self._offers_home, self._dry = who, offers_home, dry

    @property
    def home(self) -> Task:
        if not self._offers_home:
            raise SamplesAsked(f"{self._who} asks for task.home, which pgfed's own methods have")
        if self.policy.personal == "private":
            return self
        if self._dry:
            idle = copy.copy(self)
            idle.meter = Meter()
            return idle
        return HomeTask(self._plain)

    @property
    def offset(self) -> Tensor | None:
        """One frame for what is sent and for what is trained at home."""
        return self._plain.offset

    @offset.setter
    def offset(self, value: Tensor | None) -> None:
        self._plain.offset = value

    def unnoted(self) -> AbstractContextManager[object]:
        return nullcontext()  # each unit's gradient takes autograd

    # -- A ---------------------------------------------------------------------------------------

    def batches(
        self, data: Shard, batch_size: int, rng: Streams, *, epochs: int = 1, purpose: str = "train"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Tickets in the batches' place: as many as the declared size makes."""
        size = len(data)
        batch = min(batch_size or size, size)
        for epoch in range(epochs):
            for place in range(math.ceil(size / batch)):
                ticket = Ticket(_own(data), batch / size, batch, purpose, epoch, place, rng)
                yield cast(Tensor, ticket), cast(Tensor, ticket)

    def head_batches(
        self,
        theta: Tensor,
        data: Shard,
        batch_size: int,
        rng: Streams,
        *,
        epochs: int = 1,
        purpose: str = "train",
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches(data, batch_size, rng, epochs=epochs, purpose=purpose)

    def portions(
        self, data: Shard, size: int, parts: int, rng: Streams, *, epochs: int = 1
    ) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """As many tickets at a time; as often as the declared size has room for."""
        steps = max(1, len(data) // (size * parts))
        for epoch in range(epochs):
            for k in range(steps):
                tickets = [
                    Ticket(_own(data), size / len(data), size, "train", epoch, k * parts + j, rng)
                    for j in range(parts)
                ]
                yield [(cast(Tensor, ticket), cast(Tensor, ticket)) for ticket in tickets]

    def add_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        *,
        part: Stepped = "all",
        training: bool = True,
        beside: Beside | None = None,
        losses: Losses | None = None,
    ) -> Tensor:
        """Add one noisy gradient of a fresh draw to ``out``; no loss is given."""
        ticket = self._ticket(x)
        self.meter.add(kinds.GRADIENT, ticket.q)
        if self._dry:
            return torch.tensor(NOTHING)
        policy, units = self.policy, ticket.data.units
        chosen = torch.from_numpy(drawn(self._source, len(units), ticket.q)).to(self.device)
        total = self._sum()
        for piece in pieces(
            self,
            theta,
            units,
            chosen,
            part=part,
            training=training,
            beside=beside,
            losses=losses,
            change=self._change(ticket),
        ):
            bound = (policy.clip * MARGIN / piece.norms).clamp_(max=1.0)
            piece.add(torch.where(piece.sound, bound, 0.0), total)
        moved = slice(0, self.d) if part == "all" else getattr(self.layout, part)
        sigma = policy.sigma(kinds.GRADIENT)
        noisy = self._noisy(total[moved], sigma * policy.clip if sigma else 0.0)
        out[moved].add_((noisy / (ticket.q * len(ticket.data))).to(out.dtype))
        return torch.tensor(NOTHING)

    def add_head_gradient(self, theta: Tensor, z: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return self.add_gradient(theta, z, y, out, part="head", training=False)

    def add_gradient_and_heads(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        *,
        offset: Tensor,
        head: Tensor,
        head_out: Tensor,
    ) -> None:
        """The model's gradient is a release; the further head's is taken at home."""

        def losses(outputs: Tensor, targets: Tensor) -> Tensor:
            return self.objective.losses(outputs + offset, targets)

        self.add_gradient(theta, x, y, out, losses=losses)
        # Two linear heads on the same features are one: the sum of both.
        both, gradient = theta.clone(), torch.zeros(self.d, device=self.device)
        both[self.layout.head].add_(head)
        self.home.add_gradient(both, x, y, gradient, part="head")
        head_out.add_(gradient[self.layout.head])

    def _change(self, ticket: Ticket) -> Any:
        """Augmentation, of each sample by itself."""
        change = self.augment
        if change is None:
            return None
        key = ticket.rng.generator(f"augment {ticket.purpose}", ticket.epoch)
        draw = torch.Generator().manual_seed(int(key.integers(2**62)) + ticket.place)
        return lambda x, y: change(x, y, draw)

    def _ticket(self, x: object) -> Ticket:
        if not isinstance(x, Ticket):
            raise SamplesAsked(f"{self._who} takes a gradient on samples that are not a batch's")
        return x

    # -- B ---------------------------------------------------------------------------------------

    def mean_gradient(
        self, theta: Tensor, data: Shard, rng: Streams, batch_size: int, *, full: bool = False
    ) -> tuple[float, Tensor]:
        """(mean loss, its gradient) over all units, both noisy: each unit's gradient over C and
        its loss over L are one vector, no longer than 1."""
        self.meter.add(kinds.PASS)
        if self._dry:
            return 0.0, torch.zeros(self.d, device=self.device)
        total = self._sum()
        policy, units = self.policy, _own(data).units
        loss = torch.zeros(1, dtype=torch.float64, device=self.device)
        every = torch.arange(len(units), device=self.device)
        for piece in pieces(self, theta, units, every, training=False):
            length = torch.hypot(piece.norms / policy.clip, piece.losses / policy.loss_scale)
            weights = torch.where(piece.sound, (MARGIN / length).clamp(max=1.0), 0.0)
            piece.add(weights, total)
            loss += (weights * piece.losses.nan_to_num(0.0, 0.0, 0.0)).sum()
        sigma = policy.sigma(kinds.PASS)
        noisy = self._noisy(total, sigma * policy.clip if sigma else 0.0) / len(data)
        risk = self._noisy(loss, sigma * policy.loss_scale if sigma else 0.0) / len(data)
        return float(risk), noisy.to(torch.float32)

    def losses(self, thetas: Sequence[Tensor], data: Shard) -> list[float]:
        """Each model's mean loss, all of a unit's losses together no longer than L."""
        return self._compared(thetas, None, data)

    def decreases(self, anchor: Tensor, thetas: Sequence[Tensor], data: Shard) -> list[float]:
        return self._compared(thetas, anchor, data)

    def _compared(
        self, thetas: Sequence[Tensor], anchor: Tensor | None, data: Shard
    ) -> list[float]:
        self.meter.add(kinds.LOSSES)
        if self._dry:
            return [0.0] * len(thetas)
        units, scale = _own(data).units, self.policy.loss_scale
        columns = [self._unit_losses(theta, units) for theta in thetas]
        if anchor is not None:
            before = self._unit_losses(anchor, units)
            columns = [before - column for column in columns]
        sums = self._released(torch.stack(columns, 1) / scale, kinds.LOSSES)
        return [float(total) * scale / len(data) for total in sums]

    def _unit_losses(self, theta: Tensor, units: Units) -> Tensor:
        found = []
        with torch.no_grad():
            for start in range(0, len(units.shard), EVALUATION_BATCH):
                stop = min(start + EVALUATION_BATCH, len(units.shard))
                x, y = units.shard.batch(slice(start, stop))
                outputs = self.framed(self.logits(theta, x))
                found.append(self.objective.losses(outputs, y).double())
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        return units.means(torch.cat([empty, *found]))

    def counts(self, units: Units, classes: int) -> Tensor:
        """Of each class, at least 1: a unit moves one count by 1, or several by their shares."""
        self.meter.add(kinds.COUNTS)
        if self._dry:
            return torch.ones(classes, device=self.device)
        one_hot = torch.nn.functional.one_hot(units.shard.y, classes).double()
        return self._released(units.means(one_hot), kinds.COUNTS).float().clamp(min=1.0)

    def scores(self, theta: Tensor, units: Units, size: int) -> tuple[float, float]:
        """(accuracy, mean loss up to L) over test units, of which ``size`` are declared."""
        self.meter.add(kinds.SCORES)
        scale = self.policy.loss_scale
        right, losses = [], []
        for outputs, y in self._outputs_of(theta, units.shard):
            right.append(self.objective.outcomes(outputs, y).double())
            losses.append(self.objective.losses(outputs, y).double().clamp(max=scale) / scale)
        columns = units.means(torch.stack([torch.cat(right), torch.cat(losses)], 1))
        correct, loss = self._released(columns / math.sqrt(2), kinds.SCORES).tolist()
        return correct * math.sqrt(2) / size, loss * math.sqrt(2) * scale / size

    def _released(self, vectors: Tensor, kind: str) -> Tensor:
        """The noisy sum of a row per unit, each no longer than 1."""
        bounded = clipped(vectors)
        return self._noisy(bounded.sum(0), self.policy.sigma(kind))

    def _sum(self) -> Tensor:
        """Of gradients, at its beginning."""
        return torch.zeros(self.d, dtype=torch.float64, device=self.device)

    def _noisy(self, total: Tensor, deviation: float) -> Tensor:
        """With noise of this deviation, added in double precision and rounded to single: finer
        digits would tell of the numbers that were added (Mironov, CCS 2012)."""
        if not deviation:
            return total.double()
        noise = torch.from_numpy(normals(self._source, total.numel())).to(self.device)
        return (total.double() + deviation * noise).float().double()

    # -- what is not given -----------------------------------------------------------------------

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, *, training: bool = True) -> Tensor:
        out = torch.zeros(self.d, device=self.device)
        self.add_gradient(theta, x, y, out, training=training)
        return out

    def hessian_product(self, theta: Tensor, x: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        self._refuse("hessian_product")

    def forward(self, theta: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        self._refuse("forward")

    def together(
        self, data: Sequence[Shard], batch_size: int, rng: Streams, *, epochs: int, purpose: str
    ) -> NoReturn:
        self._refuse("together")

    def _refuse(self, call: str) -> NoReturn:
        raise SamplesAsked(f"{self._who} asks for task.{call}, which privacy does not give")


def sealed(plain: Task, size: int, who: str) -> tuple[PrivateTask, PrivateShard]:
    """The task and data for what must follow from messages and releases alone: there are no
    samples, and nothing more is released."""
    rules = Policy(size, 1.0, noise={}, loss_scale=1.0)
    view = PrivateTask(plain, rules, Keyed(), Meter(), who=who, offers_home=False)
    return view, PrivateShard(nothing(plain), size, who)


def nothing(task: Task) -> Units:
    """No units, of the right form."""
    empty = torch.zeros(0, *task.input_shape, dtype=task.input_type)
    return Units(Shard(empty, torch.zeros(0, dtype=torch.int64)))


def clipped(vectors: Tensor) -> Tensor:
    """Each row no longer than 1; one that is not finite is nothing."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    sound = length.isfinite()
    bounded = vectors * (MARGIN / length).clamp(max=1.0)
    return torch.where(sound, bounded, 0.0)


def _own(data: Shard) -> PrivateShard:
    if not isinstance(data, PrivateShard):
        raise SamplesAsked("samples of a method's own are not those that privacy protects")
    return data


class HomeTask(Task):
    """The plain task, for what nothing that is sent depends on. Tickets stand for plain batches."""

    def __init__(self, plain: Task) -> None:
        self.__dict__.update(plain.__dict__)

    def batches(
        self, data: Shard, batch_size: int, rng: Streams, *, epochs: int = 1, purpose: str = "train"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return super().batches(_bare(data), batch_size, rng, epochs=epochs, purpose=purpose)

    def head_batches(
        self,
        theta: Tensor,
        data: Shard,
        batch_size: int,
        rng: Streams,
        *,
        epochs: int = 1,
        purpose: str = "train",
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return super().head_batches(
            theta, _bare(data), batch_size, rng, epochs=epochs, purpose=purpose
        )

    def add_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        *,
        part: Stepped = "all",
        training: bool = True,
        beside: Beside | None = None,
    ) -> Tensor:
        if isinstance(x, Ticket):
            x, y = _plain_batch(x)
        return super().add_gradient(theta, x, y, out, part=part, training=training, beside=beside)


def _bare(data: Shard) -> Shard:
    return data.units.shard if isinstance(data, PrivateShard) else data


def _plain_batch(ticket: Ticket) -> tuple[Tensor, Tensor]:
    """The samples that a ticket stands for at home: its part of a shuffled pass."""
    shard = ticket.data.units.shard
    order = ticket.rng.permutation(len(shard), ticket.purpose, ticket.epoch).to(shard.y.device)
    start = ticket.place * ticket.batch
    index = torch.arange(start, start + min(ticket.batch, len(shard)), device=order.device)
    return shard.batch(order[index % len(shard)])
