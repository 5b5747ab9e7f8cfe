"""What is protected: units, each one row or all rows of a group; and the shard that hides them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pgfed.data.federation import Shard


@dataclass(frozen=True)
class Units:
    """A client's samples, in slots that stay where they are."""

    shard: Shard
    groups: tuple[Tensor, ...] | None = None  # the rows of each unit; None: a row each

    @classmethod
    def of(cls, shard: Shard, group: NDArray[Any] | None = None) -> Units:
        """Units in the order of their first rows."""
        if group is None:
            return cls(shard)
        _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(first))[inverse.reshape(-1)]
        rows = np.split(np.argsort(order, kind="stable"), np.cumsum(np.bincount(order))[:-1])
        return cls(shard, tuple(torch.from_numpy(r).to(shard.y.device) for r in rows))

    def __len__(self) -> int:
        return len(self.shard) if self.groups is None else len(self.groups)

    def rows(self, unit: int) -> Tensor:
        if self.groups is None:
            return torch.tensor([unit], device=self.shard.y.device)
        return self.groups[unit]

    def cut(self, at: int) -> tuple[Units, Units]:
        """The units before a slot, and the rest."""
        if self.groups is None:
            n = len(self.shard)
            return Units(self.shard.rows(0, at)), Units(self.shard.rows(at, n))
        first, rest = self.groups[:at], self.groups[at:]
        return Units(self.shard, first), Units(self.shard, rest)

    def means(self, values: Tensor) -> Tensor:
        """Of numbers per row, the mean of each unit."""
        if self.groups is None:
            return values
        return torch.stack([values[rows].mean(0) for rows in self.groups])


class SamplesAsked(RuntimeError):
    """A method asked for samples themselves, which privacy does not give."""


class PrivateShard(Shard):
    """A client's training data as a method sees it under privacy: how much there is, no more.

    ``len`` is what the client declares. Class counts are noisy, and the same for ever.
    """

    __slots__ = ("_counts", "_who", "size", "units")

    def __init__(
        self, units: Units, size: int, who: str, counts: Callable[[int], Tensor] | None = None
    ) -> None:
        for name, value in (("units", units), ("size", size), ("_who", who), ("_counts", counts)):
            object.__setattr__(self, name, value)

    units: Units
    size: int
    _who: str
    _counts: Callable[[int], Tensor] | None

    def __len__(self) -> int:
        return self.size

    def cut(self, at: Callable[[int], int]) -> tuple[PrivateShard, PrivateShard]:
        size = at(self.size)
        first, rest = self.units.cut(at(len(self.units)))
        return PrivateShard(first, size, self._who), PrivateShard(rest, self.size - size, self._who)

    def class_counts(self, classes: int) -> Tensor:
        if self._counts is None:
            self._refuse("class_counts of a part")
        return self._counts(classes)

    def _refuse(self, call: str) -> NoReturn:
        raise SamplesAsked(
            f"{self._who} asks for data.{call}, which privacy does not give; samples reach what "
            "is sent through task.batches and task.add_gradient only"
        )

    @property
    def x(self) -> Tensor:
        self._refuse("x")

    @property
    def y(self) -> Tensor:
        self._refuse("y")

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        self._refuse("batch")

    def rows(self, start: int, stop: int) -> Shard:
        self._refuse("rows")
