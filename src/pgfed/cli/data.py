"""`pgfed datasets` and `pgfed data ...`. torch is imported on use."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgfed.cli.options import AsJson, DataRoot, ExperimentFile, Figures, Group, Settings, drawn


def register(app: typer.Typer) -> None:
    app.command()(datasets)
    group = typer.Typer(
        cls=Group,
        help="Fetch data sets, and look at how they are divided among clients.",
        no_args_is_help=True,
    )
    group.command("fetch")(fetch)
    group.command("show")(show)
    group.command("schema")(schema)
    app.add_typer(group, name="data")


def datasets(data_root: DataRoot = None, as_json: AsJson = False) -> None:
    """List the data sets, and whether their files are there."""
    from pgfed.cli.terminal import experiment as screens
    from pgfed.config.experiment import data_root as default_root
    from pgfed.data import datasets as sources

    root = default_root(data_root)
    found = sources.describe(root)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        screens.datasets(found, root)


def fetch(
    name: Annotated[str, typer.Argument(help="A name that `pgfed datasets` lists.")],
    data_root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set, checked by its checksum, to the data root."""
    from pgfed.cli.terminal.download import Download
    from pgfed.config.experiment import data_root as default_root
    from pgfed.data.named import fetch as fetching

    with Download(name, sys.stderr) as download:
        place = fetching.fetch(name, default_root(data_root), progress=download.update)
    if as_json:
        print(json.dumps({"name": name, "path": str(place)}, indent=2))
    else:
        print(f"{name}: {place}")


def show(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    figures: Figures = None,
    as_json: AsJson = False,
) -> None:
    """Show how an experiment's data is divided among the clients."""
    from pgfed.config import experiment as experiments

    loaded = experiments.load(experiment, settings or [])

    from pgfed.cli.terminal import experiment as screens
    from pgfed.engine.setup import load_federation

    root = experiments.data_root(data_root)
    clients, _ = load_federation(loaded, root)
    for path in drawn(figures, "partition"):
        from pgfed.report.images.distribution import distribution_figure

        distribution_figure(clients, path)
    if as_json:
        classes = list(clients.class_names)
        print(json.dumps({"class_names": classes, "clients": clients.table()}, indent=2))
    else:
        screens.clients(clients)


def schema(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help=".csv or .parquet, one or several, or a folder of them."
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="What is to be predicted; may be given several times."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose a schema for tables: types, categories, target, sites and patients; look it over."""
    from pgfed.data import own
    from pgfed.data.tables import reading
    from pgfed.data.tables.proposal import propose

    # A line that cannot be parsed does not keep a proposal back; it is named.
    bad = reading.Bad(skip=True)
    kinds = {path: own.kind_of(str(path)) for path in files}
    each = [
        file
        for path, kind in kinds.items()
        for file in reading.files(kind if kind in own.TABLES else "csv", path)
    ]
    tables = {path: reading.frame(path, bad) for path in each}
    bad.settle(", ".join(map(str, files)))
    proposal = propose(tables, target)
    if as_json:
        print(json.dumps(proposal.as_json(), indent=2))
        return
    for warning in proposal.warnings:
        print(f"pgfed: {warning}", file=sys.stderr)
    print(proposal.text(), end="")
