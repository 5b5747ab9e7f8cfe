"""The home that 0.1 gave to what a method of one's own needs; goes with 0.3."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_CONTRACT = "pgfed.methods.contract"
_HOMES = {  # name -> the module that has it now
    "Algorithm": _CONTRACT,
    "ClientInfo": _CONTRACT,
    "Extra": _CONTRACT,
    "FederationInfo": _CONTRACT,
    "GRADIENT_BATCH": _CONTRACT,
    "Kind": _CONTRACT,
    "Mean": _CONTRACT,
    "Message": _CONTRACT,
    "Rng": _CONTRACT,
    "State": _CONTRACT,
    "TrainConfig": _CONTRACT,
    "Update": _CONTRACT,
    "batch_indices": _CONTRACT,
    "batches": _CONTRACT,
    "draw_cohort": _CONTRACT,
    "fine_tuned": _CONTRACT,
    "generator": _CONTRACT,
    "mean_gradient": _CONTRACT,
    "need_base": _CONTRACT,
    "sgd": _CONTRACT,
    "torch_stream": _CONTRACT,
}


def __getattr__(name: str) -> Any:
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
