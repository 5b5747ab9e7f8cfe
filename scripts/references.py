"""Write docs/settings.md and docs/command-line.md from the program; tests/docs compares them.

.venv/bin/python scripts/references.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click
import typer

from pgfed.cli.app import app
from pgfed.config.reference import Key, method_keys, table_keys
from pgfed.methods import registry as algorithms

DOCS = Path(__file__).parents[1] / "docs"
SETTINGS = """# Settings

Every key of an experiment file. All have a default; `pgfed run --set KEY=VALUE` sets one for a run,
`pgfed settings KEY` prints what stands here, and every run folder's `experiment.toml` holds all of
them, each with its meaning. A value is TOML; what does not parse is a string. From Python, tables
are dictionaries: `pgfed.run(train={"lr": 0.01})` ([Python](public-api.md)).

This page is written by `scripts/references.py`.
"""
METHODS = """## Settings of methods

[method.NAME] takes what stands here and, for this method alone, every key of [train] and, as
`personal.frame`, those of [personal].
"""
COMMANDS = """# Command line

What each command takes. `pgfed COMMAND --help` prints the same. A run folder is called DIR in all
of them; `--json` prints what a command says as JSON, for programs (commands that only do something
have none). A mistake is one line on the standard error and exit code 2; Ctrl+C is 130.

`pgfed --install-completion` teaches your shell (bash, zsh, fish) to complete commands, methods,
keys of `--set` and run folders after TAB.

**On a cluster**, each job may run one method and seed of an experiment, all into one folder:

```
pgfed run exp.toml --only pgfed/0 --out runs/big     # one job
pgfed run exp.toml --only pgfed/1 --out runs/big     # another, at the same time
pgfed report runs/big                                # whatever has finished
```

The folder's file system must support POSIX locks, as local disks, NFS and Lustre do. A job that was
killed goes on where it stopped when it is started again; one that has finished does nothing. The
last one writes `summary.json` and the page.

This page is written by `scripts/references.py`.
"""


def settings() -> str:
    """docs/settings.md"""
    parts = [SETTINGS]
    for table, found in groupby(table_keys(), key=lambda key: key.table):
        parts.append(f"## {f'[{table}]' if table else 'At the top of the file'}\n\n{_table(found)}")
    parts.append(METHODS)
    for name in algorithms.NAMES:
        own = method_keys(name)
        text = _table(own) if own else "No keys of its own.\n"
        parts.append(f"### [method.{name}]\n\n{text}")
    return "\n".join(parts)


def _table(found: Iterator[Key] | Sequence[Key]) -> str:
    lines = ["| key | default | meaning | allowed |", "|---|---|---|---|"]
    for key in found:
        default = key.default if key.default == "–" else f"`{key.default}`"
        cells = (f"`{key.leaf}`", default, key.meaning, key.allowed.replace("'", "`"))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """docs/command-line.md"""
    root = typer.main.get_command(app)
    return "\n".join([COMMANDS, *_described(root, click.Context(root, info_name="pgfed"))])


def _described(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _described(inner, click.Context(inner, info_name=name, parent=context))
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {context.command_path}\n"
    yield f"```\n{context.command_path} {usage}\n```\n"
    yield f"{(command.help or '').strip()}\n"
    rows = [_row(p, context) for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def _row(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
        name = f"{', '.join(parameter.opts)}{value}"
    else:
        name = parameter.make_metavar(context)
    said = getattr(parameter, "help", None) or ""
    default = parameter.default
    if isinstance(default, bool | list | tuple | type(None)) or callable(default):
        default = None
    if default not in (None, ""):
        said += f" Default: `{getattr(default, 'value', default)}`."
    cells = (f"`{name}`", said.strip())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


PAGES = {"settings.md": settings, "command-line.md": commands}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (DOCS / name).write_text(write(), encoding="utf-8")
