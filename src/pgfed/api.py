"""The Python interface: `pgfed.run` on arrays, a `Federation` or a named data set, and `open`."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pgfed.config import experiment as experiments
from pgfed.config.experiment import IN_MEMORY, from_dict
from pgfed.config.schema import dotted
from pgfed.config.tables import Data, Experiment
from pgfed.data import memory
from pgfed.data.dataset import Dataset, Options
from pgfed.data.federation import Federation
from pgfed.data.tables.schema import from_plain
from pgfed.engine.callbacks import Callback
from pgfed.engine.objective import targets_of
from pgfed.engine.setup import Setup, divide, load_federation, prepare, read_schema
from pgfed.errors import NOTES, UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.model.networks import Factory
from pgfed.modules import allowed
from pgfed.results.folder.layout import choose, choose_client
from pgfed.results.folder.reader import load
from pgfed.results.kept.models import Models, ModelsInFolder, not_kept
from pgfed.results.progress import Progress, progress_for
from pgfed.results.recording import Kept, models_in, record
from pgfed.results.runs import RunData, SeedRun
from pgfed.results.summary import alone_of, client_rows, each_run, summaries

# Options of `run` whose name is not simply the last part of their key.
RENAMED = {
    "model.name": "model",
    "data.seed": "data_seed",
    "output.models": "models",
    "attack.kind": "attack",
    "attack.share": "attack_share",
    "attack.strength": "attack_strength",
}
OPTIONS = {RENAMED.get(key, key.rpartition(".")[2]): key for key in dotted(Experiment)}
# The first argument; for files only; for `pgfed sweep` only.
del OPTIONS["dataset"], OPTIONS["format"], OPTIONS["sweep"]


def run(
    data: Any = None,
    *,
    datasets: Mapping[str, Any] | None = None,
    target: str | Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    progress: bool = False,
    tensorboard: bool = False,
    **options: Any,
) -> Result:
    """Train one model per client with each method, and compare.

    ``data``: the name of a data set, ``KIND:PATH`` (npz, folder, csv, parquet), arrays ``(x, y)``
    or ``(x, y, client)``, a DataFrame, or a `Federation`; by default the built-in digits. Or
    ``datasets={"north": ..., ...}``, one per site: DataFrames, arrays ``(x, y)``, lists of pairs,
    or torch's map-style data sets, which are copied once to a file in $TMPDIR. Memory-mapped arrays
    stay in files. ``target``: the columns of a DataFrame that are predicted, unless ``schema`` (a
    path, or what such a file holds) says so. ``options`` are the keys of the experiment file by
    their last name (``clients=10, lr=0.01, seeds=[0, 1]``), ``model`` (also a callable),
    ``data_seed``, ``models``, ``method={"pgfed": {"mu": 0.05}}``. Without ``out`` no run folder.
    ``tensorboard``: also write event files to ``out``/tensorboard while it runs.
    """
    if tensorboard and out is None:
        raise UserError("tensorboard: needs a run folder to write to; say out=DIR")
    given = {**options, "methods": methods, "rounds": rounds}
    given = {key: value for key, value in given.items() if value is not None}
    model = given.pop("model", None)
    if datasets is not None:
        if data is not None:
            raise UserError("data, datasets: found both; allowed: one of them")
        data = datasets
    schema = given.pop("schema") if isinstance(given.get("schema"), Mapping) else None
    if model is not None:
        given["model"] = _model_name(model) if callable(model) else model
    if data is not None:
        given["dataset"] = data if isinstance(data, str) else IN_MEMORY
    experiment = from_dict(_content(given))
    folder = None if out is None else choose(Path(out), experiment.name)
    if folder is not None and callable(model):
        _say_homeless(model)
    federation = None
    if not (data is None or isinstance(data, str)):
        known, table = read_schema(experiment.data, experiments.data_root(data_root))
        if schema is not None:
            known = from_plain(schema, "schema")
        form = targets_of(experiment.task)
        how = Options(skip_bad=table.skip_bad, schema=known, targets=form)
        federation, table = _federation(data, replace(experiment, data=table), given, how, target)
        experiment = replace(experiment, data=table)
    elif target is not None:
        raise UserError("target: allowed with DataFrames; of files the schema says it")
    setup = prepare(
        experiment,
        experiments.data_root(data_root),
        federation=federation,
        model=model if callable(model) else None,
    )
    runs = len(setup.methods) * len(experiment.seeds)
    with progress_for(sys.stderr, runs, experiment.rounds, quiet=not progress) as shown:
        return run_setup(setup, folder, shown, tensorboard=tensorboard)


def run_setup(
    setup: Setup,
    folder: Path | None,
    progress: Progress,
    *,
    resume: bool = False,
    tensorboard: bool = False,
) -> Result:
    """Run everything; with a folder the models are read back from it, without they are kept.

    ``resume``: go on with what the folder holds. ``tensorboard``: write event files into it.
    """
    callbacks: list[Callback] = [progress]
    with contextlib.ExitStack() as opened:
        if tensorboard and folder is not None:
            from pgfed.report.tensorboard import TensorBoard

            callbacks.append(opened.enter_context(TensorBoard(folder, setup)))
        data, models = record(setup, folder, callbacks, resume=resume, warn=progress.warn)
    return Result(data, models, setup=setup)


def open(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    allow_modules: Sequence[str] = (),
) -> Result:
    """What `run` gave, from its folder; methods that have not finished are left out.

    A model of one's own, ``package.module:factory``, is imported, when it is asked for, only if
    ``allow_modules`` holds its module.
    """
    data = load(Path(path).expanduser())
    models = models_in(data, allowed(allow_modules))
    return Result(data, models, data_root=experiments.data_root(data_root))


class Result:
    """What a run gives: tables, histories, models, and the learned matrices.

    Tables are pandas DataFrames where pandas is installed, otherwise lists of dictionaries.
    Without a seed, the first one is meant.
    """

    def __init__(
        self,
        data: RunData,
        models: Kept,
        *,
        setup: Setup | None = None,
        data_root: Path | None = None,
    ) -> None:
        self.data = data
        self.experiment = data.experiment
        self._models = models
        self._setup = setup
        self._data_root = data_root

    @cached_property
    def federation(self) -> Federation:
        """The clients' data; of a run that was opened, read again."""
        if self._setup is not None:
            return self._setup.federation
        return load_federation(self.experiment, experiments.data_root(self._data_root))[0]

    @property
    def runs(self) -> list[SeedRun]:
        """By method, then by seed."""
        return list(each_run(self.data))

    @property
    def summary(self) -> list[dict[str, Any]]:
        """As summary.json: one dictionary per method and seed."""
        return summaries(self.data)

    def table(self) -> Any:
        return _frame(self.summary)

    def clients(self, method: str, seed: int | None = None) -> Any:
        """One row per client: sizes, scores, gain over Local, every metric."""
        run = self._run(method, seed)
        return _frame(
            client_rows(run, alone_of(self.data, run.seed), self.data.clients, self.data.metric)
        )

    def history(self, method: str, seed: int | None = None) -> Any:
        """One row per round."""
        return _frame(self._run(method, seed).history.records)

    def alpha(self, method: str = "pgfed", seed: int | None = None) -> Any:
        """The learned matrix A (N x N; the parts of a CSR matrix above 2,000 clients)."""
        alpha = self._run(method, seed).matrix
        if alpha is None:
            raise UserError(f"{method} learns no matrix; allowed: the methods of the PGFed family")
        return alpha.get("alpha", alpha)

    def model(self, client: int | str, method: str = "pgfed", seed: int | None = None) -> nn.Module:
        """The personalized model of a client, by its number or its name; in evaluation mode."""
        number = choose_client(self.data.clients.names, client)
        kept = self._kept(method, seed)
        return self._module(kept, kept.personal(number))

    def global_model(self, method: str = "pgfed", seed: int | None = None) -> nn.Module:
        """The model a new client starts from, in evaluation mode."""
        kept = self._kept(method, seed)
        return self._module(kept, kept.shared())

    def _run(self, method: str, seed: int | None) -> SeedRun:
        name = algorithms.folder(method)
        if name not in self.data.runs:
            raise unknown("method", method, self.data.runs)
        runs = self.data.runs[name]
        wanted = next(iter(runs)) if seed is None else seed
        if wanted not in runs:
            raise UserError(f"seed: found {seed}; allowed: {', '.join(map(str, runs))}")
        return runs[wanted]

    def _kept(self, method: str, seed: int | None) -> Models:
        run = self._run(method, seed)
        if (run.method, run.seed) not in self._models:
            raise not_kept(run.method, run.seed)
        return self._models[run.method, run.seed]

    def _module(self, kept: Models, state: dict[str, torch.Tensor]) -> nn.Module:
        if self._setup is not None:
            federation, make = self._setup.federation, self._setup.model
            shape, classes = federation.input_shape, len(federation.class_names)
        else:
            assert isinstance(kept, ModelsInFolder), "what was opened lies in a folder"
            about, make = kept.manifest, kept.factory()
            shape, classes = about.shape, len(about.classes)
        with torch.random.fork_rng(devices=[]):  # the values it starts with are replaced
            module = make(shape, classes)
        module.load_state_dict(state)
        return module.eval()


def _content(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as an experiment file would hold them."""
    content: dict[str, Any] = {}
    for name, value in given.items():
        if name == "dataset":
            key = "data.dataset"
        elif name in OPTIONS:
            key = OPTIONS[name]
        else:
            raise unknown("option", name, [*OPTIONS, "out", "data_root", "progress", "tensorboard"])
        table, _, leaf = key.rpartition(".")
        value = list(value) if isinstance(value, tuple | range) else value
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        (content.setdefault(table, {}) if table else content)[leaf] = value
    return content


def _federation(
    data: Any,
    experiment: Experiment,
    given: Mapping[str, Any],
    options: Options,
    target: str | Sequence[str] | None,
) -> tuple[Federation, Data]:
    """The federation for data in memory, and the [data] table that tells of it."""
    table, targets = experiment.data, options.targets
    if isinstance(data, Federation):
        about = [key for key in OPTIONS if OPTIONS[key].startswith("data.") and key in given]
        if about:
            raise UserError(f"option {about[0]!r}: the Federation that was passed has its own")
        if data.targets != targets:
            raise UserError(
                f"task.kind: {experiment.task.kind!r} needs a Federation of {targets}; found one "
                f"of {data.targets}"
            )
        return data, replace(table, clients=len(data), partition="given")
    if table.image_size is not None:
        raise UserError("image_size: allowed with folder:PATH and office-home only")
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


def _frame(rows: list[dict[str, Any]]) -> Any:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module("pandas").DataFrame(rows)
    return rows
