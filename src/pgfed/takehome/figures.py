"""Figures as files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgfed.errors import UserError


def drawing(
    path: Path, size: tuple[float, float], columns: int = 1
) -> tuple[Any, Callable[[], Path]]:
    """Axes to draw on (several share their y axis), and the call that saves them to ``path``."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"{path}: cannot draw {path.suffix!r}; allowed: .png, .svg, .pdf")
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise UserError(
            "the figure needs matplotlib, which is not installed: pip install pgfed[report]"
        ) from None
    figure = figures.Figure(figsize=size, layout="constrained")

    def save() -> Path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return path

    return figure.subplots(1, columns, sharey=True), save
