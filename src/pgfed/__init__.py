"""Personalized federated learning: one model per client, and what each client gained."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pgfed.version import __version__

if TYPE_CHECKING:
    from pgfed.api import Result, open, run
    from pgfed.data.federation import Federation
    from pgfed.errors import UserError
    from pgfed.methods.contract import Algorithm
    from pgfed.model.objectives import Objective
    from pgfed.results.kept.models import load

__all__ = [
    "Algorithm",
    "Federation",
    "Objective",
    "Result",
    "UserError",
    "__version__",
    "load",
    "open",
    "run",
]

# Loaded on first use: torch takes seconds, and `pgfed --help` does not need it.
_HOMES = {
    "Algorithm": "pgfed.methods.contract",
    "Federation": "pgfed.data.federation",
    "Objective": "pgfed.model.objectives",
    "Result": "pgfed.api",
    "UserError": "pgfed.errors",
    "load": "pgfed.results.kept.models",
    "open": "pgfed.api",
    "run": "pgfed.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pgfed' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
