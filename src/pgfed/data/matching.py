"""Samples of a site that was not there when the others agreed on classes and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data import own
from pgfed.data.dataset import Dataset, Options, Targets
from pgfed.data.tables.schema import Schema
from pgfed.errors import UserError, unknown


def load(
    name: str,
    root: Path | None,
    *,
    classes: Sequence[str],
    input_shape: tuple[int, ...],
    input_type: str,
    image_size: int | None,
    skip_bad: bool = False,
    targets: Targets = "classes",
    schema: Schema | None = None,
) -> Dataset:
    """Own data with the labels and inputs that were agreed on; tables need the agreed ``schema``.

    Classes are mapped by their names; a site may lack some of them. Grey images are taken where
    colour was agreed on (nothing is lost), never the other way round.
    """
    if schema is None and own.is_table(name):
        raise UserError(
            f"data: {name} is a table, and no schema was agreed on (data.schema); allowed: "
            "npz:PATH or folder:PATH"
        )
    options = Options(targets, image_size, skip_bad, schema)
    found = own.samples(name, root, options, key="data")
    x, y = found.x, found.y
    if targets in ("classes", "masks"):
        y = _renumbered(name, y, found.class_names, classes)
    if x.ndim == 3 and (x.dtype == np.uint8 or x.dtype.kind == "f"):
        x = x[:, None]
    if x.ndim == 4 and x.shape[1] == 1 and len(input_shape) == 3 and input_shape[0] == 3:
        x = np.repeat(x, 3, axis=1)
    matched = replace(found, x=x, y=y, client=None, domain=None)
    dataset = Dataset.of(name, matched, targets, list(classes))
    shape, kind = dataset.x.shape[1:], dataset.x.dtype.name
    if schema is not None and found.columns is not None:
        shape, kind = (schema.width,), "float32"
    if shape != input_shape or kind != input_type:
        raise UserError(
            f"{name}: holds {form(shape)} ({kind}); expected: {form(input_shape)} ({input_type})"
        )
    return dataset


def form(shape: tuple[int, ...]) -> str:
    """The shape of an input in words."""
    if len(shape) == 3:
        channels, height, width = shape
        colour = {1: "grey images", 3: "RGB images"}
        return f"{width}x{height} " + colour.get(channels, f"images of {channels} channels")
    if len(shape) == 1:
        return f"vectors of {shape[0]} numbers"
    return f"arrays of {' x '.join(map(str, shape))}"


def _renumbered(
    name: str, y: NDArray[Any], names: Sequence[str] | None, classes: Sequence[str]
) -> NDArray[Any]:
    """Labels as numbers of the agreed classes; they are known by name."""
    if y.dtype.kind not in "iuU":
        return y
    values = np.unique(y)
    if y.dtype.kind == "U":
        names = None
    if names is not None and not all(0 <= v < len(names) for v in values):
        raise UserError(f"{name}: y holds labels beyond its {len(names)} class_names")
    known = {label: k for k, label in enumerate(classes)}
    labels = [str(v if names is None else names[v]) for v in values]
    for label in labels:
        if label not in known:
            said = unknown(f"{name}: class", label, classes)
            raise UserError(
                f"{said}. A model has an output for each class it was trained with: leave these "
                "samples out, or train anew with all sites"
            )
    return np.array([known[label] for label in labels], dtype=np.int64)[np.searchsorted(values, y)]
