"""`pgfed predict`: class and probability of each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pgfed.results.layout import csv_text
from pgfed.results.models import Model
from pgfed.takehome.inputs import batches


@dataclass(frozen=True)
class Prediction:
    """The most probable class of one sample."""

    file: Path
    row: int | None
    label: str
    probability: float


@torch.no_grad()
def predict(
    model: Model, paths: Sequence[Path], *, resize: bool, skip_bad: bool = False
) -> list[Prediction]:
    module, classes = model.module(), model.manifest.classes
    found = []
    for samples, x in batches(paths, model, resize=resize, skip_bad=skip_bad):
        probability, best = torch.softmax(module(x).double(), dim=1).max(dim=1)
        for sample, p, k in zip(samples, probability.tolist(), best.tolist(), strict=True):
            found.append(Prediction(sample.file, sample.row, classes[k], p))
    return found


def as_csv(predictions: Sequence[Prediction]) -> str:
    rows = [
        {"file": p.file, "row": p.row, "class": p.label, "probability": f"{p.probability:.6f}"}
        for p in predictions
    ]
    return csv_text(rows, ("file", "row", "class", "probability"))
