"""Personalized federated learning: one model per client, and what each client gained."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pgfed.version import __version__

if TYPE_CHECKING:
    from pgfed import methods, testing
    from pgfed.api import Predictions, Result, open, run
    from pgfed.data.federation import Federation
    from pgfed.engine.callbacks import Callback, Running
    from pgfed.errors import UserError
    from pgfed.methods.contract import Algorithm
    from pgfed.model.objectives import Objective
    from pgfed.results.kept.models import load
    from pgfed.results.verdict import Verdict

__all__ = [
    "Algorithm",
    "Callback",
    "Federation",
    "Objective",
    "Predictions",
    "Result",
    "Running",
    "UserError",
    "Verdict",
    "__version__",
    "load",
    "methods",
    "open",
    "run",
    "testing",
]

# Loaded on first use: torch takes seconds, and `pgfed --help` does not need it.
_HOMES = {
    "Algorithm": "pgfed.methods.contract",
    "Callback": "pgfed.engine.callbacks",
    "Federation": "pgfed.data.federation",
    "Objective": "pgfed.model.objectives",
    "Predictions": "pgfed.api",
    "Result": "pgfed.api",
    "Running": "pgfed.engine.callbacks",
    "UserError": "pgfed.errors",
    "Verdict": "pgfed.results.verdict",
    "load": "pgfed.results.kept.models",
    "open": "pgfed.api",
    "run": "pgfed.api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pgfed' has no attribute {name!r}")
    if name not in _HOMES:  # a module
        return importlib.import_module(f"pgfed.{name}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
