"""`pgfed sweep` and `pgfed study` in this process, and data on which test and validation differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import typer

from pgfed.cli import paper as commands
from pgfed.cli import tuning

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def pgfed(*words: object) -> int:
    """Call a command; a UserError comes through."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    tuning.register(app)
    commands.register(app)
    return app(args=[str(word) for word in words], standalone_mode=False) or 0


def contrary(path: Path, clients: int = 4, n: int = 40) -> Path:
    """Test labels contradict the training labels: who learns does well on validation data only."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=clients * n)
    x = np.column_stack([2.0 * y - 1, np.ones_like(y)]) + 0.2 * rng.normal(size=(len(y), 2))
    client = np.repeat(np.arange(clients), n)
    test = np.arange(len(y)) % 4 == 0
    y[test] = 1 - y[test]
    np.savez(path, x=x.astype(np.float32), y=y, client=client, split=test.astype(np.int64))
    return path
