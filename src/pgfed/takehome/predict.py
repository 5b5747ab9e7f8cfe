"""`pgfed predict`: what a model says of each sample, in terms of the data it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgfed.data.targets import Targets
from pgfed.errors import UserError
from pgfed.modules import NONE, Allowed
from pgfed.results.folder.layout import csv_text
from pgfed.results.kept.models import Model
from pgfed.takehome.inputs import batches
from pgfed.takehome.metrics import objective_of

Row = dict[str, Any]  # of the table: the sample, and what is said of it


@torch.no_grad()
def predict(
    model: Model,
    paths: Sequence[Path],
    *,
    resize: bool,
    skip_bad: bool = False,
    allowed: Allowed = NONE,
) -> list[Row]:
    """The most probable class of each sample; or each label's probability, each target's value."""
    objective = objective_of(model, allowed)
    if objective.targets == "masks":
        raise UserError(
            f"{model.path}: predicts masks, which are no rows of a table; pgfed.load gives the "
            "model in Python"
        )
    module, names = model.module(), model.manifest.classes
    found = []
    for samples, x in batches(paths, model, resize=resize, skip_bad=skip_bad):
        said = objective.predictions(module(x).double())
        for sample, row in zip(samples, _rows(said, objective.targets, names), strict=True):
            found.append({"file": sample.file, "row": sample.row, **row})
    return found


def _rows(said: Tensor, targets: Targets, names: Sequence[str]) -> list[Row]:
    if targets == "classes":
        probability, best = (each.tolist() for each in said.max(dim=1))
        pairs = zip(best, probability, strict=True)
        return [{"class": names[k], "probability": f"{p:.6f}"} for k, p in pairs]
    form = "{:.6f}" if targets == "labels" else "{:.6g}"
    return [
        {name: form.format(value) for name, value in zip(names, values, strict=True)}
        for values in said.tolist()
    ]


def as_csv(rows: Sequence[Row]) -> str:
    return csv_text(rows, tuple(rows[0]) if rows else ("file", "row"))
