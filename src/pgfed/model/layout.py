"""Where the parts of a model lie in its flat vector ``[base | head | buffers]``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from pgfed.errors import UserError

# What travels and is averaged: a word below, a pattern of parameter names such as "conv*", or all
# but what fits one: "not:fc.bias".
Shared = str
SHARED = ("all", "body", "head", "not-norm")
NOT = "not:"


class Place(NamedTuple):
    """One tensor of the module in the flat vector."""

    name: str
    start: int
    stop: int
    norm: bool  # belongs to a layer that normalises


@dataclass(frozen=True)
class Part:
    """Some of a vector's entries, as slices in rising order."""

    slices: tuple[slice, ...]
    whole: bool  # all entries of the vector

    @property
    def size(self) -> int:
        return sum(piece.stop - piece.start for piece in self.slices)

    def take(self, vector: Tensor) -> Tensor:
        """These entries; a view where they lie together."""
        if self.whole:
            return vector
        if len(self.slices) == 1:
            return vector[self.slices[0]]
        return torch.cat([vector[piece] for piece in self.slices] or [vector[:0]])

    def put(self, vector: Tensor, values: Tensor) -> None:
        """Write the values to these entries, in place."""
        at = 0
        for piece in self.slices:
            size = piece.stop - piece.start
            vector[piece] = values[at : at + size]
            at += size


@dataclass(frozen=True)
class Layout:
    """Sizes of the parts of a model, and which tensor lies where."""

    b: int  # base parameters
    h: int  # parameters of the head (the classifier)
    extra: int = 0  # floating-point buffers
    frozen: int = 0  # values that are never trained: they stay in the module, and never travel
    frozen_bytes: int = 0
    places: tuple[Place, ...] = field(default=(), compare=False, repr=False)

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

    # -- what travels and what stays -------------------------------------------------------------

    def shared(self, which: Shared) -> Part:
        """The part that travels. The body is everything but the head, buffers included."""
        if which == "all":
            return _part([(0, self.n)], self.n)
        if which == "body":
            return _part([(0, self.b), (self.d, self.n)], self.n)
        if which == "head":
            return _part([(self.b, self.d)], self.n)
        if which == "not-norm":
            chosen = [place for place in self.places if not place.norm]
        else:
            chosen = self._named(which)
        return _part([(place.start, place.stop) for place in chosen], self.n)

    def _named(self, which: Shared) -> list[Place]:
        """The tensors whose names fit a pattern, or do not."""
        pattern = which.removeprefix(NOT)
        fits = [place for place in self.places if fnmatchcase(place.name, pattern)]
        rest = [place for place in self.places if place not in fits]
        chosen = rest if which.startswith(NOT) else fits
        if not fits or not chosen:
            what = "no parameter" if not fits else "every parameter"
            raise UserError(
                f"shared: {what} of the model is called {pattern!r}; allowed: "
                f"{', '.join(SHARED)}, a pattern of names, or {NOT} and one: "
                f"{', '.join(place.name for place in self.places)}"
            )
        return chosen

    def own(self, which: Shared) -> Part:
        """The rest: what stays with each client."""
        return _part(_between(self.shared(which).slices, self.n), self.n)

    def stepped(self, which: Shared) -> Part:
        """Of the part that travels, the entries that are trained: without buffers."""
        pieces = ((s.start, min(s.stop, self.d)) for s in self.shared(which).slices)
        return _part([(start, stop) for start, stop in pieces if start < stop], self.d)

    def split(self, which: Shared, theta: Tensor) -> tuple[Tensor, Tensor]:
        """(what travels, what stays) of a whole vector; views where entries lie together."""
        return self.shared(which).take(theta), self.own(which).take(theta)

    def join(self, which: Shared, shared: Tensor, own: Tensor | None) -> Tensor:
        """The inverse of `split`: a new vector, or ``shared`` itself where that is all."""
        part = self.shared(which)
        if part.whole or own is None:
            return shared
        theta = shared.new_empty(self.n)
        part.put(theta, shared)
        self.own(which).put(theta, own)
        return theta

    def spread(self, which: Shared, values: Tensor) -> Tensor:
        """A vector of d entries with these values where the shared part is trained, else 0."""
        part = self.stepped(which)
        if part.whole:
            return values
        out = values.new_zeros(self.d)
        part.put(out, values)
        return out


def _part(pieces: Iterable[tuple[int, int]], size: int) -> Part:
    """Slices that touch become one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(set(pieces)):
        if start == stop:
            continue
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, stop))
    return Part(tuple(slice(*piece) for piece in merged), whole=merged == [(0, size)])


def _between(slices: Iterable[slice], end: int) -> Iterator[tuple[int, int]]:
    start = 0
    for piece in slices:
        yield start, piece.start
        start = piece.stop
    yield start, end
