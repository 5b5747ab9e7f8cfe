"""An ``nn.Module`` whose parameters, gradients and buffers are views into flat vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from pgfed.errors import UserError
from pgfed.model.layout import Layout, Place

# What of a model a step moves. Buffers are in none of them.
Stepped = Literal["all", "base", "head"]

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Entry:
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


class _Found:
    """The tensors of a module, by where they go in the vector."""

    def __init__(self, module: nn.Module, head: nn.Module) -> None:
        self.base: list[tuple[str, nn.Module, str, Tensor]] = []
        self.head: list[tuple[str, nn.Module, str, Tensor]] = []
        self.extra: list[tuple[str, nn.Module, str, Tensor]] = []
        self.integers: list[tuple[str, nn.Module, str, Tensor]] = []
        self._storages: dict[int, str] = {}
        in_head = {id(p) for p in head.parameters()}
        persistent = set(module.state_dict())
        # With duplicates: a layer used under two names is tied to itself.
        for prefix, owner in module.named_modules(remove_duplicate=False):
            for attribute, p in owner._parameters.items():
                if p is not None:
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    self._check("parameter", name, p)
                    self._place(p, id(p) in in_head).append((name, owner, attribute, p))
            for attribute, buffer in owner._buffers.items():
                name = f"{prefix}.{attribute}" if prefix else attribute
                if buffer is None or name not in persistent:
                    continue
                if not buffer.dtype.is_floating_point:
                    self.integers.append((name, owner, attribute, buffer.clone()))
                else:
                    self._check("buffer", name, buffer)
                    self.extra.append((name, owner, attribute, buffer))

    def _place(self, p: Tensor, in_head: bool) -> list[tuple[str, nn.Module, str, Tensor]]:
        if not p.requires_grad:
            return self.extra
        return self.head if in_head else self.base

    def _check(self, kind: str, name: str, tensor: Tensor) -> None:
        where = tensor.untyped_storage().data_ptr()
        if where in self._storages and tensor.numel():
            raise UserError(
                f"model: {name!r} shares its storage with {self._storages[where]!r}; "
                "a model with tied parameters cannot be laid flat"
            )
        self._storages[where] = name
        if tensor.dtype != torch.float32:
            raise UserError(f"model: {kind} {name!r} is {tensor.dtype}, must be float32")


class _Bound:
    """Which vectors a module's tensors are views of at the moment."""

    def __init__(self) -> None:
        self.theta: Tensor | None = None
        self.grad: Tensor | None = None
        self.part: Stepped = "all"


class FlatModule:
    """A module laid out as one vector. One module serves one process."""

    def __init__(self, module: nn.Module, head: str | None, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.module = module.to(self.device)
        self.module.eval()
        self.head_name = head or _last_layer(self.module)
        try:
            last = self.module.get_submodule(self.head_name)
        except AttributeError:
            raise UserError(f"model.head: the model has no part named {self.head_name!r}") from None
        self._lay_flat(_Found(self.module, last))
        # Shared with copies of this object: there is one module behind all of them.
        self._bound = _Bound()
        self._start = self.read()

    def _lay_flat(self, found: _Found) -> None:
        if not found.head:
            raise UserError(f"model.head: {self.head_name!r} has no trained parameters")
        self._entries: dict[str, list[Entry]] = {"base": [], "head": [], "extra": []}
        place = 0
        for part, tensors in (("base", found.base), ("head", found.head), ("extra", found.extra)):
            for name, owner, attribute, tensor in tensors:
                stop = place + tensor.numel()
                entry = Entry(name, owner, attribute, tensor.shape, place, stop)
                self._entries[part].append(entry)
                place = stop
        self._integers = found.integers
        entries = [e for part in self._entries.values() for e in part]
        self.layout = Layout(
            b=sum(t.numel() for *_, t in found.base),
            h=sum(t.numel() for *_, t in found.head),
            extra=sum(t.numel() for *_, t in found.extra),
            places=tuple(
                Place(e.name, e.start, e.stop, isinstance(e.owner, NORMS)) for e in entries
            ),
        )
        self._trained = self._entries["base"] + self._entries["head"]

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

    def _before_head(self, x: Tensor) -> Tensor:
        """What the head is given: the model's output with nothing in the head's place."""
        if not self.head_name:  # the module is nothing but its head
            return x
        with self._without_head():
            z: Tensor = self.module(x)
        return z

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

    def _bind(self, theta: Tensor, grad: Tensor | None, part: Stepped, training: bool) -> None:
        """Make the module's tensors views of ``theta``, and their gradients views of ``grad``."""
        bound = self._bound
        if theta is not bound.theta:
            for e in self._trained:
                e.owner._parameters[e.attribute].data = e.view(theta)  # type: ignore[union-attr]
            for e in self._entries["extra"]:
                if e.attribute in e.owner._parameters:
                    e.owner._parameters[e.attribute].data = e.view(theta)  # type: ignore[union-attr]
                else:
                    e.owner._buffers[e.attribute] = e.view(theta)
            for _, owner, attribute, value in self._integers:
                owner._buffers[attribute] = value.clone()
            bound.theta = theta
        if grad is not None and grad is not bound.grad:
            for e in self._trained:
                e.owner._parameters[e.attribute].grad = e.view(grad)  # type: ignore[union-attr]
            bound.grad = grad
        if part != bound.part:
            for kind in ("base", "head"):
                for e in self._entries[kind]:
                    e.owner._parameters[e.attribute].requires_grad_(  # type: ignore[union-attr]
                        part in ("all", kind)
                    )
            bound.part = part
        if training != self.module.training:
            self.module.train(training)


def _last_layer(module: nn.Module) -> str:
    """The last linear layer; of a model without any the last convolution."""
    for kind in (nn.Linear, _ConvNd):
        names: list[str] = [
            name for name, layer in module.named_modules() if isinstance(layer, kind)
        ]
        if names:
            return names[-1]
    raise UserError(
        "model: has no nn.Linear and no convolution to serve as the head; name it with model.head"
    )
