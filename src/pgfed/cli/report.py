"""`pgfed report` and `pgfed watch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pgfed.errors import UserError
from pgfed.report import rendering as reports
from pgfed.report.rendering import Format


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(report)
    app.command()(watch)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    format: Annotated[
        Format, typer.Option("--format", help="A page, or its tables as text.")
    ] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to; by default DIR/report.html (./report.html for several DIRs), and the "
            "standard output for tables.",
        ),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write the figures as PNG and SVG files.")
    ] = False,
) -> None:
    """Say who gained, how much and with which method: one page, or tables for a paper."""
    groups = reports.read(folders)
    text = reports.render(groups, format)
    beside = folders[0] if len(folders) == 1 else Path()
    if out is None and format is Format.html:
        out = beside / "report.html"
    if out is None:
        sys.stdout.write(text)
    else:
        _write(out, text)
        print(f"Report: {out}")
        beside = out.parent
    if figures:
        for path in reports.write_figures(groups, beside / "figures"):
            print(path, file=sys.stderr if out is None else sys.stdout)


def _write(path: Path, text: str) -> None:
    from pgfed.engine.storage.durable import write_atomic

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise UserError(f"--out: {path} cannot be written ({error.strerror or error})") from None


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
) -> None:
    """Show how far a running experiment is, until it ends; once, where there is no terminal."""
    from rich.console import Console

    from pgfed.cli.terminal.watch import watch as follow

    follow(folder, Console())
