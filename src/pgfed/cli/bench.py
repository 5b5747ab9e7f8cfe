"""`pgfed bench`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgfed.cli.options import ModulePath
from pgfed.errors import UserError
from pgfed.methods import registry as algorithms

if TYPE_CHECKING:
    from pgfed.tuning.speed import Speed


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[METHOD]...",
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
    sizes = [_size(text) for text in batch.split(",")]
    names = list(algorithms.METHODS) if methods == ["all"] else methods
    for name in names or ():
        algorithms.get(name)  # an unknown one is refused before anything is imported or measured

    from dataclasses import asdict

    from pgfed.tuning import speed as speeds

    names = names or speeds.of_paper()
    found: list[Speed] = []
    for size in sizes:
        for speed in speeds.measure(names, size, seconds=seconds, workers=workers):
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
        screen.print(screens.table(COLUMNS, rows))
    screen.print(
        "Images per second of client training on all workers; medians of rounds that took turns "
        "with FedAvg's. The pass: PGFed's over the client's samples after training; the paper's "
        "figures (batch 128 on a V100) cannot contain it.",
        soft_wrap=True,
    )


COLUMNS = (
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


def _size(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= 100_000:
        raise UserError(f"--batch: found {text!r}; allowed: whole numbers from 1 to 100000")
    return int(text)
