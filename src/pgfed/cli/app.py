"""The command line. torch and the like are imported by the commands that need them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import click
import typer

from pgfed.cli.data import register as register_data
from pgfed.cli.federation import register as register_federation
from pgfed.cli.methods import register as register_methods
from pgfed.cli.options import Group
from pgfed.cli.paper import register as register_paper
from pgfed.cli.privacy import register as register_privacy
from pgfed.cli.report import register as register_report
from pgfed.cli.run import register as register_run
from pgfed.cli.takehome import register as register_takehome
from pgfed.cli.tuning import register as register_tuning
from pgfed.errors import NOTES, Interrupted, UserError, is_full, one_line
from pgfed.version import __version__

app = typer.Typer(
    name="pgfed",
    cls=Group,
    help="Personalized federated learning: one model per client, and what each client gained.",
    pretty_exceptions_enable=False,
)
for register in (
    register_run, register_methods, register_data, register_takehome, register_report,
    register_tuning, register_paper, register_federation, register_privacy,
):  # fmt: skip
    register(app)

debug = False  # --debug: show tracebacks
SAFE = "PYTHONSAFEPATH"  # keeps Python from importing from the current folder in our children


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a command; a user's mistake is one line and exit code 2."""
    with _notes_on_stderr():
        code = _main(argv)
    sys.exit(code)


def _main(argv: list[str] | None) -> int:
    global debug
    debug = False
    # A scheduler that asks a command to end gets what Ctrl+C gets.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    safe = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        code: int = app(args=argv, prog_name="pgfed", standalone_mode=False) or 0
        # Where nothing else is said of Ctrl+C, typer makes it this code, without a word.
        return _fail("interrupted", 130) if code == 130 else code
    except Interrupted as interrupted:
        return _fail(str(interrupted), 130)
    except UserError as error:
        return _fail(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        if error.ctx is not None:
            print(error.ctx.get_help())
        return 0
    except click.Abort:  # Ctrl+C at a question, or nobody to answer it
        return _fail("stopped: it asked, and there was no answer on its input", 1)
    except click.ClickException as error:
        return _fail(_as_setting(error) or error.format_message(), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        if is_full(error):  # code 1: a supervisor tries again, and there may be room then
            return _fail(f"disk full: {error}", 1)
        name = type(error).__name__
        what = "" if name == "ClientError" else f"unexpected {name}: "
        return _fail(f"{what}{error} (`pgfed --debug ...` shows the traceback)", 1)
    finally:
        signal.signal(signal.SIGTERM, before)
        if safe is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = safe


def _as_setting(error: click.ClickException) -> str:
    """For one who writes --rounds 3: keys of the experiment file are set otherwise."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    from pgfed.config.schema import dotted
    from pgfed.config.tables import Experiment

    name = error.option_name.lstrip("-").replace("-", "_")
    found = [key for key in dotted(Experiment) if name in (key, key.rpartition(".")[2])]
    if not found:
        return ""
    return (
        f"No such option: {error.option_name}. For a key of the experiment: --set {found[0]}=VALUE."
    )


class _Lines(logging.Handler):
    """A note is a line like an error."""

    def emit(self, record: logging.LogRecord) -> None:
        print("pgfed:", one_line(record.getMessage()), file=sys.stderr, flush=True)


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    handler, level, propagate = _Lines(), NOTES.level, NOTES.propagate
    NOTES.addHandler(handler)
    NOTES.setLevel(logging.INFO)
    NOTES.propagate = False  # whoever else logs would say it again
    try:
        yield
    finally:
        NOTES.removeHandler(handler)
        NOTES.setLevel(level)
        NOTES.propagate = propagate


def _fail(message: str, code: int) -> int:
    print("pgfed:", " ".join(message.split()), file=sys.stderr)
    return code


def _version(asked: bool) -> None:
    if asked:
        print(f"pgfed {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of unexpected errors.")
    ] = False,
) -> None:
    global debug
    debug = show_traceback
    if context.invoked_subcommand is None:
        print(context.get_help())
