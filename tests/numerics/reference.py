"""A two-layer network in float64 numpy, differentiated by hand: the yardstick of the numbers tests.

f(x) = V tanh(U x + a) + c with mean cross-entropy. Flat order as in pgfed: [U, a | V, c].
Nothing here imports pgfed; the twin for pgfed is `module` (torch, same order, same values).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]


class Net:
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        self.f, self.h, self.k = features, hidden, classes
        self.b = hidden * features + hidden  # size of the base
        self.d = self.b + classes * hidden + classes

    def parts(self, w: Array) -> tuple[Array, Array, Array, Array]:
        u, rest = w[: self.h * self.f].reshape(self.h, self.f), w[self.h * self.f :]
        a, rest = rest[: self.h], rest[self.h :]
        v, c = rest[: self.k * self.h].reshape(self.k, self.h), rest[self.k * self.h :]
        return u, a, v, c

    def features(self, w: Array, x: Array) -> Array:
        u, a, _, _ = self.parts(w)
        return np.tanh(x @ u.T + a)

    def logits(self, w: Array, x: Array) -> Array:
        _, _, v, c = self.parts(w)
        return self.features(w, x) @ v.T + c

    def loss_gradient(
        self, w: Array, x: Array, y: NDArray[np.int64], shift: Array | None = None
    ) -> tuple[float, Array]:
        """Mean cross-entropy of (logits + shift) and its gradient."""
        _, _, v, _ = self.parts(w)
        z = self.features(w, x)
        out = self.logits(w, x) + (0 if shift is None else shift)
        top = out.max(1, keepdims=True)
        p = np.exp(out - top)
        total = p.sum(1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(np.mean(np.log(total[:, 0]) + top[:, 0] - out[rows, y]))
        delta = p / total
        delta[rows, y] -= 1
        delta /= len(y)
        back = (delta @ v) * (1 - z * z)
        parts = [back.T @ x, back.sum(0), delta.T @ z, delta.sum(0)]
        return loss, np.concatenate([q.ravel() for q in parts])

    def gradient(self, w: Array, x: Array, y: NDArray[np.int64]) -> Array:
        return self.loss_gradient(w, x, y)[1]


class TorchNet(nn.Module):
    """The same network for pgfed: use as ``lambda shape, classes: TorchNet(...)``."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.base = nn.Linear(features, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.base(x)))
        return out


def problem(
    clients: int, seed: int = 0, features: int = 4, classes: int = 3, low: int = 8, high: int = 20
) -> list[tuple[Array, NDArray[np.int64]]]:
    """Each client's own training samples, drawn around client-specific centres."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(clients):
        n = int(rng.integers(low, high))
        centres = rng.normal(size=(classes, features))
        y = rng.integers(0, classes, size=n)
        x = (centres[y] + 0.7 * rng.normal(size=(n, features))).astype(np.float32)
        out.append((x.astype(np.float64), y.astype(np.int64)))
    return out
