"""A classification model as one flat float32 vector ``[base | head | buffers]``.

Parameters and gradients of the ``nn.Module`` are *views* into flat vectors, so a method works on
whole models with single vector operations: "add the auxiliary gradient" is one addition, the inner
product of a gradient and a model is one ``torch.dot``, and ``base`` and ``head`` are slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.data.federation import Shard

Part = Literal["all", "base", "head"]
Criterion = Callable[[Tensor, Tensor], Tensor]  # (logits, labels) -> mean loss

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Layout:
    """Where the parts of a model lie in its flat vector."""

    b: int  # base parameters
    h: int  # parameters of the head (the classifier)
    extra: int = 0  # floating-point buffers, and parameters that are not trained

    @property
    def d(self) -> int:
        """All trained parameters."""
        return self.b + self.h

    @property
    def n(self) -> int:
        """The whole vector."""
        return self.b + self.h + self.extra

    @property
    def base(self) -> slice:
        return slice(0, self.b)

    @property
    def head(self) -> slice:
        return slice(self.b, self.d)

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """(body, head): the body is everything but the head, buffers included."""
        if not self.extra:
            return theta[: self.b], theta[self.head]
        return torch.cat([theta[: self.b], theta[self.d :]]), theta[self.head]

    def join(self, body: Tensor, head: Tensor) -> Tensor:
        """The inverse of `split`, as a new vector."""
        return torch.cat([body[: self.b], head, body[self.b :]])


@dataclass(frozen=True)
class _Entry:
    """One tensor of the module and its place in the flat vector."""

    name: str
    owner: nn.Module
    attribute: str
    shape: torch.Size
    start: int
    stop: int

    def view(self, flat: Tensor) -> Tensor:
        piece = flat[self.start : self.stop]
        if len(self.shape) == 4:
            # Convolution kernels lie channels-last, the order the fast CPU kernels want.
            o, i, kh, kw = self.shape
            return piece.view(o, kh, kw, i).permute(0, 3, 1, 2)
        return piece.view(self.shape)


class Task:
    """The model, its loss, and their derivatives at any flat vector.

    One task serves one process. Methods that compute leave ``theta`` as it was, except that in
    training mode batch-norm layers move the buffers of the vector they are given.
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        *,
        head: str | None = None,
        criterion: Criterion = F.cross_entropy,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.module = module.to(self.device)
        self.input_shape = tuple(input_shape)
        self.criterion = criterion
        self.module.eval()
        probe = torch.zeros(2, *self.input_shape, device=self.device)
        try:
            with torch.no_grad():
                out = self.module(probe)
        except Exception as error:
            raise UserError(
                f"model: does not accept inputs of shape {tuple(self.input_shape)}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[0] != 2:
            raise UserError("model: must return logits of shape (batch, classes)")
        self.classes = int(out.shape[1])
        self.head_name = head or _last_linear(self.module)
        self._lay_flat()
        self._probe_head()
        self._theta: Tensor | None = None
        self._grad: Tensor | None = None
        self._part: Part = "all"
        self._start = self.read()

    # -- laying flat ---------------------------------------------------------------------------

    def _lay_flat(self) -> None:
        try:
            head = self.module.get_submodule(self.head_name)
        except AttributeError:
            raise UserError(f"model.head: the model has no part named {self.head_name!r}") from None
        in_head = {id(p) for p in head.parameters()}
        base: list[tuple[str, nn.Module, str, Tensor]] = []
        last: list[tuple[str, nn.Module, str, Tensor]] = []
        extra: list[tuple[str, nn.Module, str, Tensor]] = []
        integers: list[tuple[str, nn.Module, str, Tensor]] = []
        seen: dict[int, str] = {}

        def check(kind: str, name: str, tensor: Tensor) -> None:
            where = tensor.untyped_storage().data_ptr()
            if where in seen and tensor.numel():
                raise UserError(
                    f"model: {name!r} shares its storage with {seen[where]!r}; "
                    "a model with tied parameters cannot be laid flat"
                )
            seen[where] = name
            if tensor.dtype != torch.float32:
                raise UserError(f"model: {kind} {name!r} is {tensor.dtype}, must be float32")

        persistent = set(self.module.state_dict())
        # With duplicates: a layer used under two names is tied to itself.
        for prefix, owner in self.module.named_modules(remove_duplicate=False):
            for attribute, p in owner._parameters.items():
                if p is None:
                    continue
                name = f"{prefix}.{attribute}" if prefix else attribute
                check("parameter", name, p)
                if not p.requires_grad:
                    extra.append((name, owner, attribute, p))
                elif id(p) in in_head:
                    last.append((name, owner, attribute, p))
                else:
                    base.append((name, owner, attribute, p))
            for attribute, buffer in owner._buffers.items():
                name = f"{prefix}.{attribute}" if prefix else attribute
                if buffer is None or name not in persistent:
                    continue
                if not buffer.dtype.is_floating_point:
                    integers.append((name, owner, attribute, buffer.clone()))
                else:
                    check("buffer", name, buffer)
                    extra.append((name, owner, attribute, buffer))
        if not last:
            raise UserError(f"model.head: {self.head_name!r} has no trained parameters")
        self._entries: dict[str, list[_Entry]] = {"base": [], "head": [], "extra": []}
        place = 0
        for part, found in (("base", base), ("head", last), ("extra", extra)):
            for name, owner, attribute, tensor in found:
                stop = place + tensor.numel()
                entry = _Entry(name, owner, attribute, tensor.shape, place, stop)
                self._entries[part].append(entry)
                place = stop
        self._integers = integers
        self.layout = Layout(
            b=sum(t.numel() for *_, t in base),
            h=sum(t.numel() for *_, t in last),
            extra=sum(t.numel() for *_, t in extra),
        )
        self._trained = self._entries["base"] + self._entries["head"]

    def _probe_head(self) -> None:
        """Check once that the head is the last layer executed, so that the model splits there."""
        probe = torch.randn(2, *self.input_shape, generator=torch.Generator().manual_seed(0)).to(
            self.device
        )
        head = self.module.get_submodule(self.head_name)
        with torch.no_grad():
            whole = self.module(probe)
            try:
                with self._without_head():
                    z = self.module(probe)
                same = torch.equal(head(z), whole)
            except Exception:  # whatever a layer says to an input that is not meant for it
                same = False
        if not same:
            raise UserError(
                f"model.head: {self.head_name!r} is not the last layer executed; "
                "name the classifier with model.head"
            )
        self.linear_head = isinstance(head, nn.Linear)

    @contextmanager
    def _without_head(self) -> Iterator[None]:
        parent, _, name = self.head_name.rpartition(".")
        owner = self.module.get_submodule(parent) if parent else self.module
        head = owner._modules[name]
        owner._modules[name] = nn.Identity()
        try:
            yield
        finally:
            owner._modules[name] = head

    @property
    def d(self) -> int:
        """Number of trained parameters; gradients and distances act on ``theta[:d]``."""
        return self.layout.d

    def read(self) -> Tensor:
        """The module's present values as a new flat vector."""
        flat = torch.empty(self.layout.n, device=self.device)
        with torch.no_grad():
            for entries in self._entries.values():
                for e in entries:
                    e.view(flat).copy_(getattr(e.owner, e.attribute))
        return flat

    def initial(self) -> Tensor:
        """The vector the module was built with: the shared start of all clients."""
        return self._start.clone()

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        """The module's own ``state_dict`` with the values of ``theta``, as fresh tensors."""
        values = {k: v.detach().clone() for k, v in self.module.state_dict().items()}
        values |= {name: value.clone() for name, _, _, value in self._integers}
        for entries in self._entries.values():
            for e in entries:
                values[e.name] = e.view(theta.detach()).clone(memory_format=torch.contiguous_format)
        return values

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        theta = torch.empty(self.layout.n, device=self.device)
        for entries in self._entries.values():
            for e in entries:
                e.view(theta).copy_(values[e.name])
        return theta

    # -- computing at a vector -----------------------------------------------------------------

    def _bind(self, theta: Tensor, grad: Tensor | None, part: Part, training: bool) -> None:
        """Make the module's tensors views of ``theta``, and their gradients views of ``grad``."""
        if theta is not self._theta:
            for e in self._trained:
                e.owner._parameters[e.attribute].data = e.view(theta)  # type: ignore[union-attr]
            for e in self._entries["extra"]:
                if e.attribute in e.owner._parameters:
                    e.owner._parameters[e.attribute].data = e.view(theta)  # type: ignore[union-attr]
                else:
                    e.owner._buffers[e.attribute] = e.view(theta)
            for _, owner, attribute, value in self._integers:
                owner._buffers[attribute] = value.clone()
            self._theta = theta
        if grad is not None and grad is not self._grad:
            for e in self._trained:
                e.owner._parameters[e.attribute].grad = e.view(grad)  # type: ignore[union-attr]
            self._grad = grad
        if part != self._part:
            for kind in ("base", "head"):
                for e in self._entries[kind]:
                    e.owner._parameters[e.attribute].requires_grad_(  # type: ignore[union-attr]
                        part in ("all", kind)
                    )
            self._part = part
        if training != self.module.training:
            self.module.train(training)

    def add_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        *,
        part: Part = "all",
        training: bool = True,
        criterion: Criterion | None = None,
    ) -> Tensor:
        """Add the gradient of the batch's mean loss at ``theta`` to ``out``; return the loss.

        ``out`` is any vector of at least ``d`` entries; only those of ``part`` are touched. Passing
        the momentum buffer, already scaled, makes the momentum step one pass shorter.
        """
        # A single sample has no batch statistics to normalise by.
        self._bind(theta, out, part, training and len(y) > 1)
        loss = (criterion or self.criterion)(self.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def add_head_gradient(
        self, theta: Tensor, z: Tensor, y: Tensor, out: Tensor, criterion: Criterion | None = None
    ) -> Tensor:
        """As `add_gradient` for the head alone, from features ``z`` computed before."""
        self._bind(theta, out, "head", training=False)
        head = self.module.get_submodule(self.head_name)
        loss = (criterion or self.criterion)(head(z), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def forward(self, theta: Tensor, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits in training mode, for losses that need both from one pass.

        ``backward`` of such a loss adds its gradient to ``out``, as `add_gradient` does.
        """
        self._bind(theta, out, "all", training=len(x) > 1)
        with self._without_head():
            z: Tensor = self.module(x)
        logits: Tensor = self.module.get_submodule(self.head_name)(z)
        return z, logits

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, *, training: bool = True) -> Tensor:
        """The gradient of the batch's mean loss at ``theta``, as a new vector of ``d`` entries."""
        out = torch.zeros(self.d, device=self.device)
        self.add_gradient(theta, x, y, out, training=training)
        return out

    def hessian_product(self, theta: Tensor, x: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        """The Hessian of the batch's mean loss at ``theta``, times ``vector`` (both of size d)."""
        self._bind(theta, None, "all", training=len(y) > 1)
        parameters = [e.owner._parameters[e.attribute] for e in self._trained]
        loss = self.criterion(self.module(x), y)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)  # type: ignore[arg-type]
        inner = torch.stack(
            [(g * e.view(vector)).sum() for g, e in zip(gradients, self._trained, strict=True)]
        ).sum()
        products = torch.autograd.grad(inner, parameters, allow_unused=True)  # type: ignore[arg-type]
        out = torch.zeros(self.d, device=self.device)
        for e, product in zip(self._trained, products, strict=True):
            if product is not None:
                e.view(out).copy_(product)
        return out

    @torch.no_grad()
    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """The model's outputs in evaluation mode."""
        self._bind(theta, None, self._part, training=False)
        out: Tensor = self.module(x)
        return out

    @torch.no_grad()
    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """What the head is given, in evaluation mode."""
        self._bind(theta, None, self._part, training=False)
        with self._without_head():
            z: Tensor = self.module(x)
        return z

    @torch.no_grad()
    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The head's outputs for given features."""
        self._bind(theta, None, self._part, training=False)
        out: Tensor = self.module.get_submodule(self.head_name)(z)
        return out

    @torch.no_grad()
    def score(self, theta: Tensor, data: Shard) -> tuple[int, float]:
        """(number of correct predictions, sum of the losses) over all of ``data``."""
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(data), EVALUATION_BATCH):
            x, y = data.batch(slice(start, min(start + EVALUATION_BATCH, len(data))))
            out = self.logits(theta, x)
            correct += (out.argmax(1) == y).sum()
            loss += F.cross_entropy(out, y, reduction="sum").double()
        return int(correct), float(loss)

    def loss(self, theta: Tensor, data: Shard) -> float:
        """The mean loss over all of ``data``."""
        return self.score(theta, data)[1] / len(data)


def _last_linear(module: nn.Module) -> str:
    names: list[str] = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not names:
        raise UserError("model: has no nn.Linear to serve as the head; name one with model.head")
    if not names[-1]:
        raise UserError(
            "model: is a single nn.Linear; wrap it (for example in nn.Sequential) so that its "
            "base and head can be told apart"
        )
    return names[-1]
