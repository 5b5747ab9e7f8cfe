"""The trained models that a study starts from: those of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from pgfed.config import experiment as experiments
from pgfed.config.tables import Experiment
from pgfed.engine.setup import Setup, prepare
from pgfed.errors import UserError
from pgfed.model.metrics import ACCURACY
from pgfed.model.networks import make_task
from pgfed.model.task import Task
from pgfed.modules import NONE, Allowed
from pgfed.results.folder import layout
from pgfed.results.folder.layout import seed_folder
from pgfed.results.kept.manifest import NAME
from pgfed.results.kept.models import ModelsInFolder
from pgfed.results.progress import Progress
from pgfed.results.recording import record


@dataclass(frozen=True)
class Start:
    """A finished run, and the global model of each method and seed."""

    folder: Path
    setup: Setup
    models: dict[tuple[str, int], Tensor]

    def task(self) -> Task:
        return _task(self.setup)


def train(experiment: Experiment, folder: Path, root: Path, progress: Progress) -> None:
    """Run the experiment as `pgfed run` would, and keep its models."""
    output = replace(experiment.output, models="all")
    setup = _prepared(replace(experiment, output=output), root)
    with progress:
        record(setup, folder, [progress], warn=progress.warn)


def read(folder: Path, root: Path, one_of: Sequence[str] = (), allowed: Allowed = NONE) -> Start:
    """The models of a run folder; with ``one_of``, of the first of these that it has."""
    setup = _prepared(experiments.to_go_on(folder, allowed), root)
    task = _task(setup)
    models = {}
    wanted = [name for name in one_of if name in setup.methods] or one_of
    for method in wanted[:1] or setup.methods:
        for seed in setup.experiment.seeds:
            at = seed_folder(folder, method, seed) / layout.MODELS
            if not (at / NAME).is_file():
                raise UserError(
                    f"{at}: no models there; the study needs a finished run of {method} with "
                    "output.models = 'all'"
                )
            kept = ModelsInFolder(at)
            if kept.manifest.data_fingerprint != setup.federation.fingerprint:
                raise UserError(f"{folder}: the data is not what the run was trained on any more")
            models[method, seed] = task.flat(kept.shared())
    return Start(folder, setup, models)


def _prepared(experiment: Experiment, root: Path) -> Setup:
    setup = prepare(experiment, root)
    objective = setup.objective
    if not objective.classifies or objective.metric != ACCURACY.name:
        raise UserError(
            f"task: found {setup.experiment.task.kind}, judged by {objective.metric}; allowed in "
            "the paper's studies: classes, judged by accuracy"
        )
    return setup


def _task(setup: Setup) -> Task:
    experiment, federation = setup.experiment, setup.federation
    return make_task(
        setup.model,
        federation.input_shape,
        len(federation.class_names),
        seed=experiment.seeds[0],
        example=federation.example(),
        head=experiment.model.head,
        objective=setup.objective,
        device=experiment.engine.device,
    )
