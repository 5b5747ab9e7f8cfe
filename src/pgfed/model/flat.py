"""An ``nn.Module`` whose parameters, gradients and buffers are views into flat vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from pgfed.errors import UserError
from pgfed.model.frozen import digest, resting
from pgfed.model.layout import Layout, Place

# What of a model a step moves. Buffers are in none of them.
Stepped = Literal["all", "base", "head"]

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass
class Found:
    """One tensor of a module, with all names and places that it has there."""

    tensor: Tensor
    names: list[str]
    places: list[tuple[nn.Module, str]]  # (its owner, the attribute)


@dataclass(frozen=True)
class Entry:
    """One tensor of the module and its place in the flat vector."""

    names: tuple[str, ...]  # more than one where it is tied
    places: tuple[tuple[nn.Module, str], ...]
    shape: torch.Size
    start: int
    stop: int

    @property
    def parameter(self) -> nn.Parameter:
        """One and the same in all places."""
        owner, attribute = self.places[0]
        found = owner._parameters[attribute]
        assert found is not None
        return found

    def view(self, flat: Tensor) -> Tensor:
        piece = flat[self.start : self.stop]
        if len(self.shape) == 4:
            # Convolution kernels lie channels-last, the order the fast CPU kernels want.
            o, i, kh, kw = self.shape
            return piece.view(o, kh, kw, i).permute(0, 3, 1, 2)
        return piece.view(self.shape)


class _Tensors:
    """The tensors of a module, by where they go: into the vector, or nowhere."""

    def __init__(self, module: nn.Module, head: nn.Module) -> None:
        self.base: list[Found] = []
        self.head: list[Found] = []
        self.extra: list[Found] = []
        self.frozen: list[Found] = []
        self.integers: list[Found] = []
        self.resting = resting(module)
        self._known: dict[int, Found] = {}
        self._storages: dict[int, str] = {}
        in_head = {id(p) for p in head.parameters()}
        at_rest = {id(part) for part in self.resting}
        persistent = set(module.state_dict())
        # With duplicates: a layer used under two names is tied to itself.
        for prefix, owner in module.named_modules(remove_duplicate=False):
            for attribute, p in owner._parameters.items():
                if p is not None:
                    trained = self.head if id(p) in in_head else self.base
                    kind = trained if p.requires_grad else self.frozen
                    self._add(kind, "parameter", prefix, owner, attribute, p)
            for attribute, buffer in owner._buffers.items():
                if buffer is None or joined(prefix, attribute) not in persistent:
                    continue
                kind = self.extra if buffer.dtype.is_floating_point else self.integers
                kind = self.frozen if id(owner) in at_rest else kind
                self._add(kind, "buffer", prefix, owner, attribute, buffer)

    def _add(
        self,
        kind: list[Found],
        what: str,
        prefix: str,
        owner: nn.Module,
        attribute: str,
        tensor: Tensor,
    ) -> None:
        name = joined(prefix, attribute)
        known = self._known.get(id(tensor))
        if known is not None:
            known.names.append(name)
            if not any(o is owner and a == attribute for o, a in known.places):
                known.places.append((owner, attribute))
            return
        if kind is not self.integers:
            self._check(what, name, tensor, frozen=kind is self.frozen)
        self._known[id(tensor)] = found = Found(tensor, [name], [(owner, attribute)])
        kind.append(found)

    def _check(self, what: str, name: str, tensor: Tensor, *, frozen: bool) -> None:
        if frozen:  # it stays where and as it is
            self._storages.setdefault(tensor.untyped_storage().data_ptr(), name)
            return
        where = tensor.untyped_storage().data_ptr()
        if where in self._storages and tensor.numel():
            raise UserError(
                f"model: {name!r} shares its storage with {self._storages[where]!r} but is another "
                "tensor, which cannot be laid flat; tie parameters by using the same nn.Parameter"
            )
        self._storages[where] = name
        if tensor.dtype != torch.float32:
            raise UserError(f"model: {what} {name!r} is {tensor.dtype}, must be float32")


def joined(prefix: str, attribute: str) -> str:
    return f"{prefix}.{attribute}" if prefix else attribute


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
        self._lay_flat(_Tensors(self.module, last))
        # Shared with copies of this object: there is one module behind all of them.
        self._bound = _Bound()
        self._start = self.read()

    def _lay_flat(self, found: _Tensors) -> None:
        if not found.head:
            raise UserError(f"model.head: {self.head_name!r} has no trained parameters")
        self._entries: dict[str, list[Entry]] = {"base": [], "head": [], "extra": []}
        place = 0
        for part, tensors in (("base", found.base), ("head", found.head), ("extra", found.extra)):
            for t in tensors:
                stop = place + t.tensor.numel()
                entry = Entry(tuple(t.names), tuple(t.places), t.tensor.shape, place, stop)
                self._entries[part].append(entry)
                place = stop
        self._integers = [replace(t, tensor=t.tensor.clone()) for t in found.integers]
        self._frozen, self._resting = found.frozen, found.resting
        self._trained = self._entries["base"] + self._entries["head"]
        self.layout = Layout(
            b=_size(found.base),
            h=_size(found.head),
            extra=_size(found.extra),
            frozen=_size(found.frozen),
            frozen_bytes=sum(t.tensor.numel() * t.tensor.element_size() for t in found.frozen),
            places=tuple(
                Place(name, e.start, e.stop, any(isinstance(o, NORMS) for o, _ in e.places))
                for entries in self._entries.values()
                for e in entries
                for name in e.names
            ),
        )

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
                    owner, attribute = e.places[0]
                    e.view(flat).copy_(getattr(owner, attribute))
        return flat

    def entries(self, part: Stepped) -> list[Entry]:
        """The tensors that a step of this part moves."""
        return self._trained if part == "all" else self._entries[part]

    def initial(self) -> Tensor:
        """The vector the module was built with: the shared start of all clients."""
        return self._start.clone()

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        """The values of ``theta`` by the names of the module's ``state_dict``, as fresh tensors.

        Together with `frozen` they are all of it.
        """
        fixed = {name for t in self._frozen for name in t.names}
        state = self.module.state_dict().items()
        values = {k: v.detach().clone() for k, v in state if k not in fixed}
        values |= {name: t.tensor.clone() for t in self._integers for name in t.names}
        for entries in self._entries.values():
            for e in entries:
                value = e.view(theta.detach())
                values |= {
                    name: value.clone(memory_format=torch.contiguous_format) for name in e.names
                }
        return values

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        theta = torch.empty(self.layout.n, device=self.device)
        for entries in self._entries.values():
            for e in entries:
                e.view(theta).copy_(values[e.names[0]])
        return theta

    def frozen(self) -> dict[str, Tensor]:
        """What is never trained, by the names of the module's ``state_dict``: it stays where it
        is, is no part of any vector, and is the same for all clients."""
        return {name: t.tensor.detach() for t in self._frozen for name in t.names}

    def put_frozen(self, values: Mapping[str, Tensor]) -> None:
        """Take the frozen values of a model that was kept."""
        with torch.no_grad():
            for t in self._frozen:
                t.tensor.copy_(values[t.names[0]])
        self.__dict__.pop("frozen_digest", None)

    @cached_property
    def frozen_digest(self) -> str | None:
        """By which all who train this model know that they have the same frozen values."""
        return digest(self.frozen())

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
                e.parameter.data = e.view(theta)
            for e in self._entries["extra"]:
                value = e.view(theta)
                for owner, attribute in e.places:
                    owner._buffers[attribute] = value
            for t in self._integers:
                value = t.tensor.clone()
                for owner, attribute in t.places:
                    owner._buffers[attribute] = value
            bound.theta = theta
        if grad is not None and grad is not bound.grad:
            for e in self._trained:
                e.parameter.grad = e.view(grad)
            bound.grad = grad
        if part != bound.part:
            for kind in ("base", "head"):
                for e in self._entries[kind]:
                    e.parameter.requires_grad_(part in ("all", kind))
            bound.part = part
        if training != self.module.training:
            self.module.train(training)
            for rests in self._resting:
                rests.training = False


def _size(tensors: list[Found]) -> int:
    return sum(t.tensor.numel() for t in tensors)


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
