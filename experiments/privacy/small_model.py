"""A small network without batch norm, for the made-up sites."""

from __future__ import annotations

from torch import nn


def make(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Few parameters, since noise grows with them; group norm, which FedBN keeps at home."""
    return nn.Sequential(
        nn.Linear(shape[0], 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, outputs)
    )
