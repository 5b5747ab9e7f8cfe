"""What the tests of the command line and of the Python interface share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

# A run that takes a fraction of a second.
SMALL = [
    *("--set", "engine.backend=serial", "--set", "rounds=2", "--set", "data.clients=4"),
    *("--set", "method.alone.max_epochs=1"),
]


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


def blobs(n: int, *, features: int = 6, classes: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    """A task that a small network learns at once: one cloud per class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = rng.normal(0, 0.3, (n, features)) + 2 * np.eye(classes, features)[y]
    return {"x": x.astype(np.float32), "y": y}


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
