"""`pgfed sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgfed.cli.options import DataRoot, ModulePath, Quiet
from pgfed.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgfed.tuning.sweep import Grid, Sweep, Tried


def register(app: typer.Typer) -> None:
    app.command()(sweep)


def sweep(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="A TOML file.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="KEY=V1,V2,...",
            help="Values to try, e.g. train.lr=0.1,0.01 (each method by itself) or "
            "method.pgfed.mu=0.1,0.01; over the file's sweep table. By default the paper's grids.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The sweep's folder, by default runs/NAME-sweep."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the experiment."),
    ] = None,
    data_root: DataRoot = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Tries at a time; by default as many as there are cores."),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Small built-in data and a few rounds.")
    ] = False,
    quiet: Quiet = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tried and what it would take.")
    ] = False,
    module_path: ModulePath = None,
) -> None:
    """Tune each method on validation data, and write the best settings as a new experiment.

    The same command goes on where an interrupted sweep stopped.
    """
    from pgfed.config import experiment as experiments

    loaded = experiments.load(experiment, settings or [], smoke=smoke)

    from pgfed.tuning.sweep import Sweep, grids

    of = grids(loaded, grid or [])
    folder = out or Path("runs") / f"{loaded.name}-sweep"
    made = Sweep(loaded, of, folder, experiments.data_root(data_root))
    if dry:
        _dry_run(made)
        return
    made.open()
    try:
        _run(made, jobs, quiet)
    except KeyboardInterrupt:
        done = len(made.finished())
        raise Interrupted(
            f"interrupted; {done} of {len(made.tries)} tries are done, the same command goes on"
        ) from None
    tried, chosen = made.write()
    if not quiet:
        _show(made, of, tried, chosen)


def _run(made: Sweep, jobs: int | None, quiet: bool) -> None:
    from pgfed.results.formats import score

    done, total = len(made.finished()), len(made.tries)
    if done and not quiet:
        print(f"{done} of {total} tries are there already", file=sys.stderr)
    for one in made.run(jobs):
        done += 1
        if not quiet:
            print(
                f"{done}/{total} {_name(one)}: {score(one.validation_score, made.metric)} "
                "on validation data",
                file=sys.stderr,
                flush=True,
            )


def _name(one: Tried) -> str:
    return " ".join([one.method, *(f"{key}={value}" for key, value in one.settings.items())])


def _show(
    made: Sweep, of: Mapping[str, Grid], tried: Sequence[Tried], chosen: Mapping[str, Tried]
) -> None:
    from pgfed.cli.terminal import tables as screens
    from pgfed.results.formats import duration, score
    from pgfed.tuning.sweep import at_the_end

    screen = screens.console()
    rows = [
        (
            one.method,
            ", ".join(f"{key} = {value}" for key, value in one.settings.items()),
            score(one.validation_score, made.metric),
            duration(one.seconds),
            "best" if one is chosen[one.method] else "",
        )
        for one in tried
    ]
    screen.print(
        screens.table(("method", "settings", f"{made.metric.title}, validation", "time", ""), rows)
    )
    for line in at_the_end(of, chosen):
        screen.print(f"{line}; a wider one may do better.", markup=False, soft_wrap=True)
    screen.print(f"All tries: {made.folder / 'sweep.csv'}", markup=False, soft_wrap=True)
    screen.print(f"Next: pgfed run {made.folder / 'best.toml'}", markup=False, soft_wrap=True)


def _dry_run(made: Sweep) -> None:
    from collections import Counter

    from pgfed.cli.terminal import tables as screens
    from pgfed.results.formats import count, duration

    numbers = Counter(t.method for t in made.tries.values())
    seconds = made.estimate()
    screen = screens.console()
    rows = [(m, n, duration(seconds[m]), duration(n * seconds[m])) for m, n in numbers.items()]
    screen.print(screens.table(("method", "tries", "each", "together"), rows))
    total = sum(n * seconds[m] for m, n in numbers.items())
    screen.print(
        f"{len(made.tries)} tries of {count(made.experiment.rounds, 'round')}, with seed "
        f"{made.experiment.seeds[0]}; estimated in all: {duration(total)}. Nothing was written.",
        soft_wrap=True,
    )
