"""`pgfed report`, `pgfed watch` and `pgfed runs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgfed.cli.completion import complete_run
from pgfed.cli.options import AsJson, Open, RunFolder, shown
from pgfed.errors import UserError
from pgfed.report import rendering as reports
from pgfed.report.rendering import Format


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(report)
    app.command()(watch)
    app.command()(runs)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", autocompletion=complete_run, help="Run folders."),
    ],
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
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One table only (latex, md), as: results, clients."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", metavar="FOLDER", help="Also draw all, into this folder: PDF, PNG and SVG."
        ),
    ] = None,
    open_page: Open = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print verdict and tables as JSON, and nothing else.")
    ] = False,
) -> None:
    """Say who gained, how much and with which method: one page, or tables for a paper."""
    groups = reports.read(folders)
    if as_json:
        print(json.dumps(reports.plain(groups), indent=2, allow_nan=False))
        return
    text = reports.render(groups, format, table)
    if out is None and format is Format.html:
        out = (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if out is None:
        sys.stdout.write(text)
    else:
        _write(out, text)
        print(f"Report: {out}")
        shown(out if open_page else None)
    if figures is not None:
        for path in reports.write_figures(groups, figures):
            print(path, file=sys.stderr if out is None else sys.stdout)


def _write(path: Path, text: str) -> None:
    from pgfed.engine.storage.durable import write_atomic

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise UserError(f"--out: {path} cannot be written ({error.strerror or error})") from None


def watch(
    folder: RunFolder,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show it as a page in a browser on this machine.")
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Of the page; 0: any that is free.")
    ] = 8765,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print once how far it is, for scripts.")
    ] = False,
) -> None:
    """Show how far a running experiment is, until it ends; once, where there is no terminal."""
    if serve and as_json:
        raise UserError("--json: found with --serve; allowed: one of them")
    if as_json:
        from pgfed.results.folder.running import Watched

        print(json.dumps(Watched(folder).standing().as_json(), indent=2, allow_nan=False))
    elif serve:
        from pgfed.report.pages.live import serve as serve_page

        serve_page(folder, port, lambda line: print(line, flush=True))
    else:
        from rich.console import Console

        from pgfed.cli.terminal.watch import watch as follow

        follow(folder, Console())


def runs(
    place: Annotated[
        Path,
        typer.Argument(metavar="[FOLDER]", help="Where to look for run folders, also deeper."),
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first: data, methods, how far they are, and what came out."""
    from pgfed.cli.terminal.runs import show
    from pgfed.results.listing import listed

    found = listed(place)
    if as_json:
        print(json.dumps([run.as_json() for run in found], indent=2))
    else:
        show(found, place)
