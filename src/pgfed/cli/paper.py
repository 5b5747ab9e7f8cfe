"""`pgfed study explicit` and `pgfed study new-clients`."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgfed.cli.options import (
    AllowModule,
    AsJson,
    DataRoot,
    ExperimentFile,
    Group,
    ModulePath,
    Quiet,
    Settings,
    allowed,
)
from pgfed.errors import UserError
from pgfed.modules import Allowed
from pgfed.modules import allowed as allowing

if TYPE_CHECKING:
    from pgfed.config.tables import Experiment
    from pgfed.data.federation import Federation
    from pgfed.engine.setup import Setup
    from pgfed.paper.explicit import Explicit
    from pgfed.paper.new_clients import Curve
    from pgfed.paper.start import Start

From = Annotated[
    Path | None,
    typer.Option("--from", metavar="DIR", help="Take the models of this run, and train nothing."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The run folder of what is trained; by default runs/NAME, runs/NAME-2 ...",
    ),
]
FEDAVG = ("fedavg", "fedavg-local")  # both train FedAvg's common model, to the last bit
Smoke = Annotated[bool, typer.Option("--smoke", help="Small built-in data and a few rounds.")]


def register(app: typer.Typer) -> None:
    study = typer.Typer(
        cls=Group, help="The paper's experiments that are not plain runs.", no_args_is_help=True
    )
    study.command("explicit")(explicit)
    study.command("new-clients")(new_clients)
    app.add_typer(study, name="study")


def explicit(
    experiment: ExperimentFile = None,
    from_run: From = None,
    out: Out = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="So many clients, drawn at random; all by default.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="S, gradient steps per client.")] = 6,
    mu: Annotated[
        str, typer.Option(metavar="MU1,MU2,...", help="Weights of the other clients' risks.")
    ] = "0.1,0.5,1",
    lr: Annotated[
        str, typer.Option(metavar="LR1,LR2,...", help="Step lengths; each arm takes its best.")
    ] = "1,0.1,0.01,0.001,0.0001",
    smoke: Smoke = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """E6: do the other clients' risks help, if they are computed exactly?

    From a FedAvg model, each client takes a few full-batch gradient steps on its own risk, and on
    its own risk plus mu times the mean of all others'. Costs one pass over all data per client,
    step, mu and step length: --clients keeps it short.
    """
    rates, mus = _numbers("--lr", lr), _numbers("--mu", mu)

    from pgfed.report.images.drawing import check_matplotlib
    from pgfed.report.images.explicit import explicit_figure

    check_matplotlib()
    trusted = allowed(allow_module)
    start = _start(
        from_run, experiment, settings, smoke, out, data_root, quiet, trusted, _fedavg_only,
        FEDAVG,
    )  # fmt: skip

    from pgfed.engine.storage.durable import write_atomic
    from pgfed.paper import explicit as study

    result = _exactly(start, clients, quiet, steps=steps, rates=rates, mus=mus)
    document = study.document(result)
    _json(start.folder / "explicit.json", document)
    write_atomic(start.folder / "explicit.csv", study.table(result))
    explicit_figure(result, start.folder)
    page = _page(start.folder)
    if as_json:
        print(json.dumps(document, indent=2, allow_nan=False))
    elif not quiet:
        _show_explicit(result, start.setup, start.folder)
        if page is not None:
            print(f"Report: {page}")


def _exactly(start: Start, clients: int | None, quiet: bool, **options: Any) -> Explicit:
    """The steps of E6, client by client."""
    from pgfed.paper import explicit as study

    setup = start.setup
    seed = setup.experiment.seeds[0]
    federation = setup.federation.to(setup.experiment.engine.device)
    chosen = study.choose_clients(federation, clients, seed)
    number = itertools.count(1)

    def done(client: int) -> None:
        if not quiet:
            print(f"client {client}: {next(number)} of {len(chosen)}", file=sys.stderr, flush=True)

    return study.study(
        start.task(),
        federation,
        next(model for (_, of), model in start.models.items() if of == seed),
        chosen,
        jobs=_jobs(setup, len(chosen)),
        done=done,
        **options,
    )


def new_clients(
    experiment: ExperimentFile = None,
    from_run: From = None,
    out: Out = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of fine-tuning.")] = 20,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of fine-tuning, for all methods; by default train.lr."),
    ] = None,
    smoke: Smoke = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    module_path: ModulePath = None,
    allow_module: AllowModule = None,
) -> None:
    """E5: how good a start is each method's global model for clients that come later?

    The last share of the clients (data.new_clients, by default 0.2) takes no part in the training;
    each of them then fine-tunes each method's global model.
    """
    if lr is not None and lr <= 0:
        raise UserError(f"--lr: found {lr}; allowed: a number above 0")
    trusted = allowed(allow_module)
    start = _start(from_run, experiment, settings, smoke, out, data_root, quiet, trusted, _hold_out)
    setup = start.setup
    data = setup.experiment.data
    if not data.new_clients:
        raise UserError(
            f"{start.folder}: the run has no new clients; allowed: one with data.new_clients > 0"
        )

    new, first = _those_held_out(setup.experiment, data_root)
    curves, rate = _fine_tuned(start, new, first, epochs, lr, quiet)

    from pgfed.paper import new_clients as study

    document = study.document(curves, rate)
    _json(start.folder / "new_clients.json", document)
    page = _page(start.folder)
    if as_json:
        print(json.dumps(document, indent=2, allow_nan=False))
    elif not quiet:
        _show_new_clients(curves, setup, len(new), start.folder)
        if page is not None:
            print(f"Report: {page}")


def _those_held_out(experiment: Experiment, data_root: Path | None) -> tuple[Federation, int]:
    """The new clients, and the id of the first of them."""
    from pgfed.config import experiment as experiments
    from pgfed.engine.setup import load_federation

    all_of_them = replace(experiment, data=replace(experiment.data, new_clients=0.0))
    everyone, _ = load_federation(all_of_them, experiments.data_root(data_root))
    first = experiment.data.first_new(len(everyone))
    return everyone.between(first, len(everyone)), first


def _fine_tuned(
    start: Start, new: Federation, first: int, epochs: int, lr: float | None, quiet: bool
) -> tuple[list[Curve], float]:
    """Each method's curve at the new clients, and the learning rate that all had."""
    from pgfed.paper import new_clients as study

    experiment = start.setup.experiment
    train = experiment.train if lr is None else replace(experiment.train, lr=lr)

    def done(number: int, of: int) -> None:
        if not quiet and (number == of or number % len(new) == 0):
            print(f"fine-tuned: {number} of {of}", file=sys.stderr, flush=True)

    curves = study.study(
        start.task(),
        new.to(experiment.engine.device),
        first,
        start.models,
        train,
        epochs=epochs,
        jobs=_jobs(start.setup, len(start.models) * len(new)),
        done=done,
    )
    return curves, train.lr


# -- before ------------------------------------------------------------------------------------


def _start(
    from_run: Path | None,
    file: Path | None,
    settings: list[str] | None,
    smoke: bool,
    out: Path | None,
    data_root: Path | None,
    quiet: bool,
    trusted: Allowed,
    adapt: Any,
    one_of: Sequence[str] = (),
) -> Start:
    """Train what the study needs, or take it from a run folder."""
    from pgfed.config import experiment as experiments

    root = experiments.data_root(data_root)
    if from_run is not None:
        if file is not None or settings or smoke or out is not None:
            raise UserError("--from: the run is already there; leave out the other options on it")

        from pgfed.paper.start import read

        return read(from_run, root, one_of, trusted)
    loaded = adapt(experiments.load(file, settings or [], smoke=smoke))

    from pgfed.paper.start import read, train
    from pgfed.results.folder.layout import choose, interrupted
    from pgfed.results.progress import progress_for

    folder = choose(out, loaded.name)
    runs = len(loaded.methods) * len(loaded.seeds)
    progress = progress_for(sys.stderr, runs, loaded.rounds, quiet=quiet)
    try:
        train(loaded, folder, root, progress)
    except KeyboardInterrupt:
        more = f", and the study takes it up with --from {folder}"
        raise interrupted(progress.where(), folder, more) from None
    own = allowing(name for _, name in experiments.own_names(loaded))
    return read(folder, root, one_of, own)  # what it names has just been run


def _fedavg_only(experiment: Experiment) -> Experiment:
    """FedAvg under one seed, with validation data to choose the step lengths on."""
    share = experiment.data.validation_share or 0.1
    return replace(
        experiment,
        methods=["fedavg"],
        seeds=experiment.seeds[:1],
        data=replace(experiment.data, validation_share=share),
    )


def _hold_out(experiment: Experiment) -> Experiment:
    from pgfed.paper.new_clients import SHARE

    share = experiment.data.new_clients or SHARE
    data = replace(experiment.data, new_clients=share)
    return replace(experiment, data=data)


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise UserError(f"{option}: found {text!r}; allowed: numbers above 0, with commas between")
    return list(dict.fromkeys(numbers))


def _jobs(setup: Setup, items: int) -> int:
    from pgfed.engine.parallel import jobs_for

    engine = setup.experiment.engine
    return 1 if engine.backend == "serial" else jobs_for(items, engine.workers, engine.device)


# -- after -------------------------------------------------------------------------------------


def _json(path: Path, content: Any) -> None:
    from pgfed.engine.storage.durable import write_atomic

    write_atomic(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _page(folder: Path) -> Path | None:
    """The report of the run, now with the study; none where the drawing library is missing."""
    from pgfed.report import rendering as reports

    return reports.write_page(folder) if reports.possible() else None


def _show_explicit(result: Explicit, setup: Setup, folder: Path) -> None:
    from pgfed.cli.terminal import tables as screens
    from pgfed.paper.explicit import row
    from pgfed.paper.printed import tables
    from pgfed.results.formats import count, percent
    from pgfed.results.formats import share_gain as points

    screen = screens.console()
    rows = []
    for arm in result.arms:
        r = row(result, arm)
        cells = (percent(r["accuracy_before"]), percent(r["accuracy_after"]))
        gain = (points(r["gain_mean"]), r["clients_harmed"], "chosen" if r["chosen"] else "")
        rows.append((arm.name, f"{arm.lr:g}", *cells, *gain))
    columns = ("objective", "lr", "before", "after", "gain", "clients lower", "")
    screen.print(screens.table(columns, rows))
    d = result.difference()
    steps = len(result.implicit.curve) - 1
    screen.print(
        f"After {count(steps, 'step')}: {result.explicit.name} "
        f"{points(row(result, result.explicit)['gain_mean'])} points, implicit "
        f"{points(row(result, result.implicit)['gain_mean'])}; difference {points(d.mean)} "
        f"(95 % interval over {count(len(result.clients), 'client')}: {points(d.low)} to "
        f"{points(d.high)}). Step lengths were chosen on {result.chosen_on} data.",
        soft_wrap=True,
    )
    paper = tables()["explicit_vs_implicit"]
    data = setup.experiment.data
    if (data.dataset, data.clients) == ("cifar10", paper["clients"]):
        screen.print(
            f"The paper, {paper['steps_S']} steps: explicit {paper['explicit_mean_gain']:+.2f}, "
            f"implicit {paper['implicit_mean_gain']:+.2f}; it does not say mu and step length.",
            soft_wrap=True,
        )
    screen.print(f"Written: {folder}/explicit.json, .csv, .png, .svg", markup=False, soft_wrap=True)


def _show_new_clients(curves: list[Curve], setup: Setup, new: int, folder: Path) -> None:
    from pgfed.cli.terminal import tables as screens
    from pgfed.paper.printed import DATASETS, METHODS, tables
    from pgfed.results.formats import count, percent

    data = setup.experiment.data
    printed = tables()["new_clients"].get(DATASETS.get(data.dataset, ""), {})
    rows = []
    for curve in curves:
        a = curve.accuracy
        best = f"{percent(a[curve.best_epoch])} (epoch {curve.best_epoch})"
        paper = printed.get(METHODS.get(curve.method, ""))
        shown = [percent(a[0]), percent(a[1]), best, percent(a[-1])]
        rows.append([curve.method, *shown, *([percent(paper / 100)] if paper else [""])])
    columns = [
        "method",
        "before",
        "after 1 epoch",
        "best (on test)",
        f"after {len(a) - 1}",
        "paper's best",
    ]
    if not printed:
        columns, rows = columns[:-1], [cells[:-1] for cells in rows]
    screen = screens.console()
    screen.print(screens.table(columns, rows))
    screen.print(
        f"Means over {count(new, 'new client')} that took no part in the training. "
        f"Written: {folder}/new_clients.json",
        soft_wrap=True,
        markup=False,
    )
