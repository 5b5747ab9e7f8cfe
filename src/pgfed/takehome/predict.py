"""`pgfed predict`: what a model says of each sample, in terms of the data it was trained on."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from pgfed.data.targets import Targets
from pgfed.errors import UserError
from pgfed.modules import NONE, Allowed
from pgfed.results.kept.models import Model
from pgfed.takehome.inputs import LeftOut, batches
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
) -> Iterator[Row]:
    """Of each sample the classes' or labels' probabilities, or the targets' values; as they come.

    What cannot be used is told at the end: `LeftOut`.
    """
    objective = objective_of(model, allowed)
    if objective.targets == "masks":
        raise UserError(
            f"{model.path}: predicts masks, which are no rows of a table; pgfed.load gives the "
            "model in Python"
        )
    module, names = model.module(), model.manifest.classes
    for samples, x in batches(paths, model, resize=resize, skip_bad=skip_bad):
        said = objective.predictions(module(x).double())
        for sample, row in zip(samples, _rows(said, objective.targets, names), strict=True):
            yield {"file": sample.file, "row": sample.row, **row}


def _rows(said: Tensor, targets: Targets, names: Sequence[str]) -> list[Row]:
    if targets == "classes":
        probability, best = (each.tolist() for each in said.max(dim=1))
        each = [
            {f"p:{name}": f"{p:.6f}" for name, p in zip(names, row, strict=True)}
            for row in said.tolist()
        ]
        triples = zip(best, probability, each, strict=True)
        return [{"class": names[k], "probability": f"{p:.6f}", **more} for k, p, more in triples]
    form = "{:.6f}" if targets == "labels" else "{:.6g}"
    return [
        {name: form.format(value) for name, value in zip(names, values, strict=True)}
        for values in said.tolist()
    ]


def write(
    rows: Iterable[Row], stream: TextIO, *, as_json: bool = False
) -> tuple[int, LeftOut | None]:
    """CSV, or a JSON list, row by row; how many there were, and what was left out."""
    written = (_write_json if as_json else _write_csv)(rows, stream)
    count, left_out = 0, None
    try:
        for _ in written:
            count += 1
    except LeftOut as error:
        left_out = error
    if as_json:
        stream.write("\n]\n" if count else "[]\n")
    return count, left_out


def _write_csv(rows: Iterable[Row], stream: TextIO) -> Iterator[Row]:
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(stream, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
        yield row


def _write_json(rows: Iterable[Row], stream: TextIO) -> Iterator[Row]:
    """All but the list's end."""
    before = "[\n"
    for row in rows:
        words = {"file", "row", *(["class"] if "probability" in row else [])}
        plain = {key: v if key in words else float(v) for key, v in row.items()}
        plain["file"] = str(row["file"])
        stream.write(before + json.dumps(plain))
        before = ",\n"
        yield row
