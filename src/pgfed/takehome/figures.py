"""Figures as files, in the style of all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgfed.report.images.drawing import blank, check_format, styled, write


def drawing(
    path: Path, size: tuple[float, float], columns: int = 1
) -> tuple[Any, Callable[[], Path]]:
    """Axes to draw on (several share their y axis), and the call that saves them to ``path``."""
    check_format(path)
    with styled():
        figure = blank(*size)
        axes = figure.subplots(1, columns, sharey=True)
    return axes, lambda: write(figure, path)
