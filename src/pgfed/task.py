"""The home that 0.1 gave to the model as one flat vector; goes with 0.3."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_HOMES = {  # name -> the module that has it now
    "EVALUATION_BATCH": "pgfed.model.task",
    "Layout": "pgfed.model.layout",
    "Task": "pgfed.model.task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pgfed.task' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    warnings.warn(
        f"pgfed.task.{name} is now {_HOMES[name]}.{name}; pgfed.task goes with version 0.3",
        DeprecationWarning,
        stacklevel=2,
    )
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
