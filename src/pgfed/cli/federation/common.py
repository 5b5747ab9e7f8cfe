"""The commands below `pgfed federation`, and what they have in common."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from pgfed.cli.options import Group
from pgfed.errors import UserError

group = typer.Typer(
    cls=Group,
    help="Run a real federation: a server and sites that keep their data.",
    no_args_is_help=True,
)

LOG = 2_000_000  # bytes of a log file; ten are kept

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]


@group.callback()
def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError(
            "pgfed federation: needs Flower; install it with `pip install pgfed[flower]`"
        )


def keep_log(path: Path) -> None:
    """What a process that runs for weeks says: dated, on its output and in a file.

    The file is rotated: the newest lines are in it, older ones in .1 to .9.
    """
    import logging
    from logging.handlers import RotatingFileHandler

    class Private(RotatingFileHandler):
        """Also the files that follow are their owner's alone."""

        def _open(self) -> TextIOWrapper:
            handle = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            return open(handle, "a", encoding="utf-8")

    dated = logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    root = logging.getLogger("pgfed")
    root.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full disk, or an output that was closed, ends nothing
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    try:
        handlers.append(Private(path, maxBytes=LOG, backupCount=9, encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    for handler in handlers:
        handler.setFormatter(dated)
        root.addHandler(handler)


def say(text: str) -> None:
    import logging

    logging.getLogger("pgfed.federation").info(text)


def sites_of(text: str, where: str) -> int | list[str]:
    """How many sites, or their names."""
    if not text.isdecimal():
        return [name.strip() for name in text.split(",")]
    if not 1 <= int(text) <= 10_000:
        raise UserError(f"{where}: found {text}; allowed: 1 to 10000, or names, as north,south")
    return int(text)
