"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer
import typer.core

from pgfed import modules
from pgfed.cli.completion import complete_run, complete_setting

# Help is plain text: rich, with its Markdown, takes longer to import than all else that it needs.
typer.core.HAS_RICH = False


class Group(typer.core.TyperGroup):
    """Commands whose list in the help says the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(limit=1_000)) for name, one in found]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="EXPERIMENT", help="A TOML file; without it, the built-in experiment."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
        help="Override a key, e.g. method.pgfed.mu=0.05; `pgfed settings` lists them.",
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="DIR", autocompletion=complete_run, help="A run folder.")
]
Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures", metavar="FOLDER", help="Also draw it, into this folder: PDF, PNG and SVG."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON, for programs.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where data sets lie; else $PGFED_DATA, else ./data."),
]
TensorBoard = Annotated[
    bool,
    typer.Option("--tensorboard", help="Also write event files: `tensorboard --logdir DIR`."),
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out what cannot be used (data.skip_bad)."),
]
Open = Annotated[bool, typer.Option("--open", help="Show the page in a browser when it is there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]


def _search(folders: list[Path] | None) -> list[Path] | None:
    modules.search(folders or ())
    return folders


# Takes effect by itself, before the command runs.
ModulePath = Annotated[
    list[Path] | None,
    typer.Option(
        "--module-path",
        metavar="FOLDER",
        callback=_search,
        help="Also find modules of your own here, after all others.",
    ),
]
AllowModule = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        metavar="NAME",
        help="Import this module of your own where the folder or file names it.",
    ),
]


def drawn(folder: Path | None, name: str) -> list[Path]:
    """The files of one figure, where --figures asks for it."""
    return [] if folder is None else [folder / f"{name}.{kind}" for kind in ("pdf", "png", "svg")]


def shown(page: Path | None) -> None:
    """Show a page in the user's browser, where --open asks for it."""
    if page is not None:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())


def allowed(names: list[str] | None) -> modules.Allowed:
    """What --allow-module allows."""
    return modules.allowed(names, lambda module: f"--allow-module {module}")
