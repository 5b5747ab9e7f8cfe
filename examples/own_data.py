"""Your own data in ten lines: arrays in memory, one number per sample that says whose it is.

python own_data.py
"""

from __future__ import annotations

import numpy as np

import pgfed


def three_hospitals() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stand-in for your data: x (samples, features), y (labels), client (0, 1 or 2)."""
    rng = np.random.default_rng(0)
    client = rng.integers(0, 3, size=900)
    y = rng.integers(0, 2, size=900)
    x = rng.normal(size=(900, 12)).astype(np.float32)
    x[:, 0] += 2.0 * y  # a finding that means the same everywhere
    x[:, 1] += 2.0 * y * (1 - client)  # and one that means the opposite at the third hospital
    return x, y, client


if __name__ == "__main__":
    result = pgfed.run(
        three_hospitals(),
        methods=["local", "fedavg", "fedavg-local", "pgfed"],
        rounds=20,
        cohort=1.0,  # so few take part in every round
    )
    print(result.table())
    print(result.clients("pgfed"))
    model = result.model(client=2, method="pgfed")  # an nn.Module, ready to use
    print(model)
