"""`pgfed run` and `resume`. torch is imported on use."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgfed.cli.options import (
    AllowModule,
    DataRoot,
    ExperimentFile,
    ModulePath,
    Quiet,
    Settings,
    SkipBad,
    TensorBoard,
    allowed,
)
from pgfed.errors import NOTES, UserError

if TYPE_CHECKING:
    from pgfed.config.tables import Experiment
    from pgfed.engine.setup import Setup


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(resume)


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
        str | None, typer.Option(help="Where to compute: cpu, cuda, ... (engine.device).")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Models of which round: last, or best on validation (output.keep)."),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="An earlier run: each client begins with its own model of it, by name.",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
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
    module_path: ModulePath = None,
) -> None:
    """Run all methods and seeds of an experiment file (or the built-in one) into a run folder."""
    from pgfed.config import experiment as experiments

    _hush(quiet)
    loaded = experiments.load(experiment, _set(settings, device, keep, skip_bad), smoke=smoke)
    if start_from is not None:
        loaded = replace(loaded, start_from=str(start_from))
    root = experiments.data_root(data_root)

    from pgfed.engine.setup import prepare
    from pgfed.results.folder import layout
    from pgfed.results.folder.writer import check_same

    if dry:
        _dry_run(prepare(loaded, root))
        return
    if go_on and out is None:
        raise UserError("--resume: say which run with --out DIR (or use `pgfed resume DIR`)")
    going_on = go_on and out is not None and layout.is_run(out)
    folder = out if going_on and out is not None else layout.choose(out, loaded.name)
    setup = prepare(loaded, root)
    if going_on:
        check_same(setup.experiment, folder)
    _execute(setup, folder, resume=going_on, tensorboard=tensorboard, quiet=quiet, as_json=as_json)


def _dry_run(setup: Setup) -> None:
    from pgfed.cli.terminal import experiment as screens
    from pgfed.tuning import cost as estimate

    estimates = estimate.estimate(setup)
    screens.dry_run(setup, estimates, estimate.memory(setup, estimates))


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Go on for longer, where the run kept its state."),
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    tensorboard: TensorBoard = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Go on with a run that was cut short: the result is that of a run that was not."""
    from pgfed.config import experiment as experiments
    from pgfed.engine.setup import prepare

    _hush(quiet)
    experiment = experiments.to_go_on(folder, allowed(allow_module))
    if rounds is not None:
        experiment = _longer(experiment, rounds)
    setup = prepare(experiment, experiments.data_root(data_root))
    _execute(setup, folder, resume=True, tensorboard=tensorboard, quiet=quiet, as_json=as_json)


def _longer(experiment: Experiment, rounds: int) -> Experiment:
    if rounds < experiment.rounds:
        raise UserError(
            f"--rounds: found {rounds}; allowed: {experiment.rounds}, which the run was begun for, "
            "or more"
        )
    return replace(experiment, rounds=rounds)


def _hush(quiet: bool) -> None:
    if quiet:
        NOTES.setLevel(logging.ERROR)


def _set(
    settings: list[str] | None, device: str | None, keep: str | None, skip_bad: bool
) -> list[str]:
    """What --set says, and the keys that have an option of their own."""
    skip = "true" if skip_bad else None
    named = {"engine.device": device, "output.keep": keep, "data.skip_bad": skip}
    given = [f"{key}={value}" for key, value in named.items() if value is not None]
    return [*(settings or []), *given]


def _execute(
    setup: Setup, folder: Path, *, resume: bool, tensorboard: bool, quiet: bool, as_json: bool
) -> None:
    from pgfed.api import run_setup
    from pgfed.cli.terminal import experiment as screens
    from pgfed.report import rendering as reports
    from pgfed.results.folder import layout
    from pgfed.results.progress import progress_for

    experiment = setup.experiment
    runs = len(setup.methods) * len(experiment.seeds)
    progress = progress_for(sys.stderr, runs, experiment.rounds, quiet=quiet)
    try:
        with progress:
            result = run_setup(setup, folder, progress, resume=resume, tensorboard=tensorboard)
    except KeyboardInterrupt:
        raise layout.interrupted(progress.where(), folder) from None
    page = reports.write_page(folder) if reports.possible() else None
    if as_json:
        print(json.dumps(result.summary, indent=2))
    elif not quiet:
        screens.outcomes(result.data, page)
