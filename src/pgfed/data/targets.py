"""What is to be predicted, in one of four forms, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pgfed.errors import UserError, unknown

# classes: y is int64, N; labels: float32 of 0 and 1, N x K; values: float32, N x K;
# masks: int64, N x H x W.
Targets = Literal["classes", "labels", "values", "masks"]

MAX_CLASSES = 10_000  # more distinct labels than this are not classes but numbers or identifiers

Checked = tuple[NDArray[Any], tuple[str, ...]]


def check(name: str, y: NDArray[Any], form: Targets, names: Sequence[str] | None) -> Checked:
    """The targets in their form, and a name for each output of a model.

    ``names`` says what the outputs are called, where that is agreed.
    """
    given = None if names is None else tuple(str(one) for one in names)
    if form == "classes":
        return _classes(name, y, given)
    if form == "masks":
        return _masks(name, y, given)
    return _columns(name, y, form, given)


def _classes(name: str, y: NDArray[Any], names: tuple[str, ...] | None) -> Checked:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "O":
        y = _text(name, y)
    if y.ndim == 1 and y.dtype.kind == "f":
        raise UserError(
            f"{name}: y has type {y.dtype}; allowed: integers, names or booleans, one per sample; "
            'task.kind = "regression" predicts numbers'
        )
    if y.ndim == 2:
        kind = "multilabel" if _binary(y) else "regression"
        raise UserError(
            f"{name}: y has shape {shape_text(y)}; allowed: one label per sample (N); "
            f'task.kind = "{kind}" predicts several'
        )
    if y.ndim == 3:
        raise UserError(
            f"{name}: y has shape {shape_text(y)}; allowed: one label per sample (N); "
            'task.kind = "segmentation" predicts masks'
        )
    if y.ndim != 1 or y.dtype.kind not in "iuUb":
        raise UserError(
            f"{name}: y has type {y.dtype} and shape {shape_text(y)}; allowed: integers, names or "
            "booleans, one per sample"
        )
    labels, names = _numbered(name, y, names)
    if len(names) < 2:
        raise UserError(f"{name}: {len(names)} class(es) in all; at least 2 are needed")
    return labels, names


def _text(name: str, y: NDArray[Any]) -> NDArray[Any]:
    """What Python holds as objects, if all of them are texts."""
    for i, value in enumerate(y.flat):
        if not isinstance(value, str):
            raise UserError(
                f"{name}: y holds {value!r} in sample {i}; allowed: integers, names or booleans"
            )
    return y.astype(np.str_)


def _numbered(
    name: str, y: NDArray[Any], names: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels 0..K-1 in place of any; ``names`` says what those are, where it is agreed."""
    if names is not None and y.dtype.kind in "iu":
        wrong = np.flatnonzero((y < 0) | (y >= len(names)))
        if len(wrong):
            where = np.unravel_index(wrong[0], y.shape)
            raise UserError(
                f"{name}: label {y[where]} of sample {where[0]} is out of range; allowed: 0 to "
                f"{len(names) - 1} ({len(names)} classes)"
            )
        return y.astype(np.int64), names
    values = np.unique(y)
    found = tuple(str(value) for value in values)
    if len(found) > MAX_CLASSES:
        raise UserError(
            f"{name}: y holds {len(found)} different labels; allowed: {MAX_CLASSES} classes"
        )
    number = np.searchsorted(values, y).astype(np.int64)
    if names is None:
        return number, found
    known = {label: k for k, label in enumerate(names)}
    for label in found:
        if label not in known:
            raise unknown(f"{name}: class", label, names)
    return np.array([known[label] for label in found], dtype=np.int64)[number], names


def _columns(name: str, y: NDArray[Any], form: Targets, names: tuple[str, ...] | None) -> Checked:
    """Labels of 0 and 1, or values; one column for each."""
    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or not y.shape[1] or y.dtype.kind not in "iufb":
        raise UserError(
            f"{name}: y has type {y.dtype} and shape {shape_text(y)}; allowed: numbers, N x K"
        )
    if form == "labels" and not _binary(y):
        raise UserError(f"{name}: y holds other numbers than 0 and 1; allowed: 0 and 1 per label")
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is reported below
        values = y.astype(np.float32)
    if not np.isfinite(values).all():
        bad = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise UserError(f"{name}: y holds NaN or infinite values, first in sample {bad}")
    wide = values.shape[1]
    if names is None:
        return values, tuple(str(k) for k in range(wide)) if wide > 1 else ("target",)
    if len(names) != wide:
        raise UserError(f"{name}: y has {wide} columns; expected {len(names)}: {', '.join(names)}")
    return values, names


def _masks(name: str, y: NDArray[Any], names: tuple[str, ...] | None) -> Checked:
    if y.ndim == 4 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 3 or 0 in y.shape or y.dtype.kind not in "iub":
        raise UserError(
            f"{name}: y has type {y.dtype} and shape {shape_text(y)}; allowed: masks of integers, "
            "N x H x W"
        )
    if y.dtype.kind == "b":
        y = y.astype(np.uint8)
    labels, names = _numbered(name, y, names)
    if len(names) < 2:
        raise UserError(f"{name}: {len(names)} class(es) in all; at least 2 are needed")
    return labels, names


def _binary(y: NDArray[Any]) -> bool:
    return y.dtype.kind == "b" or (y.dtype.kind in "iuf" and bool(((y == 0) | (y == 1)).all()))


def shape_text(array: NDArray[Any]) -> str:
    """The shape of an array, as messages give it."""
    return " x ".join(str(n) for n in array.shape) or "() (a single value)"
