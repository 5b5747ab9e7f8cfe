"""The home that 0.1 gave to what a method of one's own needs; goes with 0.3."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_METHODS, _RANDOMNESS = "pgfed.methods", "pgfed.methods.randomness"
_HOMES = {  # name -> the module that has it now
    "Algorithm": _METHODS,
    "ClientInfo": _METHODS,
    "FederationInfo": _METHODS,
    "GRADIENT_BATCH": "pgfed.model.task",
    "Kind": _METHODS,
    "Mean": _METHODS,
    "Message": _METHODS,
    "Rng": _METHODS,
    "State": _METHODS,
    "TrainConfig": _METHODS,
    "Update": _METHODS,
    "draw_cohort": _RANDOMNESS,
    "fine_tuned": "pgfed.methods.steps",
    "generator": _RANDOMNESS,
    "need_base": _METHODS,
    "sgd": _METHODS,
    "torch_stream": _RANDOMNESS,
}
_GONE = {  # name -> what to write instead
    "Extra": "pgfed.methods.Terms(extra=...)",
    "batch_indices": "task.batches(...)",
    "batches": "task.batches(...)",
    "mean_gradient": "task.mean_gradient(...)",
}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"pgfed.core.{name} is gone; write {_GONE[name]} instead")
    if name not in _HOMES:
        raise AttributeError(f"module 'pgfed.core' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    warnings.warn(
        f"pgfed.core.{name} is now {_HOMES[name]}.{name}; pgfed.core goes with version 0.3",
        DeprecationWarning,
        stacklevel=2,
    )
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
