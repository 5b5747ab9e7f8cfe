"""How good a model is on a set of samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pgfed.config.schema import check
from pgfed.config.tables import Task
from pgfed.data.federation import Shard
from pgfed.engine.objective import make_objective
from pgfed.model.objectives import Objective
from pgfed.modules import Allowed
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.models import Model

BATCH = 256


@dataclass(frozen=True)
class Scores:
    """What cannot be said (a metric that is undefined, a class without samples) is None."""

    samples: int
    metrics: dict[str, float | None]  # the primary one first
    recall: list[float | None] | None  # by class; None where the task is no classification
    confusion: list[list[int]] | None  # true class (rows) by predicted class


def objective_of(model: Model, allowed: Allowed) -> Objective:
    """What the model was trained for, and is judged by; one of a user's own only if allowed."""
    about, file = model.manifest, model.path.parent / manifests.NAME
    table = check(Task, about.task, "task")
    if ":" in table.kind:
        allowed.check("task.kind", table.kind, file)
    return make_objective(table, about.classes)


@torch.no_grad()
def _pairs(module: nn.Module, objective: Objective, data: Shard) -> list[tuple[Tensor, Tensor]]:
    """(outputs as scoring needs them, targets), batch by batch."""
    pairs = []
    for start in range(0, len(data), BATCH):
        x, y = data.batch(slice(start, start + BATCH))
        pairs.append((objective.reduced(module(x)), y))
    return pairs


def primary(module: nn.Module, objective: Objective, data: Shard) -> float | None:
    """The primary metric alone."""
    return objective.score(_pairs(module, objective, data))


def score(module: nn.Module, objective: Objective, data: Shard) -> Scores:
    """All metrics over all of the data."""
    pairs = _pairs(module, objective, data)
    recall, confusion = None, None
    if objective.classifies:
        predicted = torch.cat([outputs.argmax(1) for outputs, _ in pairs]).numpy()
        classes = pairs[0][0].shape[1]
        cells = torch.cat([y for _, y in pairs]).numpy() * classes + predicted
        table = np.bincount(cells, minlength=classes**2).reshape(classes, classes)
        of_class = table.sum(1)
        recall = [float(table[k, k] / of_class[k]) if of_class[k] else None for k in range(classes)]
        confusion = table.tolist()
    return Scores(len(data), objective.scores(pairs), recall, confusion)
