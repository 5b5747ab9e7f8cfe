"""Modules of the `report` extra, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from pgfed.errors import UserError


def module(name: str, needed_by: str = "the report") -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise missing(name, needed_by) from None


def missing(name: str, needed_by: str = "the report") -> UserError:
    package = name.partition(".")[0]
    return UserError(
        f"{needed_by} needs {package}, which is not installed: pip install pgfed[report]"
    )
