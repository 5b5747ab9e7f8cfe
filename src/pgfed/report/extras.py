"""Modules of the `report` extra, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from pgfed.errors import UserError


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise missing(name) from None


def missing(name: str) -> UserError:
    return UserError(f"the report needs {name}, which is not installed: pip install pgfed[report]")
