"""`pgfed run` and `resume`. torch is imported on use."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgfed.cli.completion import complete_method
from pgfed.cli.options import (
    AllowModule,
    DataRoot,
    ExperimentFile,
    ModulePath,
    Open,
    Quiet,
    RunFolder,
    Settings,
    SkipBad,
    TensorBoard,
    allowed,
    shown,
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
    rounds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many rounds of training.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="M1,M2,...",
            autocompletion=complete_method,
            help="Which to run, by their names in `pgfed methods`.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="S1,S2,...", help="Each runs all methods once.")
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
    only: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD/SEED",
            help="Run this alone, into --out, which other processes fill with the rest.",
        ),
    ] = None,
    tensorboard: TensorBoard = False,
    open_page: Open = False,
    module_path: ModulePath = None,
) -> None:
    """Run all methods and seeds of an experiment file (or the built-in one) into a run folder."""
    from pgfed.config import experiment as experiments

    _hush(quiet)
    given = {
        "rounds": rounds,
        "methods": None if methods is None else json.dumps(_listed(methods)),
        "seeds": None if seeds is None else _numbers(seeds),
        "engine.device": device,
        "output.keep": keep,
        "data.skip_bad": "true" if skip_bad else None,
    }
    named = [f"{key}={value}" for key, value in given.items() if value is not None]
    loaded = experiments.load(experiment, [*(settings or []), *named], smoke=smoke)
    if start_from is not None:
        loaded = replace(loaded, start_from=str(start_from))
    if tensorboard:
        loaded = _with_tensorboard(loaded)
    root = experiments.data_root(data_root)
    _loading(loaded, quiet=quiet)

    from pgfed.engine.setup import prepare
    from pgfed.results.folder import layout
    from pgfed.results.folder.writer import check_same

    if dry:
        _dry_run(prepare(loaded, root), as_json)
        return
    if only is not None:
        _run_only(only, prepare(loaded, root), out, quiet=quiet, as_json=as_json)
        return
    if go_on and out is None:
        raise UserError("--resume: say which run with --out DIR (or use `pgfed resume DIR`)")
    going_on = go_on and out is not None and layout.is_run(out)
    folder = out if going_on and out is not None else layout.choose(out, loaded.name)
    setup = prepare(loaded, root)
    if going_on:
        check_same(setup.experiment, folder)
    page = _execute(setup, folder, resume=going_on, quiet=quiet, as_json=as_json)
    shown(page if open_page else None)


def _dry_run(setup: Setup, as_json: bool) -> None:
    from pgfed.cli.terminal import experiment as screens
    from pgfed.tuning import cost as estimate

    estimates = estimate.estimate(setup)
    if as_json:
        memory = estimate.memory(setup, estimates)
        methods = [asdict(each) for each in estimates]
        print(json.dumps({"memory_bytes": memory, "methods": methods}, indent=2))
        return
    screens.dry_run(setup, estimates, estimate.memory(setup, estimates))


def resume(
    folder: RunFolder,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Go on for longer, where the run kept its state."),
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    tensorboard: TensorBoard = False,
    open_page: Open = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Go on with a run that was cut short: the result is that of a run that was not."""
    from pgfed.config import experiment as experiments

    _hush(quiet)
    experiment = experiments.to_go_on(folder, allowed(allow_module))
    if rounds is not None:
        experiment = _longer(experiment, rounds)
    if tensorboard:
        experiment = _with_tensorboard(experiment)
    _loading(experiment, quiet=quiet)

    from pgfed.engine.setup import prepare

    setup = prepare(experiment, experiments.data_root(data_root))
    page = _execute(setup, folder, resume=True, quiet=quiet, as_json=as_json)
    shown(page if open_page else None)


def _longer(experiment: Experiment, rounds: int) -> Experiment:
    if rounds < experiment.rounds:
        raise UserError(
            f"--rounds: found {rounds}; allowed: {experiment.rounds}, which the run was begun for, "
            "or more"
        )
    return replace(experiment, rounds=rounds)


def _with_tensorboard(experiment: Experiment) -> Experiment:
    from pgfed.config.tables import TENSORBOARD

    told = list(dict.fromkeys([*experiment.output.callbacks, TENSORBOARD]))
    return replace(experiment, output=replace(experiment.output, callbacks=told))


def _loading(experiment: Experiment, *, quiet: bool) -> None:
    """Said to who sits before a terminal: importing torch and reading data takes seconds."""
    if sys.stderr.isatty() and not quiet:
        print(f"Loading torch and {experiment.data.dataset} ...", file=sys.stderr, flush=True)


def _hush(quiet: bool) -> None:
    if quiet:
        NOTES.setLevel(logging.ERROR)


def _listed(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> str:
    found = _listed(text)
    for part in found:
        if not (part.isascii() and part.isdecimal()):
            raise UserError(f"--seeds: found {part!r}; allowed: whole numbers, as 0,1,2")
    return f"[{', '.join(str(int(part)) for part in found)}]"


def _run_only(only: str, setup: Setup, out: Path | None, *, quiet: bool, as_json: bool) -> None:
    """One method and seed, into a folder that others fill at the same time."""
    from pgfed.results.folder.jobs import job_of

    if out is None:
        raise UserError("--only: say into which folder with --out DIR")
    job = job_of(setup.experiment, only)
    _execute(setup, out, resume=False, quiet=quiet, as_json=as_json, only=job)


def _execute(
    setup: Setup,
    folder: Path,
    *,
    resume: bool,
    quiet: bool,
    as_json: bool,
    only: tuple[str, int] | None = None,
) -> Path | None:
    """Run it, and say how it ended; the page, if one was written."""
    from pgfed.api import run_setup
    from pgfed.cli.terminal import experiment as screens
    from pgfed.report import rendering as reports
    from pgfed.results.folder import layout
    from pgfed.results.progress import progress_for

    experiment = setup.experiment
    runs = len(setup.methods) * len(experiment.seeds)
    here = runs if only is None else 1
    progress = progress_for(sys.stderr, here, experiment.rounds, quiet=quiet)
    try:
        with progress:
            progress.heading = screens.header(setup)
            result = run_setup(setup, folder, progress, resume=resume, only=only)
    except KeyboardInterrupt:
        raise layout.interrupted(progress.where(), folder) from None
    whole = sum(map(len, result.data.runs.values())) == runs
    page = reports.write_page(folder) if whole and reports.possible() else None
    if as_json:
        print(json.dumps(result.summary, indent=2))
    elif not whole and only is not None and not quiet:
        done = len(result.summary)
        print(f"{only[0]}, seed {only[1]}: done; {folder} has {done} of {runs} runs")
    elif not quiet:
        screens.outcomes(result.data, page)
    return page
