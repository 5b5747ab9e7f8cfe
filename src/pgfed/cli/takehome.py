"""`pgfed evaluate`, `predict`, `export`, `onboard`, `personalize`, `why`. torch comes on use."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from pgfed.cli.completion import complete_method
from pgfed.cli.options import (
    AllowModule,
    AsJson,
    DataRoot,
    Figures,
    ModulePath,
    RunFolder,
    SkipBad,
    allowed,
    drawn,
)
from pgfed.errors import UserError

ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A model file, .../models/north.safetensors, or a run folder (DIR) with --client.",
    ),
]
OfClient = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of a run folder: whose model."),
]
OfMethod = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        autocompletion=complete_method,
        help="Of a run folder: by default the only method.",
    ),
]
Client = Annotated[str, typer.Option(metavar="NAME", help="The client's name, or its number.")]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD", autocompletion=complete_method, help="One method; by default all."
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="By default the first.")]


class Format(StrEnum):
    """What a model is exported as."""

    onnx = "onnx"
    torch = "torch"


def register(app: typer.Typer) -> None:
    for command in (evaluate, predict, export, onboard, personalize, why):
        app.command()(command)


def evaluate(
    run: RunFolder,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="The client's name, or its number.")
    ] = None,
    across: Annotated[
        bool, typer.Option("--across", help="Every client's model on every client's test data.")
    ] = False,
    method: Method = None,
    seed: Seed = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="KIND:PATH (npz, folder, csv, parquet); by default the client's own test data.",
        ),
    ] = None,
    data_root: DataRoot = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Score a client's model beside the baselines and the global one."""
    from pgfed.cli.terminal import takehome as screens
    from pgfed.config.experiment import data_root as default_root
    from pgfed.results.folder.reader import load
    from pgfed.takehome.evaluate import evaluate as evaluated

    if across:
        _across(run, client, method, seed, data, data_root, as_json, allow_module)
        return
    if client is None:
        raise UserError("--client: say whose model, or --across for all of them")
    found = evaluated(
        load(run),
        client,
        method=method,
        seed=seed,
        data=data,
        data_root=default_root(data_root),
        skip_bad=skip_bad,
        allowed=allowed(allow_module),
    )
    if found.unchanged is False:
        print(
            "pgfed: the data has changed since the run (its fingerprint differs): the test data "
            "may hold what the models were trained on",
            file=sys.stderr,
        )
    for line in found.left_out:
        print(f"pgfed: left out: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        screens.evaluation(found)


def _across(
    run: Path,
    client: str | None,
    method: str | None,
    seed: int | None,
    data: str | None,
    data_root: Path | None,
    as_json: bool,
    allow_module: list[str] | None,
) -> None:
    from pgfed.cli.terminal import takehome as screens
    from pgfed.config.experiment import data_root as default_root
    from pgfed.results.folder.reader import load
    from pgfed.takehome.across import across

    if client is not None or data is not None:
        raise UserError("--across: takes all clients' models and test data; leave out the rest")
    root, trusted = default_root(data_root), allowed(allow_module)
    found = across(load(run), method=method, seed=seed, data_root=root, allowed=trusted)
    for line in found.left_out:
        print(f"pgfed: left out: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        screens.across(found)


def predict(
    model: ModelFile,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help="Images, folders of them, .npy, .npz, .csv or .parquet."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write; by default to the screen.")
    ] = None,
    resize: Annotated[
        bool, typer.Option("--resize", help="Resize images to what the model expects.")
    ] = False,
    client: OfClient = None,
    method: OfMethod = None,
    seed: Seed = None,
    skip_bad: SkipBad = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON, a list of rows, instead of CSV.")
    ] = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Predict for images, arrays or rows of tables: classes with probabilities, or values; CSV."""
    from pgfed.engine.storage.durable import replacing
    from pgfed.results.formats import count
    from pgfed.results.kept.models import find_model
    from pgfed.takehome import predict as predictions

    trusted = allowed(allow_module)
    opened = find_model(model, client, method, seed, trusted)
    rows = predictions.predict(opened, files, resize=resize, skip_bad=skip_bad, allowed=trusted)
    if out is None:
        _, left_out = predictions.write(rows, sys.stdout, as_json=as_json)
        if left_out is not None:
            raise left_out
        return
    try:
        with replacing(out) as file:
            stream = TextIOWrapper(file, "utf-8", newline="")
            done, left_out = predictions.write(rows, stream, as_json=as_json)
            stream.flush()
            stream.detach()
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    print(f"{count(done, 'prediction')}: {out}")
    if left_out is not None:
        raise left_out


def export(
    model: ModelFile,
    format: Annotated[
        Format, typer.Option(help="onnx, or torch (torch.export's .pt2).")
    ] = Format.onnx,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="By default MODEL's name, in the current folder."),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--with-normalisation",
            help="Put the scaling of inputs, and soft-max or units of outputs, into the graph.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
    client: OfClient = None,
    method: OfMethod = None,
    seed: Seed = None,
    as_json: AsJson = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Write a model for programs that know nothing of pgfed, and check that it is the same."""
    from pgfed.results.kept.models import find_model
    from pgfed.takehome.export import export as exported

    trusted = allowed(allow_module)
    opened = find_model(model, client, method, seed, trusted)
    done = exported(opened, format.value, out, whole=whole, replace=overwrite, allowed=trusted)
    promised = opened.manifest.promised
    if as_json:
        about = {
            "path": str(done.path),
            "format": format.value,
            "with_normalisation": whole,
            "largest_difference": done.difference,
            "privacy": promised,
        }
        print(json.dumps(about, indent=2))
        return
    print(f"{done.path}: gives the same outputs (largest difference {done.difference:.1g})")
    if promised is not None:
        print(f"{done.path}: {promised}")


def onboard(
    run: RunFolder,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="The new site's data, KIND:PATH (npz, folder, ...).")
    ],
    method: Method = None,
    seed: Seed = None,
    epochs: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Of fine-tuning, at most.")
    ] = 20,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; by default the run's train.lr.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="By default onboarded/NAME of the run.")
    ] = None,
    data_root: DataRoot = None,
    skip_bad: SkipBad = False,
    figures: Figures = None,
    as_json: AsJson = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Give a site that was not there a model: global models, fine-tuned on its data."""
    from pgfed.cli.terminal import takehome as screens
    from pgfed.config.experiment import data_root as default_root
    from pgfed.results.folder.layout import choose
    from pgfed.results.folder.reader import load
    from pgfed.takehome import onboard as onboarding

    folder = load(run)
    place = choose(out or Path("onboarded") / folder.experiment.name, folder.experiment.name)
    found = onboarding.onboard(
        folder,
        data,
        method=method,
        seed=seed,
        epochs=epochs,
        lr=lr,
        data_root=default_root(data_root),
        skip_bad=skip_bad,
        allowed=allowed(allow_module),
    )
    onboarding.write(found, place)
    for path in drawn(figures, "onboarding"):
        onboarding.figure(found, path)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        screens.onboarding(found, str(place))


def personalize(
    run: RunFolder,
    method: Method = None,
    seed: Seed = None,
    blend: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of the own model, where clients have one."),
    ] = 0.5,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the models, into a new folder.")
    ] = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """Put each client's own class shares on the models of a finished run (frame = serving)."""
    from pgfed.cli.terminal import takehome as screens
    from pgfed.config.experiment import data_root as default_root
    from pgfed.results.folder.reader import load
    from pgfed.takehome import personalize as personalizing

    found = personalizing.personalize(
        load(run),
        method=method,
        seed=seed,
        blend=blend,
        data_root=default_root(data_root),
        allowed=allowed(allow_module),
    )
    if out is not None:
        if out.exists():
            raise UserError(f"--out: {out} is there already; allowed: a new folder")
        personalizing.write(found, out)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        screens.personalized(found)


def why(
    run: RunFolder,
    client: Client,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            autocompletion=complete_method,
            help="By default the first PGFed method.",
        ),
    ] = None,
    seed: Seed = None,
    figures: Figures = None,
    as_json: AsJson = False,
) -> None:
    """Show which clients' risks a client's model weighed most."""
    from pgfed.cli.terminal import takehome as screens
    from pgfed.results.folder.reader import load
    from pgfed.takehome import influence as reasons

    found = reasons.why(load(run), client, method=method, seed=seed)
    for path in drawn(figures, "why"):
        reasons.figure(found, path)
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        screens.reasons(found)
