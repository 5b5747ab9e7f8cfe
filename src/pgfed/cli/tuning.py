"""`pgfed sweep` and `pgfed bench`: the best settings, and how fast this machine is."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgfed.cli.completion import complete_method
from pgfed.cli.options import AsJson, DataRoot, ModulePath, Quiet, Settings
from pgfed.errors import Interrupted, UserError
from pgfed.methods import registry as algorithms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgfed.tuning.choice import Tried
    from pgfed.tuning.speed import Speed
    from pgfed.tuning.sweep import Grid, Sweep


def register(app: typer.Typer) -> None:
    app.command()(sweep)
    app.command()(bench)


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
        typer.Option(metavar="FOLDER", help="The sweep's, by default runs/NAME-sweep."),
    ] = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tries at a time; by default as many as there are cores."
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Small built-in data and a few rounds.")
    ] = False,
    quiet: Quiet = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tried and what it would take.")
    ] = False,
    as_json: AsJson = False,
    module_path: ModulePath = None,
) -> None:
    """Tune each method on validation data, say which is best and why, and write the best settings.

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
    if as_json:
        winner = made.choice(chosen).method
        rows = [
            {
                **asdict(one),
                "best": one is chosen[one.method],
                "chosen": one is chosen[one.method] and one.method == winner,
            }
            for one in tried
        ]
        print(json.dumps(rows, indent=2))
    elif not quiet:
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
    for line in made.reasons(chosen):
        screen.print(line, markup=False, soft_wrap=True)
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


# -- speed ----------------------------------------------------------------------------------------


def bench(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[METHOD]...",
            autocompletion=complete_method,
            help="Names of `pgfed methods`, or 'all'; by default those of the paper's table.",
        ),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="B1,B2,...", help="Batch sizes.")] = "128",
    seconds: Annotated[
        float, typer.Option(min=0, help="For each method and batch size; two turns at least.")
    ] = 10.0,
    workers: Annotated[
        int, typer.Option(min=0, max=1024, help="Worker processes; 0: one per core.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    module_path: ModulePath = None,
) -> None:
    """Measure how fast this machine trains clients (the paper's table of local speed, E10).

    CIFAR-10's shapes with random pixels, 50 clients, five local epochs, the paper's CNN.
    """
    sizes = [_batch(text) for text in batch.split(",")]
    every = methods == ["all"]
    names = list(algorithms.METHODS) if every else methods
    for name in names or ():
        algorithms.get(name)  # an unknown one is refused before anything is imported or measured

    from pgfed.tuning import speed as speeds

    names = names or speeds.of_paper()
    refused = _left_out if every else None
    found: list[Speed] = []
    for size in sizes:
        for speed in speeds.measure(names, size, seconds=seconds, workers=workers, refused=refused):
            found.append(speed)
            rate = f"{speed.images_per_second:,.0f} images/s"
            print(f"batch {size}, {speed.method}: {rate}", file=sys.stderr)
    if as_json:
        print(json.dumps([asdict(speed) for speed in found], indent=2))
        return

    from pgfed.cli.terminal import tables as screens

    screen = screens.console()
    for size in sizes:
        screen.print(f"\nBatch {size}:" if len(sizes) > 1 else f"Batch {size}:")
        rows = [cells(speed) for speed in found if speed.batch_size == size]
        screen.print(screens.table(SPEEDS, rows))
    screen.print(
        "Images per second of client training on all workers; medians of rounds that took turns "
        "with FedAvg's. The pass: PGFed's over the client's samples after training; the paper's "
        "figures (batch 128 on a V100) cannot contain it.",
        soft_wrap=True,
    )


SPEEDS = (
    "method",
    "images/s",
    "of FedAvg",
    "images/s without pass",
    "of FedAvg without pass",
    "paper",
)


def cells(speed: Speed) -> list[Any]:
    """A row of the table."""
    from pgfed.results.formats import percent

    def shown(share: float | None) -> str:
        return "" if share is None else percent(share)

    without = speed.images_per_second_without_pass
    return [
        speed.method,
        f"{speed.images_per_second:,.0f}",
        percent(speed.share),
        "" if without is None else f"{without:,.0f}",
        shown(speed.share_without_pass),
        shown(speed.paper_share),
    ]


def _left_out(error: UserError) -> None:
    print(f"left out: {error}", file=sys.stderr)


def _batch(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= 100_000:
        raise UserError(f"--batch: found {text!r}; allowed: whole numbers from 1 to 100000")
    return int(text)
