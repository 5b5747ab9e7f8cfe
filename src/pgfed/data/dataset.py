"""Samples with labels, as plain arrays that were checked; nothing is divided among clients yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgfed.errors import UserError

Targets = Literal["classes", "labels", "values", "masks"]  # the forms that targets come in

MAX_CLASSES = 10_000  # more distinct labels than this are not classes but numbers or identifiers


@dataclass(frozen=True)
class Dataset:
    """Samples with labels 0..K-1, and what is known of the client, domain and part of each."""

    name: str
    x: NDArray[Any]  # uint8 or float32; N x C x H x W or N x features
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    client: NDArray[np.int64] | NDArray[np.str_] | None = None  # numbers or names
    domain: NDArray[np.str_] | None = None
    split: NDArray[np.bool_] | None = None  # True = test
    validation: NDArray[np.bool_] | None = None  # True = validation; None where none is marked

    @classmethod
    def from_arrays(
        cls,
        name: str,
        x: ArrayLike,
        y: ArrayLike,
        *,
        client: ArrayLike | None = None,
        domain: ArrayLike | None = None,
        split: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Dataset:
        """Check everything. Labels may be any integers, unless `class_names` says what 0..K-1 are.

        With `class_names` a class may have no samples: a site that lacks one still agrees with
        the others on what the labels mean.
        """
        inputs = _inputs(name, np.asarray(x))
        labels, names = _labels(name, np.asarray(y), class_names)
        _same_length(name, len(inputs), y=labels)
        clients = None if client is None else _clients(name, np.asarray(client))
        domains = None if domain is None else _domains(name, np.asarray(domain))
        test, validation = (None, None) if split is None else _split(name, np.asarray(split))
        _same_length(name, len(inputs), client=clients, domain=domains, split=test)
        return cls(name, inputs, labels, names, clients, domains, test, validation)


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise UserError(
            f"{name}: x has type {x.dtype}; allowed: uint8 (pixels, scaled to [-1, 1]) or float "
            "(used as it is)"
        )
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise UserError(
            f"{name}: x has shape {shape_text(x)}; allowed: N x C x H x W, N x H x W or "
            "N x features, none of them 0"
        )
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] > 4:
        raise UserError(
            f"{name}: x has shape {shape_text(x)}, which looks like N x H x W x C; allowed: "
            "N x C x H x W (x.transpose(0, 3, 1, 2))"
        )
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is reported below
        x = np.asarray(x, dtype=np.float32)
    if not (np.isfinite(x.min()) and np.isfinite(x.max())):
        bad = next(i for i, row in enumerate(x) if not np.isfinite(row).all())
        raise UserError(f"{name}: x holds NaN or infinite values, first in sample {bad}")
    return x


def _labels(
    name: str, y: NDArray[Any], class_names: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "iu":
        raise UserError(f"{name}: y has type {y.dtype}; labels must be integers")
    if y.ndim != 1:
        raise UserError(f"{name}: y has shape {shape_text(y)}; allowed: one label per sample (N)")
    if class_names is not None:
        names = tuple(str(label) for label in class_names)
        wrong = np.flatnonzero((y < 0) | (y >= len(names)))
        if len(wrong):
            raise UserError(
                f"{name}: label {y[wrong[0]]} of sample {wrong[0]} is out of range; allowed: 0 to "
                f"{len(names) - 1} ({len(names)} classes)"
            )
        labels = y.astype(np.int64)
    else:
        values, inverse = np.unique(y, return_inverse=True)
        names = tuple(str(value) for value in values)
        labels = inverse.reshape(-1).astype(np.int64)
    if len(names) < 2:
        raise UserError(f"{name}: {len(names)} class(es) in all; at least 2 are needed")
    if len(names) > MAX_CLASSES:
        raise UserError(
            f"{name}: y holds {len(names)} different labels; allowed: {MAX_CLASSES} classes"
        )
    return labels, names


def _clients(name: str, client: NDArray[Any]) -> NDArray[np.int64] | NDArray[np.str_]:
    if client.dtype.kind not in "iuU":
        raise UserError(f"{name}: client has type {client.dtype}; allowed: integers or names")
    if client.dtype.kind != "U":
        return client.astype(np.int64)
    if (client == "").any():
        raise UserError(f"{name}: client holds an empty name; allowed: integers or names")
    return client.astype(np.str_)


def _domains(name: str, domain: NDArray[Any]) -> NDArray[np.str_]:
    if domain.dtype.kind not in "iuU":
        raise UserError(f"{name}: domain has type {domain.dtype}; allowed: strings or integers")
    return domain.astype(np.str_)


def _split(name: str, split: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
    """Which samples are for testing, and which for validation if there are any."""
    if split.dtype.kind == "b":
        return split.astype(np.bool_), None
    if split.dtype.kind in "iuU":
        allowed = ("train", "test", "validation") if split.dtype.kind == "U" else (0, 1)
        wrong = split[~np.isin(split, allowed)]
        if not wrong.size:
            validation = split == "validation" if split.dtype.kind == "U" else None
            if validation is not None and not validation.any():
                validation = None
            return np.asarray(split == allowed[1], dtype=np.bool_), validation
        found = repr(wrong.flat[0].item())
    else:
        found = f"type {split.dtype}"
    raise UserError(
        f'{name}: split holds {found}; allowed: "train", "validation" and "test", or 0 and 1'
    )


def _same_length(name: str, n: int, **arrays: NDArray[Any] | None) -> None:
    for key, array in arrays.items():
        if array is not None and array.shape != (n,):
            raise UserError(f"{name}: {key} has shape {shape_text(array)}, but x has {n} samples")


def shape_text(array: NDArray[Any]) -> str:
    """The shape of an array, as messages give it."""
    return " x ".join(str(n) for n in array.shape) or "() (a single value)"
