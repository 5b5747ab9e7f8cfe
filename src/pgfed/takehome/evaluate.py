"""`pgfed evaluate`: a client's models on its own test data, or on other data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.config.experiment import IN_MEMORY
from pgfed.data import matching as agreed
from pgfed.data.federation import Federation, Shard, build_seat
from pgfed.engine.setup import load_federation
from pgfed.errors import UserError
from pgfed.modules import NONE, Allowed
from pgfed.results.folder import layout
from pgfed.results.kept.manifest import Manifest
from pgfed.results.kept.models import Diverged, Model, kept_models
from pgfed.results.runs import RunData, client_title
from pgfed.takehome.metrics import Scores, objective_of, score


@dataclass(frozen=True)
class Row:
    """One model and its scores."""

    method: str
    model: str  # personal | global
    scores: Scores

    @property
    def name(self) -> str:
        return self.method if self.model == "personal" else f"{self.method}, global"


@dataclass(frozen=True)
class Evaluation:
    client: int
    name: str
    seed: int
    data: str
    unchanged: bool | None  # is the data what it was in the run? None: not the run's data
    classes: list[str]
    rows: list[Row]
    has_baseline: bool
    left_out: list[str]  # models that cannot be scored, each with the reason

    def as_json(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "seed": self.seed,
            "data": self.data,
            "data_fingerprint_matches": self.unchanged,
            "classes": self.classes,
            "models": [
                {"method": row.method, "model": row.model, **dataclasses.asdict(row.scores)}
                for row in self.rows
            ],
            "left_out": self.left_out,
        }


def evaluate(
    run: RunData,
    client: int | str,
    *,
    method: str | None,
    seed: int | None,
    data: str | None,
    data_root: Path,
    skip_bad: bool = False,
    allowed: Allowed = NONE,
) -> Evaluation:
    """The personalized models beside the baselines and the global ones."""
    client = layout.choose_client(run.clients.names, client)
    wanted = layout.choose_methods(run.experiment, run.path, method)
    chosen = layout.choose_seed(run.experiment, seed)
    baselines = [name for name, info in run.methods.items() if info.role == "baseline"]
    order = [*baselines, *(m for m in wanted if m not in baselines)]
    models, diverged = [], []
    for m in order:
        # A baseline has no global model: what it gives to new clients is the untrained start.
        kept = kept_models(run.path, m, chosen, allowed)
        for kind in ("personal",) if m in baselines else ("personal", "global"):
            try:
                personal = kind == "personal"
                model = kept.personal_model(client) if personal else kept.shared_model()
                models.append((m, kind, model))
            except Diverged as error:
                diverged.append(error)
    if not models:
        raise diverged[0]
    first = models[0][2]
    shard, unchanged = _data(run, client, first, data, data_root, skip_bad)
    objective = objective_of(first, allowed)
    rows = [Row(m, kind, score(model.module(), objective, shard)) for m, kind, model in models]
    return Evaluation(
        client=client,
        name=client_title(run.clients, client),
        seed=chosen,
        data=data or "own test data",
        unchanged=unchanged,
        classes=first.manifest.classes,
        rows=rows,
        has_baseline=bool(baselines),
        left_out=[str(error) for error in diverged],
    )


def _data(
    run: RunData, client: int, model: Model, name: str | None, root: Path, skip_bad: bool
) -> tuple[Shard, bool | None]:
    about = model.manifest
    if name is not None:
        return samples(name, model, root, skip_bad=skip_bad), None
    advice = "give test data with --data npz:PATH"
    federation = data_of_run(run, about, root, advice)
    if client >= len(federation):
        raise changed(run, advice)
    shard = federation.test(client)
    if not len(shard):
        raise UserError(f"client {client} has no test data of its own; give some with --data")
    return shard, federation.fingerprint == about.data_fingerprint


def data_of_run(run: RunData, about: Manifest, root: Path, advice: str) -> Federation:
    """The clients' data again, if it still is of the form that the models were trained on."""
    if run.experiment.data.dataset == IN_MEMORY:
        raise UserError(
            f"{run.path}: ran on arrays passed from Python, which are not in the folder; {advice}"
        )
    federation, _ = load_federation(run.experiment, root)
    if (federation.input_shape, list(federation.class_names)) != (about.shape, about.classes):
        raise changed(run, advice)
    return federation


def changed(run: RunData, advice: str) -> UserError:
    return UserError(
        f"{run.experiment.data.dataset}: has changed since the run: other clients, classes or "
        f"inputs; {advice}"
    )


def samples(name: str, model: Model, root: Path, *, skip_bad: bool = False) -> Shard:
    """All samples of own data; where they have a split, the test samples."""
    about = model.manifest
    dataset = agreed.load(
        name,
        root,
        classes=about.classes,
        input_shape=about.shape,
        input_type=about.normalisation.input,
        targets=about.targets,
        image_size=about.image_size,
        skip_bad=skip_bad,
        schema=model.table,
    )
    if dataset.split is not None:
        if not dataset.split.any():
            raise UserError(f"{name}: its split holds no test samples")
        test = np.flatnonzero(dataset.split)
        dataset = dataclasses.replace(
            dataset, x=dataset.x[test], y=dataset.y[test], split=None, validation=None
        )
    return build_seat(dataset, 0, ["0"], test_share=0.0, validation_share=0.0, seed=0).train(0)
