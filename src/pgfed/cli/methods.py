"""`pgfed methods`."""

from __future__ import annotations

from typing import Annotated

import typer

from pgfed.cli.options import ModulePath
from pgfed.methods import registry as algorithms


def register(app: typer.Typer) -> None:
    app.command()(methods)


def methods(
    show: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One method: settings, and what leaves a client."),
    ] = None,
    module_path: ModulePath = None,
) -> None:
    """List the methods, or explain one."""
    from pgfed.cli.terminal import methods as screens

    if show is None:
        screens.methods({name: entry.summary for name, entry in algorithms.NAMES.items()})
    else:
        screens.method(algorithms.folder(show), algorithms.summary(show), algorithms.get(show))
