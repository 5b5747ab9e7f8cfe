"""`pgfed federation ...`: a real federation across machines, on Flower."""

from __future__ import annotations

import typer

from pgfed.cli.federation import seats, server, site
from pgfed.cli.federation.common import group

__all__ = ["register", "seats", "server", "site"]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="federation")
