"""Means that a minority of bad clients cannot move far: `engine.aggregation`.

Each stands in for `methods.averaging.Mean`, which a method's `aggregate` is handed, and protects
two things: the mean itself, and what a method keeps of each client (`each`: PGFed's gradients,
FedFomo's models).

- median, trimmed-mean: coordinate by coordinate. What is kept of each client is clamped to the
  kept range; under the median all clients keep (almost) the same.
- krum: clients far from the others are left out of the round, with all they sent.
- norm-clip: nobody moves the model, or weighs in, by more than the median client.

All clients count equally: how many samples one has is only its claim. What these means withstand
is a minority among the replies of a round. Too few replies protect nobody: from 1 or 2 no defence
can tell who is wrong, and krum needs 2f + 3 of them to leave out f.

Yin, Chen, Kannan, Bartlett. Byzantine-robust distributed learning: towards optimal statistical
rates. ICML 2018. (median, trimmed mean)
Blanchard, El Mhamdi, Guerraoui, Stainer. Machine learning with adversaries: Byzantine tolerant
gradient descent. NeurIPS 2017. (multi-Krum)
Sun, Kairouz, Suresh, McMahan. Can you really backdoor federated learning? arXiv:1911.07963, 2019.
(norm clipping)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pgfed.errors import UserError, unknown
from pgfed.methods.averaging import Mean
from pgfed.methods.values import Kind, Update

AGGREGATIONS = ("mean", "median", "trimmed-mean", "krum", "norm-clip")
ATTACKERS = 0.2  # share of the replies of a round, unless the experiment says otherwise

_COLUMNS = 1 << 16  # worked on at a time: sorting makes copies


def make_mean(name: str, leaves: Mapping[str, Kind], attackers: float = ATTACKERS) -> Mean:
    """The mean of a method whose updates hold ``leaves``, for a share of ``attackers``."""
    if name not in AGGREGATIONS:
        raise unknown("engine.aggregation", name, AGGREGATIONS)
    if not 0 < attackers < 0.5:
        raise UserError(
            f"engine.attackers: found {attackers:g}; allowed: more than 0 and less than 0.5 "
            "(no aggregation withstands a majority)"
        )
    if name == "krum":
        judged = [key for key, kind in leaves.items() if kind not in ("row", "count", "index")]
        return Krum(attackers, tuple(judged))
    if name == "norm-clip":
        return NormClip()
    if name == "mean":
        return Mean()
    return TrimmedMean(attackers if name == "trimmed-mean" else 0.5)


def defended(mean: Mean, shares: Mapping[int, Update]) -> dict[int, Update]:
    """What the clients share after the last round, for a method that takes its plain mean."""
    out = {i: {**share, "n": 1} for i, share in shares.items()}
    first = next(iter(out.values()), {})
    for key in [key for key, value in first.items() if isinstance(value, Tensor)]:
        ids, rows = mean.each(shares, key)
        out = {i: {**out[i], key: row} for i, row in zip(ids, rows, strict=True) if i in out}
    return out


@dataclass(frozen=True)
class TrimmedMean(Mean):
    """Coordinate by coordinate, the mean without the ``share`` largest and smallest values.

    At least one value is kept, at least one is left out at either end where there are three; with a
    share of a half it is the median.
    """

    share: float

    def __call__(
        self,
        updates: Mapping[int, Update],
        key: str,
        *,
        around: Tensor | None = None,
        uniform: bool = False,
    ) -> Tensor:
        _, rows = super().each(updates, key)
        out = torch.empty_like(rows[0])
        for columns, kept in self._kept(rows):
            # Rounding must not carry the mean out of the range.
            out[columns] = kept.mean(0).clamp_(kept[0], kept[-1])
        return out

    def each(self, updates: Mapping[int, Update], key: str) -> tuple[list[int], Tensor]:
        ids, rows = super().each(updates, key)
        flat = _flat(rows)
        out = torch.empty_like(flat)
        for columns, kept in self._kept(flat):
            out[:, columns] = flat[:, columns].clamp(kept[0], kept[-1])
        return ids, out.view(rows.shape)

    def _kept(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Some columns, and their kept values in rising order."""
        n = len(rows)
        trim = min(_at_least(self.share * n), (n - 1) // 2)
        for start in range(0, rows.shape[1], _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            ordered = np.sort(rows[:, columns].cpu().numpy(), axis=0)  # five times torch's speed
            yield columns, torch.from_numpy(ordered[trim : n - trim]).to(rows.device)


@dataclass(frozen=True)
class Krum(Mean):
    """Multi-Krum: leaves out the f clients with the largest distances to their nearest others.

    f is the ``share`` of the replies, or what 2f + 3 replies allow. A client is judged once, by all
    it sent (``judged``: PGFed's model, gradient and risk), each in units of its median distance.
    """

    share: float
    judged: tuple[str, ...]

    def __call__(
        self,
        updates: Mapping[int, Update],
        key: str,
        *,
        around: Tensor | None = None,
        uniform: bool = False,
    ) -> Tensor:
        return super().__call__(self._kept(updates, key), key, uniform=True)

    def each(self, updates: Mapping[int, Update], key: str) -> tuple[list[int], Tensor]:
        return super().each(self._kept(updates, key), key)

    def left_out(self, updates: Mapping[int, Update]) -> list[int]:
        kept = self._kept(updates, self.judged[0]) if self.judged else updates
        return sorted(updates.keys() - kept.keys())

    def _kept(self, updates: Mapping[int, Update], key: str) -> dict[int, Update]:
        ids = sorted(updates)
        n = len(ids)
        f = min(_at_least(self.share * n), (n - 3) // 2)
        if f < 1:
            return dict(updates)
        # What clients share after the last round has other keys than their updates.
        keys = [k for k in self.judged if k in updates[ids[0]]] or [key]
        distance = torch.stack([_distances(Mean.each(self, updates, k)[1]) for k in keys]).sum(0)
        scores = distance.sort(1).values[:, : n - f - 2].sum(1)
        kept = scores.sort(stable=True).indices[: n - f]
        return {i: updates[i] for i in (ids[k] for k in kept.tolist())}


class NormClip(Mean):
    """No client's step is longer than the median one (of an even number, the lower)."""

    def __call__(
        self,
        updates: Mapping[int, Update],
        key: str,
        *,
        around: Tensor | None = None,
        uniform: bool = False,
    ) -> Tensor:
        ids = sorted(updates)
        rows = [updates[i][key] for i in ids]
        steps = rows if around is None else [row - around for row in rows]
        clipped: dict[int, Update] = {}
        for i, row, factor in zip(ids, rows, _factors(steps), strict=True):
            if factor < 1:
                row = row * factor if around is None else row * factor + around * (1 - factor)
            clipped[i] = {**updates[i], key: row}
        return super().__call__(clipped, key, uniform=True)

    def each(self, updates: Mapping[int, Update], key: str) -> tuple[list[int], Tensor]:
        ids, rows = super().each(updates, key)
        factors = rows.new_tensor(_factors(rows))
        return ids, (_flat(rows) * factors[:, None]).view(rows.shape)


def _at_least(share: float) -> int:
    """Rounded up, but for what floating point adds: a share of few replies is not none of them."""
    return math.ceil(share - 1e-9)


def _factors(steps: Sequence[Tensor] | Tensor) -> list[float]:
    """What to multiply each step with."""
    norms = [float(torch.linalg.vector_norm(step, dtype=torch.float64)) for step in steps]
    bound = sorted(norms)[(len(norms) - 1) // 2]
    return [bound / norm if norm > bound else 1.0 for norm in norms]


def _distances(rows: Tensor) -> Tensor:
    """Squared distances of the rows from each other, in units of their median.

    Double precision: what is finite in single precision has a finite square, and the distance of
    two honest models survives the subtraction.
    """
    n = len(rows)
    products = torch.zeros(n, n, dtype=torch.float64)
    for columns in torch.split(_flat(rows), _COLUMNS, dim=1):
        block = columns.cpu().double()
        products.addmm_(block, block.T)
    lengths = products.diagonal()
    squared = (lengths[:, None] + lengths - 2 * products).clamp_(min=0)
    unit = float(squared[tuple(torch.triu_indices(n, n, 1))].median())
    return (squared / (unit or 1.0)).fill_diagonal_(math.inf)


def _flat(rows: Tensor) -> Tensor:
    """One row per client, also of single numbers."""
    return rows.reshape(len(rows), -1)
