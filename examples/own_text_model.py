"""A transformer with low-rank adapters: the backbone is frozen, only adapters and head travel.

python own_text_model.py

Whatever has requires_grad = False when the factory returns stays where it is: it is not sent, not
averaged and not stored per client, and lies once in models/frozen.safetensors. Adapters of peft
(`get_peft_model`) work the same way. Here the backbone is drawn at random, from the run's seed;
yours would load its weights: all sites must load the same ones, which is checked by their SHA-256.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pgfed

WORDS, LENGTH, WIDTH, RANK = 500, 24, 64, 4


class LowRank(nn.Module):
    """A frozen linear layer W with a trained correction B A beside it, zero at the start (LoRA)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Linear(frozen.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.b(self.a(x))
        return out


class Block(nn.Module):
    """Attention with one head, and a layer for each word by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)]).requires_grad_(False)
        self.query, self.key, self.value = (LowRank(nn.Linear(WIDTH, WIDTH)) for _ in range(3))
        self.wide = LowRank(nn.Linear(WIDTH, 2 * WIDTH))
        self.narrow = LowRank(nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        z = self.norms[0](x)
        attention = self.query(z) @ self.key(z).transpose(1, 2) / WIDTH**0.5
        x = x + attention.softmax(2) @ self.value(z)
        out: Tensor = x + self.narrow(torch.relu(self.wide(self.norms[1](x))))
        return out


class Transformer(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.places = nn.Embedding(input_shape[0], WIDTH).requires_grad_(False)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        z = self.words(x) + self.places.weight
        out: Tensor = self.head(self.blocks(z).mean(1))
        return out


def four_publishers(n: int = 400) -> tuple[Any, Any, Any]:
    """Stand-in for your texts: x (samples, length) tokens, y (labels), client (0 to 3)."""
    rng = np.random.default_rng(0)
    client, y = rng.integers(0, 4, size=n), rng.integers(0, 3, size=n)
    x = rng.integers(100, WORDS, size=(n, LENGTH))
    telling = rng.random((n, LENGTH)) < 0.2  # words that tell the subject
    return np.where(telling, 30 * y[:, None] + rng.integers(0, 30, size=(n, LENGTH)), x), y, client


if __name__ == "__main__":
    result = pgfed.run(
        four_publishers(),
        methods=["local", "fedavg", "pgfed"],
        model=Transformer,
        rounds=int(sys.argv[1]) if len(sys.argv) > 1 else 12,
        train={"epochs": 2, "batch_size": 25, "lr": 0.1},
    )
    print(result.table()[["method", "final_score", "bytes_up"]])
    about = result.data.environment["model"]
    print(f"{about['trained']:,} numbers are trained and travel, {about['frozen']:,} are frozen")
