"""The mean of what clients send."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pgfed.methods.values import Update


class Mean:
    """The mean that the engine hands to `aggregate`: weighted by n, in the order of client ids."""

    def __call__(
        self,
        updates: Mapping[int, Update],
        key: str,
        *,
        around: Tensor | None = None,
        uniform: bool = False,
    ) -> Tensor:
        """The mean of ``key`` over the updates; ``around`` is the vector they started from."""
        weights = self.weights(updates, uniform)
        ids = sorted(updates)
        total = torch.zeros_like(updates[ids[0]][key])
        for i in ids:
            total.add_(updates[i][key], alpha=weights[i])
        return total

    def each(self, updates: Mapping[int, Update], key: str) -> tuple[list[int], Tensor]:
        """The ids that count, and their vectors (or numbers) ``key`` as the rows of one tensor."""
        ids = sorted(updates)
        return ids, torch.stack([torch.as_tensor(updates[i][key]) for i in ids])

    def left_out(self, updates: Mapping[int, Update]) -> list[int]:
        """The clients of whose updates nothing counts."""
        return []

    @staticmethod
    def weights(updates: Mapping[int, Update], uniform: bool = False) -> dict[int, float]:
        """p_i = n_i / sum of n over those who answered; ``uniform``: all equal."""
        n = {i: 1 if uniform else int(u["n"]) for i, u in updates.items()}
        total = sum(n.values())
        return {i: n[i] / total for i in n}
