"""The command line. torch and the like are imported by the commands that need them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import click
import typer

import pgfed.cli.bench as bench_command
import pgfed.cli.federation as federation
import pgfed.cli.paper as study
import pgfed.cli.report as report
import pgfed.cli.sweep as sweep_command
import pgfed.cli.takehome as takehome
from pgfed import __version__
from pgfed.errors import Interrupted, UserError
from pgfed.methods import registry as algorithms

if TYPE_CHECKING:
    from pgfed.engine.runs import Setup

app = typer.Typer(
    name="pgfed",
    help="Personalized federated learning: one model per client, and what each client gained.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Fetch data sets, and look at how they are divided among clients.")
app.add_typer(data_app, name="data")

debug = False  # --debug: show tracebacks

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="EXPERIMENT", help="A TOML file; without it, the built-in experiment."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. method.pgfed.mu=0.05."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where data sets lie; else $PGFED_DATA, else ./data."),
]
TensorBoard = Annotated[
    bool,
    typer.Option("--tensorboard", help="Also write event files: `tensorboard --logdir DIR`."),
]


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a command; a user's mistake is one line and exit code 2."""
    sys.exit(_main(argv))


def _main(argv: list[str] | None) -> int:
    global debug
    debug = False
    # A scheduler that asks a command to end gets what Ctrl+C gets.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code: int = app(args=argv, prog_name="pgfed", standalone_mode=False) or 0
        # Where nothing else is said of Ctrl+C, typer makes it this code, without a word.
        return _fail("interrupted", 130) if code == 130 else code
    except Interrupted as interrupted:
        return _fail(str(interrupted), 130)
    except UserError as error:
        return _fail(str(error), 2)
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
        name = type(error).__name__
        what = "" if name == "ClientError" else f"unexpected {name}: "
        return _fail(f"{what}{error} (`pgfed --debug ...` shows the traceback)", 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_setting(error: click.ClickException) -> str:
    """For one who writes --rounds 3: keys of the experiment file are set otherwise."""
    if not isinstance(error, click.NoSuchOption):
        return ""
    from pgfed.config.experiment import Experiment
    from pgfed.config.schema import dotted

    name = error.option_name.lstrip("-").replace("-", "_")
    found = [key for key in dotted(Experiment) if name in (key, key.rpartition(".")[2])]
    if not found:
        return ""
    told = f"No such option: {error.option_name}"
    return f"{told}. For a key of the experiment: --set {found[0]}=VALUE."


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


@app.command()
def run(
    experiment: ExperimentFile = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The run folder; by default runs/NAME, or runs/NAME-2 and so on."
        ),
    ] = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where to compute: cpu, cuda, ... (engine.device)."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Models of which round: last, or best on validation (output.keep)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run and what it would take.")
    ] = False,
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="Small built-in data and a few rounds: about ten seconds."),
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
    tensorboard: TensorBoard = False,
) -> None:
    """Run all methods and seeds of an experiment file (or the built-in one) into a run folder."""
    from pgfed.config import experiment as experiments

    named = {"engine.device": device, "output.keep": keep}
    overrides = [f"{key}={value}" for key, value in named.items() if value is not None]
    loaded = experiments.load(experiment, [*(settings or []), *overrides], smoke=smoke)
    root = experiments.data_root(data_root)

    from pgfed.engine.runs import prepare
    from pgfed.results import layout
    from pgfed.results.writer import check_same

    if dry:
        from pgfed.cli.terminal import experiment as screens
        from pgfed.tuning import cost as estimate

        setup = prepare(loaded, root)
        estimates = estimate.estimate(setup)
        screens.dry_run(setup, estimates, estimate.memory(setup, estimates))
        return
    if go_on and out is None:
        raise UserError("--resume: say which run with --out DIR (or use `pgfed resume DIR`)")
    going_on = go_on and out is not None and layout.is_run(out)
    folder = out if going_on and out is not None else layout.choose(out, loaded.name)
    setup = prepare(loaded, root)
    if going_on:
        check_same(setup.experiment, folder)
    _execute(setup, folder, resume=going_on, tensorboard=tensorboard, quiet=quiet, as_json=as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    data_root: DataRoot = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    tensorboard: TensorBoard = False,
) -> None:
    """Go on with a run that was cut short: the result is that of a run that was not."""
    from pgfed.config import experiment as experiments
    from pgfed.engine.runs import prepare

    setup = prepare(experiments.of_run(folder), experiments.data_root(data_root))
    _execute(setup, folder, resume=True, tensorboard=tensorboard, quiet=quiet, as_json=as_json)


def _execute(
    setup: Setup, folder: Path, *, resume: bool, tensorboard: bool, quiet: bool, as_json: bool
) -> None:
    from pgfed import api
    from pgfed.cli.terminal import experiment as screens
    from pgfed.report import rendering as reports
    from pgfed.results import layout
    from pgfed.results.progress import progress_for

    experiment = setup.experiment
    runs = len(setup.methods) * len(experiment.seeds)
    progress = progress_for(sys.stderr, runs, experiment.rounds, quiet=quiet)
    try:
        with progress:
            result = api.run_setup(setup, folder, progress, resume=resume, tensorboard=tensorboard)
    except KeyboardInterrupt:
        raise layout.interrupted(progress.where(), folder) from None
    page = reports.write_page(folder) if reports.possible() else None
    if as_json:
        print(json.dumps(result.summary, indent=2))
    elif not quiet:
        screens.outcomes(result.data, page)


@app.command()
def methods(
    show: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One method: settings, and what leaves a client."),
    ] = None,
) -> None:
    """List the methods, or explain one."""
    from pgfed.cli.terminal import experiment as screens

    if show is None:
        screens.methods({name: entry.summary for name, entry in algorithms.METHODS.items()})
    else:
        screens.method(algorithms.folder(show), algorithms.summary(show), algorithms.get(show))


@app.command()
def datasets(data_root: DataRoot = None) -> None:
    """List the data sets, and whether their files are there."""
    from pgfed.cli.terminal import experiment as screens
    from pgfed.config.experiment import data_root as default_root
    from pgfed.data import datasets as sources

    root = default_root(data_root)
    screens.datasets(sources.describe(root), root)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name that `pgfed datasets` lists.")],
    data_root: DataRoot = None,
) -> None:
    """Download a data set, checked by its checksum, to the data root."""
    from pgfed.cli.terminal.download import Download
    from pgfed.config.experiment import data_root as default_root
    from pgfed.data.fetch import fetch

    with Download(name, sys.stderr) as download:
        place = fetch(name, default_root(data_root), progress=download.update)
    print(f"{name}: {place}")


@data_app.command("show")
def data_show(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Also draw classes by client (.png, .svg or .pdf)."),
    ] = None,
) -> None:
    """Show how an experiment's data is divided among the clients."""
    from pgfed.config import experiment as experiments

    loaded = experiments.load(experiment, settings or [])

    from pgfed.cli.terminal import experiment as screens
    from pgfed.engine.runs import load_federation

    clients, _ = load_federation(loaded.data, experiments.data_root(data_root))
    if figure is not None:
        from pgfed.report.distribution import distribution_figure

        distribution_figure(clients, figure)
    screens.clients(clients)


for commands in (takehome, report, sweep_command, study, bench_command):
    commands.register(app)
app.add_typer(federation.app, name="federation")
