"""The work that all programs do: FedAvg with the paper's CNN on CIFAR-10's shapes.

Runs without pgfed: numpy alone, and torch for the network.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from typing import Any

import numpy as np

CLIENTS, COHORT, SAMPLES, BATCH, LR, MOMENTUM = 25, 6, 1800, 10, 0.005, 0.9
_began: float | None = None
_said = sys.stdout


@cache  # Flower's clients ask in every round; the others have them in memory
def client(i: int) -> tuple[Any, Any]:
    """Random pixels as a network takes them, and labels."""
    rng = np.random.default_rng(i)
    pixels = rng.integers(0, 256, (SAMPLES, 3, 32, 32), dtype=np.uint8)
    return pixels.astype(np.float32) / 127.5 - 1, rng.integers(0, 10, SAMPLES)


def turn() -> None:
    """Before each round: say how many seconds the last one took, and wait to be asked for more."""
    global _began
    if _began is not None:
        print(f"took {time.perf_counter() - _began}", file=_said, flush=True)
    if not sys.stdin.readline():
        raise SystemExit
    _began = time.perf_counter()


def network() -> Any:
    """As the authors' code has it."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
