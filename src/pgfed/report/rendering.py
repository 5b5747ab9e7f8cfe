"""Reports on finished runs: one HTML page, tables for papers and scripts, figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.model.metrics import Metric
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


def render(groups: Sequence[Group], format: Format = Format.html, table: str | None = None) -> str:
    """The report as text; of Markdown and LaTeX also a single table."""
    match format:
        case Format.md:
            from pgfed.report.text import markdown_report

            return markdown_report(groups, table)
        case Format.latex:
            from pgfed.report.latex import latex_report

            return latex_report(groups, table)
    if table is not None:
        raise UserError(
            f"--table: found with --format {format}; allowed: with --format latex or md"
        )
    if format is Format.csv:
        from pgfed.report.text import comma_separated

        return comma_separated(groups)
    from pgfed.report.pages.page import render as page

    return page(groups)


def plain(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Verdict and tables of each federation, for programs."""
    from pgfed.report.text import as_plain

    return as_plain(groups)


def possible() -> bool:
    """Is what the page is drawn with installed? It comes with `pip install pgfed[report]`."""
    return all(find_spec(name) is not None for name in ("plotly", "jinja2"))


def write_page(folder: Path) -> Path:
    """Write FOLDER/report.html, as a run does at its end."""
    from pgfed.engine.storage.durable import write_atomic

    path = folder / "report.html"
    write_atomic(path, render(read([folder])))
    return path


def write_site_page(path: Path, rows: Sequence[Mapping[str, Any]], metric: Metric) -> None:
    """Write a site's own page; ``rows``: of one run, as in the site's report.csv."""
    from pgfed.engine.storage.durable import write_atomic
    from pgfed.report.pages.site import site_page

    write_atomic(path, site_page(rows, metric))


def write_figures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write the figures as PDF, PNG and SVG files."""
    from pgfed.report.images.runs import save

    return save(groups, folder)
