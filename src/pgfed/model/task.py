"""The model, what is minimised, and their derivatives at any vector ``[base | head | buffers]``.

Parameters and gradients of the ``nn.Module`` are *views* into flat vectors, so a method works on
whole models with single vector operations: "add the auxiliary gradient" is one addition, the inner
product of a gradient and a model is one ``torch.dot``, and ``base`` and ``head`` are slices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.data.augment import Augment
from pgfed.data.federation import Shard
from pgfed.errors import UserError, first_line
from pgfed.model.explicit import Chain, chain_of
from pgfed.model.flat import FlatModule, Stepped, joined
from pgfed.model.kinds import CLASSES
from pgfed.model.objectives import Objective, Outputs

EVALUATION_BATCH = 512
LARGE = 2**16  # numbers in an input, beyond which fewer are taken at a time
LARGE_BATCH = 16
GRADIENT_BATCH = 256
GATHERED = 2**16  # numbers of inputs that are read at once for steps: they stay in a core's cache
_AS_IT_IS = nullcontext()
ALIGNED = 16  # numbers, beyond which memory is aligned as it is for a tensor of its own


class Streams(Protocol):
    """Where a client's random numbers come from: see `pgfed.methods.randomness.Rng`."""

    def permutation(self, n: int, purpose: str, epoch: int = 0) -> Tensor: ...
    def generator(self, purpose: str, epoch: int = 0) -> np.random.Generator: ...


@dataclass(frozen=True)
class Scores:
    """A model on all of some data."""

    n: int
    loss: float  # the sum over the samples
    score: float | None  # the primary metric; None where it is undefined


@dataclass(frozen=True)
class Beside:
    """A term of each sample's loss beside the objective's, of the features that the head is given.

    ``losses(z, y, *others)`` gives one number per sample from its features at theta and, without a
    gradient and in evaluation mode, at each of ``models``.
    """

    losses: Callable[..., Tensor]
    models: tuple[Tensor, ...] = ()


class Task(FlatModule):
    """What a client's work is done with: batches of samples, and derivatives at any vector.

    One module serves one process; `view` gives each client a task of its own on it. Methods that
    compute leave ``theta`` as it was, except that in training mode batch-norm layers move the
    buffers of the vector they are given.
    """

    augment: Augment | None = None  # what is done to the samples of steps; of a client's view
    # Added to the outputs wherever they are compared with targets; of a client's view (`frames`).
    offset: Tensor | None = None
    # Whether gradients are computed in bfloat16; of a client's view. Vectors stay as they are.
    bfloat16: bool = False

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        *,
        example: Tensor | None = None,
        head: str | None = None,
        objective: Objective = CLASSES,
        device: torch.device | str = "cpu",
    ) -> None:
        """``example``: two inputs as batches have them, on which the model is tried once; zeros
        where there are none."""
        self.input_shape = tuple(input_shape)
        self.objective = objective
        probe = torch.zeros(2, *self.input_shape) if example is None else example
        probe = probe.to(device)
        self.input_type = probe.dtype
        self.outputs = _outputs(module.to(device).eval(), probe, objective.targets == "masks")
        super().__init__(module, head, device)
        self._probe_head(probe)
        self._chain = chain_of(module, self._trained) if self.device.type == "cpu" else None

    def _probe_head(self, probe: Tensor) -> None:
        """Check once that the head is the last layer executed, so that the model splits there."""
        head = self.module.get_submodule(self.head_name)
        with torch.no_grad():
            whole = self.module(probe)
            try:
                z = self._before_head(probe)
                same = torch.equal(head(z), whole)
            except Exception:  # whatever a layer says to an input that is not meant for it
                same = False
        if not same:
            raise UserError(
                f"model.head: {self.head_name!r} is not the last layer executed; "
                "name the classifier with model.head"
            )
        own = {id(part) for part in head.modules()}
        tied = any(id(at) not in own for e in self._entries["head"] for at, _ in e.places)
        self.linear_head = isinstance(head, nn.Linear) and not tied
        bias = joined(self.head_name, "bias")
        self.head_bias = next(
            (slice(e.start, e.stop) for e in self._entries["head"] if bias in e.names), None
        )
        self.width = int(z.shape[1]) if z.ndim == 2 else 0  # features that the head is given

    # -- one client's view ---------------------------------------------------------------------

    def view(self, train: Shard) -> Self:
        """This task for the work of the client with this training data. What is particular to a
        client, as the weights of its classes, belongs to its view, and no method knows of it."""
        own = copy.copy(self)
        own.objective = self.objective.at(train.y)
        return own

    def framed(self, outputs: Tensor) -> Tensor:
        """The model's outputs as this view compares them with targets."""
        return outputs if self.offset is None else outputs + self.offset

    def folded(self, theta: Tensor, offset: Tensor | None) -> Tensor:
        """The model whose plain outputs are those of ``theta`` with the offset added."""
        if offset is None:
            return theta
        assert self.head_bias is not None, "checked by frames.check"
        theta = theta.clone()
        theta[self.head_bias] += offset
        return theta

    @property
    def home(self) -> Task:
        """For what never leaves the client: exact, whatever this view does to protect samples.

        Nothing that is sent, in this round or a later one, may depend on what comes from here;
        `pgfed.testing` checks it.
        """
        return self

    # -- samples -------------------------------------------------------------------------------

    def batches(
        self, data: Shard, batch_size: int, rng: Streams, *, epochs: int = 1, purpose: str = "train"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Mini-batches of ``epochs`` passes: a fresh order each, an incomplete last one dropped.

        They are for steps: samples come as `augment` leaves them.
        """
        change, draw = self.augment, None
        if change is not None:
            key = rng.generator(f"augment {purpose}")
            draw = torch.Generator().manual_seed(int(key.integers(2**62)))
        size, together = _sizes(data, batch_size)
        if epochs > 1 and len(data) <= together:
            data = data.as_floats()  # once, not in each epoch
        for order in _orders(data, size, rng, epochs, purpose):
            for index in torch.split(order, together):
                several = data.batch(index)
                for x, y in zip(*(torch.split(part, size) for part in several), strict=True):
                    yield (x, y) if change is None or draw is None else change(x, y, draw)

    def alike(self, data: Sequence[Shard], batch_size: int) -> list[list[Shard]]:
        """Neighbours that can be trained on side by side, a model each: where gradients are
        `written_out`, those with as many batches as large."""

        def steps(part: Shard) -> tuple[int, int]:
            size, _ = _sizes(part, batch_size)
            return size, len(part) // size

        if not self.written_out or self.augment is not None:  # which draws for each by itself
            return [[part] for part in data]
        return [list(group) for _, group in groupby(data, key=steps)]

    def together(
        self, data: Sequence[Shard], batch_size: int, rng: Streams, *, epochs: int, purpose: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The `batches` of data that are `alike`, those of equal number one above the other."""
        size, _ = _sizes(data[0], batch_size)
        lengths = {len(part): part for part in data}  # on which alone an order depends
        for orders in zip(
            *(_orders(part, size, rng, epochs, purpose) for part in lengths.values()), strict=True
        ):
            drawn = dict(zip(lengths, orders, strict=True))
            several = [part.batch(drawn[len(part)]) for part in data]
            xs, ys = (torch.stack(parts) for parts in zip(*several, strict=True))
            yield from zip(torch.split(xs, size, 1), torch.split(ys, size, 1), strict=True)

    def portions(
        self, data: Shard, size: int, parts: int, rng: Streams, *, epochs: int = 1
    ) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """So many mini-batches of ``size`` at a time, without a sample in common."""
        for x, y in self.batches(data, size * parts, rng, epochs=epochs):
            yield list(zip(torch.split(x, size), torch.split(y, size), strict=True))

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
        """As `batches`, with the head's inputs in the samples' place.

        They are computed once, in evaluation mode: the base rests meanwhile.
        """
        starts = range(0, len(data), EVALUATION_BATCH)
        inputs = (data.batch(slice(i, i + EVALUATION_BATCH))[0] for i in starts)
        z = torch.cat([self.features(theta, x) for x in inputs])
        size, _ = _sizes(data, batch_size)
        for order in _orders(data, size, rng, epochs, purpose):
            for index in torch.split(order, size):
                yield z[index], data.y[index]

    def mean_gradient(
        self, theta: Tensor, data: Shard, rng: Streams, batch_size: int, *, full: bool = False
    ) -> tuple[float, Tensor]:
        """(mean loss, its gradient) at ``theta``, over the samples that whole batches cover.

        The batches of one more epoch, their incomplete rest dropped, are averaged; as that is a
        mean over samples, it is computed in large batches, in evaluation mode. ``full`` takes every
        sample.
        """
        size = min(batch_size or len(data), len(data))
        used = len(data) if full else len(data) - len(data) % size
        order = rng.permutation(len(data), "gradient")[:used].to(data.y.device)
        total = torch.zeros(self.d, device=self.device)
        piece = torch.zeros_like(total)
        losses: list[tuple[float, Tensor]] = []
        for start in range(0, used, GRADIENT_BATCH):
            x, y = data.batch(order[start : start + GRADIENT_BATCH])
            piece.zero_()
            share = len(y) / used
            losses.append((share, self.add_gradient(theta, x, y, piece, training=False)))
            total.add_(piece, alpha=share)
        # Read at the end: a device goes on with the next batch meanwhile.
        return sum(share * float(loss) for share, loss in losses), total

    # -- derivatives at a vector ---------------------------------------------------------------

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
        """Add the gradient of the batch's mean loss at ``theta`` to ``out``; return the loss.

        ``out`` is any vector of at least ``d`` entries; only those of ``part`` are touched. Passing
        the momentum buffer, already scaled, makes the momentum step one pass shorter. Where the
        gradient is `written_out`, all of them may be stacks, of several models at once.
        """
        if beside is None and self._explicit is not None:
            weights = self.objective.class_weights
            return self._explicit.add_gradient(
                theta, x, y, out, part, offset=self.offset, weights=weights
            )
        others = [self.features(model, x) for model in beside.models] if beside else []
        # A single sample has no batch statistics to normalise by.
        self._bind(theta, out, part, training and len(y) > 1)
        if beside is None:
            with self._cast():
                outputs = self.module(x)
            loss = self.objective.loss(self.framed(outputs.float()), y)
        else:
            z, outputs = self._in_two(x)
            loss = self.objective.loss(outputs, y) + beside.losses(z, y, *others).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def add_head_gradient(self, theta: Tensor, z: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """As `add_gradient` for the head alone, from features ``z`` computed before."""
        if self._explicit is not None:
            weights = self.objective.class_weights
            return self._explicit.add_gradient(
                theta, z, y, out, "head", offset=self.offset, weights=weights, features=True
            )
        self._bind(theta, out, "head", training=False)
        with self._cast():
            outputs = self.module.get_submodule(self.head_name)(z)
        loss = self.objective.loss(self.framed(outputs.float()), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

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
        """As `add_gradient`, with ``offset`` added to the outputs; and from the same pass the
        gradient of a further linear ``head`` beside the model's own, added to ``head_out``.

        The further head's loss does not reach the model, nor does the offset reach it.
        """
        z, outputs = self.forward(theta, x, out)
        own = head.detach().requires_grad_()
        own.grad = head_out
        common = self.objective.loss(outputs + offset, y)
        beside = _linear(own, z.detach(), self.outputs)
        personal = self.objective.loss(outputs.detach() + beside, y)
        (common + personal).backward()  # type: ignore[no-untyped-call]

    def forward(self, theta: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Features and outputs in training mode, for losses that need both from one pass.

        ``backward`` of such a loss adds its gradient to ``out``, as `add_gradient` does.
        """
        self._bind(theta, out, "all", training=len(x) > 1)
        return self._in_two(x)

    def _in_two(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features, and the outputs as they are compared with targets."""
        with self._cast():
            z = self._before_head(x)
            outputs: Tensor = self.module.get_submodule(self.head_name)(z)
        return z.float(), self.framed(outputs.float())

    def _cast(self) -> AbstractContextManager[object]:
        """What the layers of a model that is differentiated compute in."""
        if not self.bfloat16:
            return _AS_IT_IS
        return torch.autocast(self.device.type, torch.bfloat16)

    @property
    def written_out(self) -> bool:
        """Whether the gradient in float32 takes no autograd."""
        return self._explicit is not None

    def unnoted(self) -> AbstractContextManager[object]:
        """For steps of which nothing but gradients is asked: where those are `written_out`, torch
        notes nothing for autograd, and instead of a loss `add_gradient` gives NaN.

        Tensors that outlive it are made before it: torch changes none in place that began in it.
        """
        chain = self._explicit
        return _AS_IT_IS if chain is None else chain.unnoted()

    @property
    def _explicit(self) -> Chain | None:
        """The gradient that is written out, where there is one for what this view minimises."""
        return None if self.bfloat16 or not self.objective.cross_entropy else self._chain

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, *, training: bool = True) -> Tensor:
        """The gradient of the batch's mean loss at ``theta``, as a new vector of ``d`` entries."""
        out = torch.zeros(self.d, device=self.device)
        self.add_gradient(theta, x, y, out, training=training)
        return out

    def hessian_product(self, theta: Tensor, x: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        """The Hessian of the batch's mean loss at ``theta``, times ``vector`` (both of size d)."""
        self._bind(theta, None, "all", training=len(y) > 1)
        parameters = [e.parameter for e in self._trained]
        loss = self.objective.loss(self.framed(self.module(x)), y)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        inner = torch.stack(
            [(g * e.view(vector)).sum() for g, e in zip(gradients, self._trained, strict=True)]
        ).sum()
        products = torch.autograd.grad(inner, parameters, allow_unused=True)
        out = torch.zeros(self.d, device=self.device)
        for e, product in zip(self._trained, products, strict=True):
            if product is not None:
                e.view(out).copy_(product)
        return out

    # -- using a vector ------------------------------------------------------------------------

    @torch.no_grad()
    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """The model's outputs in evaluation mode."""
        if self._chain is not None:
            return self._chain.head(theta, self._chain.features(theta, x))
        self._bind(theta, None, self._bound.part, training=False)
        out: Tensor = self.module(x)
        return out

    @torch.no_grad()
    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """What the head is given, in evaluation mode."""
        if self._chain is not None:
            return self._chain.features(theta, x)
        self._bind(theta, None, self._bound.part, training=False)
        return self._before_head(x)

    @torch.no_grad()
    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The head's outputs for given features."""
        if self._chain is not None:
            return self._chain.head(theta, z)
        self._bind(theta, None, self._bound.part, training=False)
        out: Tensor = self.module.get_submodule(self.head_name)(z)
        return out

    @torch.no_grad()
    def predictions(self, theta: Tensor, data: Shard) -> list[tuple[Tensor, Tensor]]:
        """(outputs as scoring needs them, targets) over all of ``data``: one pair, or none."""
        found = Outputs(len(data))
        for outputs, _ in self._outputs_of(theta, data):
            found.add(self.objective.reduced(outputs))
        return found.beside(data.y)

    def _outputs_of(self, theta: Tensor, data: Shard) -> Iterator[tuple[Tensor, Tensor]]:
        size = EVALUATION_BATCH if data.x[:1].numel() <= LARGE else LARGE_BATCH
        for start in range(0, len(data), size):
            x, y = data.batch(slice(start, min(start + size, len(data))))
            yield self.framed(self.logits(theta, x)), y

    def score(self, theta: Tensor, data: Shard) -> Scores:
        """Loss and primary metric over all of ``data``."""
        return self.score_all([theta], [data])

    @torch.no_grad()
    def score_all(self, thetas: Sequence[Tensor], parts: Sequence[Shard]) -> Scores:
        """Several models, each on data of its own, judged together."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        pairs = []
        for theta, data in zip(thetas, parts, strict=True):
            found = Outputs(len(data))
            for outputs, targets in self._outputs_of(theta, data):
                loss += self.objective.total(outputs, targets).double()
                found.add(self.objective.reduced(outputs))
            pairs += found.beside(data.y)
        return Scores(sum(map(len, parts)), float(loss), self.objective.score(pairs))

    @torch.no_grad()
    def score_apart(self, thetas: Tensor, data: Shard, model: Tensor) -> Scores:
        """A stack of models, judged together: each sample of ``data`` by the one that ``model``
        names for it. As `score_all`, in a few calls; where gradients are `written_out`."""
        assert self._chain is not None
        x, y = data.batch(slice(0, len(data)))
        each = self._chain.outputs(thetas, x)[model, torch.arange(len(data))]
        outputs = self.framed(each)
        score = self.objective.score([(self.objective.reduced(outputs), y)])
        return Scores(len(data), float(self.objective.total(outputs, y)), score)

    def loss(self, theta: Tensor, data: Shard) -> float:
        """The mean loss over all of ``data``."""
        return self.score(theta, data).loss / len(data)

    def losses(self, thetas: Sequence[Tensor], data: Shard) -> list[float]:
        """The mean loss of each of several models over all of ``data``."""
        trial = torch.empty_like(thetas[0])  # one aligned place: equal bits on all engines
        return [self.loss(trial.copy_(theta), data) for theta in thetas]

    def decreases(self, anchor: Tensor, thetas: Sequence[Tensor], data: Shard) -> list[float]:
        """By how much the mean loss of each model is below that of ``anchor``."""
        before = self.loss(anchor, data)
        return [before - loss for loss in self.losses(thetas, data)]


def _sizes(data: Shard, batch_size: int) -> tuple[int, int]:
    """Of a batch, and of as many whole ones as are best gathered together."""
    size = min(batch_size or len(data), len(data))
    numbers = size * data.x[0].numel()
    # Some kernels give other last bits on memory that is aligned otherwise: each batch is to begin
    # where one that was gathered alone would.
    aligned = numbers % ALIGNED == 0
    return size, size * max(1, GATHERED // numbers if aligned else 1)


def _orders(data: Shard, size: int, rng: Streams, epochs: int, purpose: str) -> Iterator[Tensor]:
    """Which samples make up the whole batches of each epoch."""
    whole = len(data) - len(data) % size
    for epoch in range(epochs):
        yield rng.permutation(len(data), purpose, epoch)[:whole].to(data.y.device)


def _linear(head: Tensor, z: Tensor, outputs: int) -> Tensor:
    """The linear layer whose weights, then biases (if it has any), are ``head``."""
    weights = outputs * z.shape[1]
    bias = head[weights:] if len(head) > weights else None
    return F.linear(z, head[:weights].view(outputs, -1), bias)


def _outputs(module: nn.Module, probe: Tensor, masks: bool) -> int:
    """How many outputs the model has for one sample, or for each of its pixels."""
    try:
        with torch.no_grad():
            out = module(probe)
    except Exception as error:
        kind = str(probe.dtype).removeprefix("torch.")
        hint = "" if probe.is_floating_point() else " (integers are tokens; numbers must be floats)"
        raise UserError(
            f"model: does not accept inputs of shape {tuple(probe.shape[1:])} ({kind}): "
            f"{first_line(error)}{hint}"
        ) from error
    if not isinstance(out, Tensor):
        raise UserError(f"model: returns {type(out).__name__}; allowed: a tensor")
    form = "(2, outputs, height, width), as masks need it" if masks else "(2, outputs)"
    if out.ndim != (4 if masks else 2) or out.shape[0] != 2:
        raise UserError(
            f"model: returns a tensor of shape {tuple(out.shape)} for two samples; allowed: {form}"
        )
    return int(out.shape[1])
