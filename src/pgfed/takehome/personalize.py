"""`pgfed personalize`: each client's class shares put on the models of a finished simulation.

The newest global model is corrected from the federation's class shares to each client's own
(personal.frame = "serving"), and blended with the client's own model where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pgfed.config.experiment import make_methods, to_go_on
from pgfed.config.settings import senseless
from pgfed.data.federation import Federation
from pgfed.engine.client import one_thread
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm
from pgfed.methods.settings import PersonalConfig
from pgfed.model import frames
from pgfed.model.metrics import Metric
from pgfed.model.networks import make_task
from pgfed.model.task import Task
from pgfed.modules import NONE, Allowed
from pgfed.results.folder import layout
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.models import ModelsInFolder, kept_models
from pgfed.results.kept.writing import model_files, write_frozen, write_model
from pgfed.results.runs import RunData
from pgfed.results.statistics import Comparison, Paired
from pgfed.takehome.evaluate import changed, data_of_run
from pgfed.takehome.metrics import objective_of


@dataclass(frozen=True)
class Personalized:
    """A method's models before and after."""

    method: str
    kept: ModelsInFolder
    blend: float  # share of the client's own model
    before: NDArray[np.float64]  # per client, of the model that the run kept
    after: NDArray[np.float64]
    models: list[Tensor]

    @property
    def difference(self) -> Comparison:
        """With an interval over clients."""
        rows = {"after": self.after[None], "before": self.before[None]}
        return Paired(rows).difference("after", "before")


@dataclass(frozen=True)
class Outcome:
    """What came of it, method by method; and for which methods it makes no sense."""

    task: Task
    federation: Federation
    seed: int
    shares: Tensor
    methods: list[Personalized]
    left_out: dict[str, str]

    @property
    def metric(self) -> Metric:
        return self.task.objective.primary

    def as_json(self) -> dict[str, Any]:
        rows = [
            {
                "method": m.method,
                "blend": m.blend,
                "before": float(np.nanmean(m.before)),
                "after": float(np.nanmean(m.after)),
                "difference": [m.difference.mean, m.difference.low, m.difference.high],
            }
            for m in self.methods
        ]
        return {"seed": self.seed, "methods": rows, "left_out": self.left_out}


def personalize(
    run: RunData,
    *,
    method: str | None,
    seed: int | None,
    blend: float,
    data_root: Path,
    allowed: Allowed = NONE,
) -> Outcome:
    """Correct the kept models of a run, and score them on the clients' own test data."""
    chosen = layout.choose_seed(run.experiment, seed)
    wanted = layout.choose_methods(run.experiment, run.path, method)
    algorithms, _ = make_methods(to_go_on(run.path, allowed))
    kept = {name: kept_models(run.path, name, chosen, allowed) for name in wanted}
    left_out = {m: why for m in wanted if (why := _senseless(algorithms[m], kept[m])) is not None}
    if not (fit := [name for name in wanted if name not in left_out]):
        raise UserError(f"{run.path}: {'; '.join(f'{m}: {why}' for m, why in left_out.items())}")
    first = kept[fit[0]].shared_model()
    federation = data_of_run(run, first.manifest, data_root, "there is nothing to count")
    if federation.fingerprint != first.manifest.data_fingerprint:
        raise changed(run, "put the data back")
    task = make_task(
        kept[fit[0]].factory(),
        first.manifest.shape,
        len(first.manifest.classes),
        seed=chosen,
        example=federation.example(),
        head=first.manifest.head,
        objective=objective_of(first, allowed),
    )
    task.put_frozen(first.values)
    frames.check(task, "all", "personal.frame")
    counts = [federation.train(i).class_counts(task.outputs) for i in range(len(federation))]
    shares = frames.shares(torch.stack(counts).sum(0)).float()
    found = []
    with one_thread():
        for name in fit:
            share = blend if algorithms[name].personal_from == "own" else 0.0
            found.append(_one(task, federation, name, kept[name], counts, shares, share))
    return Outcome(task, federation, chosen, shares, found, left_out)


def _senseless(algorithm: Algorithm, kept: ModelsInFolder) -> str | None:
    """Why a method's models are left as they are."""
    if kept.manifest.frame != "none":
        return f"its models have a frame already ({kept.manifest.frame})"
    own = algorithm.personal_from == "own"
    wanted = PersonalConfig("serving", 0.0 if own else 1.0)
    return next(iter(senseless(algorithm, wanted).values()), None)


def _one(
    task: Task,
    federation: Federation,
    method: str,
    kept: ModelsInFolder,
    counts: list[Tensor],
    shares: Tensor,
    blend: float,
) -> Personalized:
    newest = task.flat(kept.shared())
    before: list[float] = []
    after: list[float] = []
    models: list[Tensor] = []
    for i, own in enumerate(counts):
        theta = task.folded(newest, frames.corrected(own, shares))
        last = task.flat(kept.personal(i))
        models.append(torch.lerp(theta, last, blend) if blend else theta)
        test = federation.test(i)
        for scores, model in ((before, last), (after, models[-1])):
            score = task.score(model, test).score if len(test) else None
            scores.append(np.nan if score is None else score)
    return Personalized(method, kept, blend, np.array(before), np.array(after), models)


def write(outcome: Outcome, folder: Path) -> None:
    """Models and manifest of each method, as in a run folder."""
    names = model_files(outcome.federation)
    for made in outcome.methods:
        place = folder / made.method / f"seed-{outcome.seed}" / layout.MODELS
        try:
            place.mkdir(parents=True)
            rows = []
            for i, theta in enumerate(made.models):
                file = write_model(place / names[i], outcome.task.named(theta))
                score = None if np.isnan(made.after[i]) else float(made.after[i])
                row = made.kept.manifest.clients[i].model_dump()
                rows.append({**row, "score": score, **file})
            about = made.kept.manifest.about()
            how = {"frame": "serving", "blend": made.blend, "refresh": False}
            content = {
                **about,
                "hyperparameters": {**about["hyperparameters"], "personal": how},
                "class_shares": [round(float(share), 9) for share in outcome.shares],
                "global": None,
                "frozen": write_frozen(place, outcome.task),
                "clients": rows,
            }
            manifests.write(place, content)
        except OSError as error:
            where = error.filename or place
            raise UserError(f"{where}: cannot be written ({error.strerror})") from None
