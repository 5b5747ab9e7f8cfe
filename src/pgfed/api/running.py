"""`pgfed.run`: an experiment from Python, on arrays, a `Federation` or a named data set."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Never, cast

import numpy as np

from pgfed.api.result import Result
from pgfed.api.tables import (
    AttackTable,
    DataTable,
    EngineTable,
    ModelTable,
    OutputTable,
    PersonalTable,
    PrivacyTable,
    Samples,
    ServerTable,
    TaskTable,
    TrainTable,
)
from pgfed.config import experiment as experiments
from pgfed.config.experiment import IN_MEMORY, from_dict
from pgfed.config.schema import dotted
from pgfed.config.tables import DEFAULT_METHODS, TENSORBOARD, Data, Experiment
from pgfed.data import memory
from pgfed.data.dataset import Dataset, Options
from pgfed.data.federation import Federation
from pgfed.data.tables.schema import from_plain
from pgfed.engine.callbacks import Callback, Callbacks
from pgfed.engine.objective import targets_of
from pgfed.engine.setup import Setup, divide, prepare, read_schema
from pgfed.errors import NOTES, UserError
from pgfed.model.networks import Factory
from pgfed.modules import load_object
from pgfed.results.folder.jobs import Job
from pgfed.results.folder.layout import choose
from pgfed.results.progress import Progress, progress_for
from pgfed.results.recording import record
from pgfed.results.runs import client_names


def run(
    data: Samples | DataTable | None = None,
    *,
    datasets: Mapping[str, Any] | None = None,
    target: str | Sequence[str] | None = None,
    methods: Sequence[str] = DEFAULT_METHODS,
    rounds: int = 40,
    seeds: Sequence[int] = (0,),
    cohort: float | None = None,
    evaluate_every: int = 1,
    start_from: str | Path | None = None,
    name: str | None = None,
    task: TaskTable | None = None,
    model: str | Factory | ModelTable | None = None,
    train: TrainTable | None = None,
    method: Mapping[str, Mapping[str, Any]] | None = None,
    personal: PersonalTable | None = None,
    privacy: PrivacyTable | None = None,
    server: ServerTable | None = None,
    engine: EngineTable | None = None,
    attack: AttackTable | None = None,
    output: OutputTable | None = None,
    callbacks: Sequence[str | Callback] = (),
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    progress: bool = False,
    **unknown: Never,
) -> Result:
    """Train one model per client with each method, and compare.

    ``data``: the name of a data set, ``KIND:PATH`` (npz, folder, csv, parquet), arrays ``(x, y)``
    or ``(x, y, client)``, a DataFrame, or a `Federation`; by default the built-in digits. Or the
    whole table: ``{"dataset": (x, y), "clients": 10}``. ``datasets={"north": ..., ...}`` instead:
    one per site, DataFrames, arrays ``(x, y)``, lists of pairs, or torch's map-style data sets,
    which are copied once to a file in $TMPDIR. Memory-mapped arrays stay in files. ``target``: the
    columns of a DataFrame that are predicted, unless ``data["schema"]`` says so.

    All else is the experiment file: its keys, and its tables as dictionaries, ``train={"lr":
    0.01}, method={"pgfed": {"mu": 0.05}}``; `pgfed settings` explains each. ``model`` may be its
    name or factory alone. ``callbacks`` are told of each round: objects, or names as in the file
    ("tensorboard", "package.module:Class"). Without ``out`` there is no run folder; ``progress``
    shows how it goes.
    """
    _refuse(unknown)
    table, samples = _data(data, datasets)
    made, factory = _model(model)
    schema = table.pop("schema") if isinstance(table.get("schema"), Mapping) else None
    given = {
        "methods": methods, "rounds": rounds, "seeds": seeds, "cohort": cohort,
        "evaluate_every": evaluate_every, "name": name, "data": table, "task": task, "model": made,
        "train": train, "method": method, "personal": personal, "privacy": privacy,
        "server": server, "engine": engine, "attack": attack,
        "start_from": None if start_from is None else str(start_from),
    }  # fmt: skip
    named = [callback for callback in callbacks if isinstance(callback, str)]
    given["output"] = {**(output or {}), "callbacks": named}
    content = {key: _plain(value) for key, value in given.items() if value is not None}
    experiment = from_dict(content)
    folder = None if out is None else choose(Path(out), experiment.name)
    if folder is not None and factory is not None:
        _say_homeless(factory)
    root = experiments.data_root(data_root)
    federation = None
    if samples is not None:
        federation, experiment = _in_memory(samples, experiment, table, schema, target, root)
    elif target is not None:
        raise UserError("target: allowed with DataFrames; of files the schema says it")
    setup = prepare(experiment, root, federation=federation, model=factory)
    runs = len(setup.methods) * len(experiment.seeds)
    with progress_for(sys.stderr, runs, experiment.rounds, quiet=not progress) as shown:
        own = [callback for callback in callbacks if not isinstance(callback, str)]
        return run_setup(setup, folder, shown, own)


def run_setup(
    setup: Setup,
    folder: Path | None,
    progress: Progress,
    callbacks: Sequence[Callback] = (),
    *,
    resume: bool = False,
    only: Job | None = None,
) -> Result:
    """Run everything; with a folder the models are read back from it, without they are kept.

    ``callbacks`` are told beside those that the experiment names. ``resume``: go on with what the
    folder holds. ``only``: run one method and seed into a folder that others fill, too.
    """
    told = [*map(_callback, setup.experiment.output.callbacks), *map(_is_callback, callbacks)]
    names = client_names(setup.federation)
    with Callbacks(told, setup, names, folder) as users:
        data, models = record(
            setup, folder, [progress, users], resume=resume, only=only, warn=progress.warn
        )
    return Result(data, models, folder=folder, setup=setup)


def _callback(name: str) -> Callback:
    """The one that the experiment names; it takes no arguments."""
    if name == TENSORBOARD:
        from pgfed.report.tensorboard import TensorBoard

        return TensorBoard()
    made = load_object("output.callbacks", name)
    return _is_callback(made() if isinstance(made, type) else made)


def _is_callback(found: Any) -> Callback:
    if not isinstance(found, Callback):
        name = type(found).__name__
        raise UserError(f"callbacks: found {name}; allowed: subclasses of pgfed.Callback")
    return found


# -- arguments ---------------------------------------------------------------------------------


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Arguments that there are not; 0.1 took keys of the tables by their last name."""
    for name in unknown:
        keys = [key for key in dotted(Experiment) if key.rpartition(".")[2] == name]
        if not keys:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
        table, _, leaf = keys[0].rpartition(".")
        raise UserError(f"{name}: is a key of [{table}]; write {table}={{{leaf!r}: ...}}")


def _data(
    data: Samples | DataTable | None, datasets: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Any]:
    """The [data] table, and the samples that lie in memory, if they do."""
    table: dict[str, Any] = {}
    if isinstance(data, Mapping):
        table = dict(data)
        for key, value in table.items():
            if key not in DataTable.__annotations__ and hasattr(value, "__len__"):
                raise UserError(
                    f"data: found a dictionary with {key!r}; allowed: keys of [data]; one data "
                    "set per site is datasets={...}"
                )
    elif data is not None:
        table = {"dataset": data}
    samples = table.get("dataset")
    if datasets is not None:
        if samples is not None:
            raise UserError("data, datasets: found both; allowed: one of them")
        samples = datasets
    if samples is None or isinstance(samples, str):
        return table, None
    return {**table, "dataset": IN_MEMORY}, samples


def _model(
    model: str | Factory | ModelTable | None,
) -> tuple[dict[str, Any] | None, Factory | None]:
    """The [model] table, and the factory that was passed, if one was."""
    if model is None:
        return None, None
    table: dict[str, Any] = dict(model) if isinstance(model, Mapping) else {"name": model}
    name = table.get("name")
    if not callable(name):
        return table, None
    factory = cast(Factory, name)
    return {**table, "name": _model_name(factory)}, factory


def _plain(value: Any) -> Any:
    """As an experiment file would hold it."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | range | list):
        return [_plain(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _in_memory(
    samples: Any,
    experiment: Experiment,
    given: Mapping[str, Any],
    schema: Mapping[str, Any] | None,
    target: str | Sequence[str] | None,
    root: Path,
) -> tuple[Federation, Experiment]:
    """The federation for data in memory, and the experiment whose [data] table tells of it."""
    known, table = read_schema(experiment.data, root)
    if schema is not None:
        known = from_plain(schema, "schema")
    form = targets_of(experiment.task)
    how = Options(skip_bad=table.skip_bad, schema=known, targets=form)
    asked = replace(experiment, data=table)
    federation, table = _federation(samples, asked, list(given), how, target)
    return federation, replace(experiment, data=table)


def _federation(
    data: Any,
    experiment: Experiment,
    given: Sequence[str],
    options: Options,
    target: str | Sequence[str] | None,
) -> tuple[Federation, Data]:
    """The federation for data in memory, and the [data] table that tells of it."""
    table, targets = experiment.data, options.targets
    if isinstance(data, Federation):
        for key in given:
            if key != "dataset":
                raise UserError(f"data.{key}: the Federation that was passed has its own")
        if data.targets != targets:
            raise UserError(
                f"task.kind: {experiment.task.kind!r} needs a Federation of {targets}; found one "
                f"of {data.targets}"
            )
        return data, replace(table, clients=len(data), partition="given")
    if table.image_size is not None:
        raise UserError("data.image_size: allowed with folder:PATH and office-home only")
    target = [target] if isinstance(target, str) else target
    if isinstance(data, Mapping):
        return divide(memory.from_sites(data, options, target), table)
    if memory.is_table(data):
        return divide(memory.from_frames({"data": data}, None, options, target), table)
    if not (isinstance(data, tuple | list) and len(data) in (2, 3)):
        raise UserError(
            f"data: found {type(data).__name__}; allowed: a data set's name, (x, y), "
            "(x, y, client), a DataFrame or a Federation; datasets= takes one per site"
        )
    x, y, *client = (np.asarray(array) for array in data)
    dataset = Dataset.from_arrays(
        memory.NAME, x, y, client=client[0] if client else None, targets=options.targets
    )
    return divide(dataset, table)


def _model_name(model: Factory) -> str:
    """package.module:factory, as the experiment file would name it."""
    name = getattr(model, "__qualname__", type(model).__qualname__)
    return f"{getattr(model, '__module__', type(model).__module__)}:{name}"


def _say_homeless(model: Factory) -> None:
    """Said before the training, not when somebody wants to use what it gave."""
    name = _model_name(model)
    if name.startswith("__main__:") or "<" in name:
        NOTES.warning(
            f"model: {name} lives in a notebook, a script or a function, so the model files of "
            "this run can be opened nowhere else; put it into a module, and pass it from there"
        )
