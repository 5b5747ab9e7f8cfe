"""The Python interface: `pgfed.run` on arrays, a `Federation` or a named data set."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pgfed.cli.terminal.progress import Progress, progress_for
from pgfed.config import experiment as experiments
from pgfed.config.experiment import IN_MEMORY, Data, Experiment, from_dict
from pgfed.config.schema import dotted
from pgfed.data.datasets import Dataset
from pgfed.data.federation import Federation
from pgfed.engine.rounds import Run
from pgfed.engine.runs import Keeper, Outcome, Setup, Watcher, divide, execute, prepare
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.model.networks import Factory, factory
from pgfed.results.models import Models, ModelsInFolder, ModelsInMemory, not_kept
from pgfed.results.writer import RunFolder, choose

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
del OPTIONS["dataset"], OPTIONS["sweep"]  # the first argument; for `pgfed sweep` only


def run(
    data: Any = None,
    *,
    methods: Sequence[str] | None = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    progress: bool = False,
    tensorboard: bool = False,
    **options: Any,
) -> Result:
    """Train one model per client with each method, and compare.

    ``data``: the name of a data set, ``npz:PATH``, ``folder:PATH``, arrays ``(x, y)`` or
    ``(x, y, client)``, or a `Federation`; by default the built-in digits. ``options`` are the keys
    of the experiment file by their last name (``clients=10, alpha=0.3, lr=0.01, seeds=[0, 1]``),
    ``model`` (also a callable), ``data_seed``, ``models``, and
    ``method={"pgfed": {"mu": 0.05}}``. Without ``out`` nothing is written to disk.
    ``tensorboard``: also write event files to ``out``/tensorboard while it runs.
    """
    if tensorboard and out is None:
        raise UserError("tensorboard: needs a run folder to write to; say out=DIR")
    given = {**options, "methods": methods, "rounds": rounds}
    given = {key: value for key, value in given.items() if value is not None}
    model = given.pop("model", None)
    if model is not None:
        given["model"] = _model_name(model) if callable(model) else model
    if data is not None:
        given["dataset"] = data if isinstance(data, str) else IN_MEMORY
    experiment = from_dict(_content(given))
    folder = None if out is None else choose(Path(out), experiment.name)
    federation = None
    if not (data is None or isinstance(data, str)):
        federation, table = _federation(data, experiment.data, set(given))
        experiment = experiment.model_copy(update={"data": table})
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
    watchers: list[Watcher] = [progress]
    if folder is None:
        kept = _KeptInMemory(setup)
        return Result(setup, execute(setup, watchers, kept), kept.models)
    with contextlib.ExitStack() as opened:
        if tensorboard:
            from pgfed.report.tensorboard import TensorBoard

            watchers.append(opened.enter_context(TensorBoard(folder, setup)))
        written = opened.enter_context(RunFolder(folder, setup, resume=resume, warn=progress.warn))
        outcomes = execute(setup, [written, *watchers], written)
        written.finish(outcomes)
    return Result(
        setup,
        outcomes,
        {
            (outcome.method, outcome.seed): ModelsInFolder(
                written.seed_folder(outcome.method, outcome.seed) / "models"
            )
            for outcome in outcomes
            if setup.keeps_models(outcome.seed)
        },
    )


class _KeptInMemory(Keeper):
    """The models of each run: those of the best round where asked for, else of the last."""

    def __init__(self, setup: Setup) -> None:
        self.models: dict[tuple[str, int], Models] = {}
        self._setup = setup

    def best(self, method: str, run: Run) -> None:
        if self._setup.keeps_models(run.seed):
            self.models[method, run.seed] = ModelsInMemory(run)

    def keep(self, run: Run, outcome: Outcome) -> None:
        if (outcome.method, outcome.seed) not in self.models:
            self.best(outcome.method, run)


class Result:
    """What a run gives: tables, histories, models, and the learned matrices.

    Tables are pandas DataFrames where pandas is installed, otherwise lists of dictionaries.
    Without a seed, the first one is meant.
    """

    def __init__(
        self,
        setup: Setup,
        outcomes: Sequence[Outcome],
        models: Mapping[tuple[str, int], Models],
    ) -> None:
        self.experiment = setup.experiment
        self.federation = setup.federation
        self.outcomes = list(outcomes)
        self._setup = setup
        self._models = models

    @property
    def summary(self) -> list[dict[str, Any]]:
        """As summary.json: one dictionary per method and seed."""
        return [outcome.summary for outcome in self.outcomes]

    def table(self) -> Any:
        return _frame(self.summary)

    def clients(self, method: str, seed: int | None = None) -> Any:
        """One row per client: sizes, accuracies, gain over Local."""
        return _frame(self._outcome(method, seed).clients(self.federation))

    def history(self, method: str, seed: int | None = None) -> Any:
        """One row per round."""
        return _frame(self._outcome(method, seed).history)

    def alpha(self, method: str = "pgfed", seed: int | None = None) -> Any:
        """The learned matrix A (N x N; the parts of a CSR matrix above 2,000 clients)."""
        alpha = self._outcome(method, seed).alpha
        if alpha is None:
            raise UserError(f"{method} learns no matrix; allowed: the methods of the PGFed family")
        return alpha.get("alpha", alpha)

    def model(self, client: int, method: str = "pgfed", seed: int | None = None) -> nn.Module:
        """The personalized model of a client, in evaluation mode."""
        clients = len(self.federation)
        if not 0 <= client < clients:
            raise UserError(f"client: found {client}; allowed: 0 to {clients - 1}")
        return self._module(self._kept(method, seed).personal(client))

    def global_model(self, method: str = "pgfed", seed: int | None = None) -> nn.Module:
        """The model a new client starts from, in evaluation mode."""
        return self._module(self._kept(method, seed).shared())

    def _outcome(self, method: str, seed: int | None) -> Outcome:
        name = algorithms.folder(method)
        if name not in self._setup.methods:
            raise unknown("method", method, self._setup.methods)
        wanted = self.experiment.seeds[0] if seed is None else seed
        for outcome in self.outcomes:
            if outcome.method == name and outcome.seed == wanted:
                return outcome
        raise UserError(
            f"seed: found {seed}; allowed: {', '.join(map(str, self.experiment.seeds))}"
        )

    def _kept(self, method: str, seed: int | None) -> Models:
        outcome = self._outcome(method, seed)
        key = (outcome.method, outcome.seed)
        if key not in self._models:
            raise not_kept(*key)
        return self._models[key]

    def _module(self, state: dict[str, torch.Tensor]) -> nn.Module:
        federation = self.federation
        with torch.random.fork_rng(devices=[]):  # the values it starts with are replaced
            module = factory(self._setup.model)(federation.input_shape, len(federation.class_names))
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


def _federation(data: Any, table: Data, given: set[str]) -> tuple[Federation, Data]:
    """The federation for data in memory, and the [data] table that tells of it."""
    if isinstance(data, Federation):
        about = [key for key in OPTIONS if OPTIONS[key].startswith("data.") and key in given]
        if about:
            raise UserError(f"option {about[0]!r}: the Federation that was passed has its own")
        update = {"clients": len(data), "partition": "given"}
        return data, table.model_copy(update=update)
    if not (isinstance(data, tuple | list) and len(data) in (2, 3)):
        raise UserError(
            f"data: found {type(data).__name__}; allowed: a data set's name, (x, y), "
            "(x, y, client) or a Federation"
        )
    if table.image_size is not None:
        raise UserError("image_size: allowed with folder:PATH and office-home only")
    x, y, *client = (np.asarray(array) for array in data)
    dataset = Dataset.from_arrays("data", x, y, client=client[0] if client else None)
    return divide(dataset, table)


def _model_name(model: Factory) -> str:
    """package.module:factory, as the experiment file would name it."""
    name = getattr(model, "__qualname__", type(model).__qualname__)
    return f"{getattr(model, '__module__', type(model).__module__)}:{name}"


def _frame(rows: list[dict[str, Any]]) -> Any:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module("pandas").DataFrame(rows)
    return rows
