"""The data of the differential test, the same bytes wherever they are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SIZES = (24, 16, 4, 30, 20, 13)  # samples of each client; of 4, three are trained on
FEWEST = SIZES.index(4)
PICTURES = (10, 4, 9)


def write(folder: Path) -> None:
    """digits.npz and pictures.npz; the clients are called 0, 1, ..., as they are numbered."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype(np.float32) / 8 - 1
    rows = np.concatenate([_skewed(labels, client) for client in range(len(SIZES))])
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    np.savez(folder / "digits.npz", x=images[rows], y=labels[rows], client=owners)

    rng = np.random.Generator(np.random.PCG64(5))
    n = sum(PICTURES)
    np.savez(
        folder / "pictures.npz",
        x=rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8),
        y=np.arange(n) % 4,
        client=np.repeat(np.arange(len(PICTURES)), PICTURES),
    )


def _skewed(labels: np.ndarray, client: int) -> np.ndarray:
    """Samples of a client: mostly of two classes of its own, a few of any."""
    n = SIZES[client]
    own = np.flatnonzero(np.isin(labels, [client, client + 4]))[: n - n // 4]
    return np.concatenate([own, np.arange(1000 + 10 * client, 1000 + 10 * client + n // 4)])
