"""Reports on finished runs: one HTML page, tables for papers and scripts, figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgfed.results.comparison import Group


class Format(StrEnum):
    """The page, or its tables as text."""

    html = "html"
    md = "md"
    csv = "csv"
    latex = "latex"


def read(folders: Sequence[Path]) -> list[Group]:
    """Read run folders and put together what ran on the same clients."""
    from pgfed.results.comparison import group
    from pgfed.results.folder.reader import load

    return group([load(folder) for folder in folders])


def render(groups: Sequence[Group], format: Format = Format.html) -> str:
    """The report as text."""
    from pgfed.report import page
    from pgfed.report import text as formats

    writers = {
        Format.html: page.render,
        Format.md: formats.markdown_report,
        Format.csv: formats.comma_separated,
        Format.latex: formats.latex_report,
    }
    return writers[format](groups)


def possible() -> bool:
    """Is what the page is drawn with installed? It comes with `pip install pgfed[report]`."""
    return all(find_spec(name) is not None for name in ("plotly", "jinja2"))


def write_page(folder: Path) -> Path:
    """Write FOLDER/report.html, as a run does at its end."""
    from pgfed.engine.storage.durable import write_atomic

    path = folder / "report.html"
    write_atomic(path, render(read([folder])))
    return path


def write_figures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write the figures as PNG and SVG files."""
    from pgfed.report.images.runs import save

    return save(groups, folder)
