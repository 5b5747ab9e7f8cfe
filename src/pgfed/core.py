"""The home that 0.1 gave to what `pgfed.methods` offers now; goes with 0.3."""

from __future__ import annotations

import warnings
from typing import Any

from pgfed.methods import contract


def __getattr__(name: str) -> Any:
    value = getattr(contract, name)
    warnings.warn(
        f"pgfed.core.{name} is now pgfed.methods.{name}; pgfed.core goes with version 0.3",
        DeprecationWarning,
        stacklevel=2,
    )
    return value
