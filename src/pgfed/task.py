"""The home that 0.1 gave to `pgfed.model.task`; goes with 0.3."""

from __future__ import annotations

import warnings
from typing import Any

from pgfed.model import task


def __getattr__(name: str) -> Any:
    value = getattr(task, name)
    warnings.warn(
        f"pgfed.task.{name} is now pgfed.model.task.{name}; pgfed.task goes with version 0.3",
        DeprecationWarning,
        stacklevel=2,
    )
    return value
