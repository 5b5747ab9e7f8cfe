"""The command line: one file per group of commands."""

from pgfed.cli.app import main

__all__ = ["main"]
