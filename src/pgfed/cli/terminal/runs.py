"""Runs for people: a line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgfed.cli.terminal.tables import console, table
from pgfed.results.listing import Listed

MANY = 3  # methods that are named


def show(runs: Sequence[Listed], place: Path) -> None:
    """The newest first, under the names of their folders."""
    screen = console()
    if not runs:
        screen.print(f"{place}: holds no runs", markup=False, soft_wrap=True)
        return
    columns = ("run", "started", "data", "methods", "state", "verdict")
    rows = [
        (
            run.folder,
            run.started.strftime("%Y-%m-%d %H:%M"),
            run.data,
            _methods(run.methods),
            run.state if run.state in ("finished", "damaged") else _far(run),
            run.verdict,
        )
        for run in runs
    ]
    screen.print(table(columns, rows))


def _methods(names: Sequence[str]) -> str:
    more = len(names) - MANY
    return ", ".join(names[:MANY]) + (f" and {more} more" if more > 0 else "")


def _far(run: Listed) -> str:
    return f"{run.state}, {100 * run.done // max(run.rounds, 1)} %"
