"""`pgfed evaluate --across`: every client's model on every client's test data. Does ours travel?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.modules import NONE, Allowed
from pgfed.results.folder import layout
from pgfed.results.kept.models import Diverged, kept_models
from pgfed.results.runs import RunData
from pgfed.results.statistics import Floats
from pgfed.takehome.evaluate import changed, data_of_run
from pgfed.takehome.metrics import objective_of, primary


@dataclass(frozen=True)
class Across:
    """Whose model (rows) on whose test data (columns); NaN where that is undefined."""

    method: str
    seed: int
    metric: Metric
    names: list[str]
    scores: Floats
    left_out: list[str]  # models that cannot be scored, each with the reason

    @property
    def own(self) -> float:
        """The mean of the models at home."""
        return float(np.nanmean(np.diag(self.scores)))

    @property
    def away(self) -> float:
        """The mean of the models elsewhere."""
        elsewhere = ~np.eye(len(self.scores), dtype=np.bool_)
        return float(np.nanmean(self.scores[elsewhere])) if elsewhere.any() else float("nan")

    def as_json(self) -> dict[str, Any]:
        rows = [[None if np.isnan(v) else float(v) for v in row] for row in self.scores]
        return {
            "method": self.method,
            "seed": self.seed,
            "metric": self.metric.name,
            "clients": self.names,
            "scores": rows,
            "left_out": self.left_out,
        }


def across(
    run: RunData,
    *,
    method: str | None,
    seed: int | None,
    data_root: Path,
    allowed: Allowed = NONE,
) -> Across:
    """Score them all; one model is in memory at a time."""
    name = layout.choose_method(run.experiment, run.path, method)
    chosen = layout.choose_seed(run.experiment, seed)
    kept = kept_models(run.path, name, chosen, allowed)
    advice = "--across needs everybody's test data"
    federation, n = data_of_run(run, kept.manifest, data_root, advice), len(run.clients)
    if len(federation) != n:
        raise changed(run, advice)
    scores, left_out = np.full((n, n), np.nan), []
    for i in range(n):
        try:
            model = kept.personal_model(i)
        except Diverged as error:
            left_out.append(str(error))
            continue
        module, objective = model.module(), objective_of(model, allowed)
        for j in range(n):
            if not len(test := federation.test(j)):
                continue
            value = primary(module, objective, test)
            scores[i, j] = np.nan if value is None else value
    return Across(name, chosen, run.metric, list(run.clients.names), scores, left_out)
