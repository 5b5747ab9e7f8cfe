"""Samples with labels, as plain arrays that were checked; nothing is divided among clients yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgfed.data.files.mapped import converted
from pgfed.data.tables.preparation import Columns
from pgfed.data.tables.schema import Schema
from pgfed.data.targets import Targets, check, shape_text
from pgfed.errors import UserError

__all__ = ["Dataset", "Options", "Samples", "Targets", "shape_text"]


@dataclass(frozen=True)
class Options:
    """How own data is to be read."""

    targets: Targets = "classes"
    image_size: int | None = None  # for folders of images
    skip_bad: bool = False  # leave out what cannot be read
    schema: Schema | None = None  # of tables


@dataclass(frozen=True)
class Samples:
    """What a reader of own data gives, unchecked."""

    x: NDArray[Any]
    y: NDArray[Any]
    class_names: Sequence[str] | None = None
    client: NDArray[Any] | None = None
    group: NDArray[Any] | None = None
    domain: NDArray[Any] | None = None
    split: NDArray[Any] | None = None
    columns: Columns | None = None  # of a table: x are its raw rows


@dataclass(frozen=True)
class Dataset:
    """Samples with targets, and what is known of the client, domain and part of each.

    With ``columns``, x are the raw rows of a table: inputs are made of them when it is known which
    are trained on.
    """

    name: str
    x: NDArray[Any]  # uint8, float32 or int64 (tokens); N x anything, images N x C x H x W
    y: NDArray[Any]  # as `targets` says
    class_names: tuple[str, ...]  # one for each output of a model: classes, labels or columns
    client: NDArray[np.int64] | NDArray[np.str_] | None = None  # numbers or names
    domain: NDArray[np.str_] | None = None
    split: NDArray[np.bool_] | None = None  # True = test
    validation: NDArray[np.bool_] | None = None  # True = validation; None where none is marked
    targets: Targets = "classes"
    group: NDArray[np.str_] | None = None  # samples of one group are never divided
    columns: Columns | None = None

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
        targets: Targets = "classes",
        group: ArrayLike | None = None,
        columns: Columns | None = None,
    ) -> Dataset:
        """Check everything. Labels may be any integers, unless `class_names` says what 0..K-1 are.

        With `class_names` a class may have no samples: a site that lacks one still agrees with
        the others on what the labels mean.
        """
        inputs = _inputs(name, np.asarray(x)) if columns is None else np.asarray(x)
        y, names = check(name, np.asarray(y), targets, class_names)
        _fits(name, inputs, y)
        clients = None if client is None else _clients(name, np.asarray(client))
        domains = None if domain is None else _texts(name, "domain", np.asarray(domain))
        test, validation = (None, None) if split is None else _split(name, np.asarray(split))
        groups = None if group is None else _texts(name, "group", np.asarray(group))
        _same_length(name, len(inputs), client=clients, domain=domains, split=test, group=groups)
        return cls(
            name, inputs, y, names, clients, domains, test, validation, targets, groups, columns
        )

    @classmethod
    def of(
        cls,
        name: str,
        samples: Samples,
        targets: Targets,
        class_names: Sequence[str] | None = None,
    ) -> Dataset:
        """What a reader gave, checked; ``class_names``: as agreed with others."""
        found = {field.name: getattr(samples, field.name) for field in fields(samples)}
        found["class_names"] = class_names or samples.class_names
        return cls.from_arrays(name, targets=targets, **found)


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    if x.dtype.kind not in "fiu":
        raise UserError(
            f"{name}: x has type {x.dtype}; allowed: uint8 (pixels, scaled to [-1, 1]), float "
            "(used as it is) or other integers (tokens)"
        )
    if x.ndim not in (2, 3, 4, 5) or 0 in x.shape:
        raise UserError(
            f"{name}: x has shape {shape_text(x)}; allowed: N x C x H x W, N x H x W, "
            "N x features, N x tokens or N x C x D x H x W, none of them 0"
        )
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        return _tokens(name, x)
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
        x = converted(x, np.float32)
    if not (np.isfinite(x.min()) and np.isfinite(x.max())):
        bad = next(i for i, row in enumerate(x) if not np.isfinite(row).all())
        raise UserError(f"{name}: x holds NaN or infinite values, first in sample {bad}")
    return x


def _tokens(name: str, x: NDArray[Any]) -> NDArray[np.int64]:
    if x.dtype == np.uint64 and x.max() > np.iinfo(np.int64).max:
        raise UserError(f"{name}: x holds {x.max()}; allowed: integers below 2^63")
    return converted(x, np.int64)


def _fits(name: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    if len(y) != len(x):
        raise UserError(f"{name}: y has shape {shape_text(y)}, but x has {len(x)} samples")
    if y.ndim == 3 and x.ndim == 4 and y.shape[1:] != x.shape[2:]:
        raise UserError(
            f"{name}: y has masks of {shape_text(y[0])}, but x has images of {shape_text(x[0, 0])}"
        )


def _clients(name: str, client: NDArray[Any]) -> NDArray[np.int64] | NDArray[np.str_]:
    if client.dtype.kind not in "iuU":
        raise UserError(f"{name}: client has type {client.dtype}; allowed: integers or names")
    if client.dtype.kind != "U":
        return client.astype(np.int64)
    if (client == "").any():
        raise UserError(f"{name}: client holds an empty name; allowed: integers or names")
    return client.astype(np.str_)


def _texts(name: str, key: str, found: NDArray[Any]) -> NDArray[np.str_]:
    if found.dtype.kind not in "iuU":
        raise UserError(f"{name}: {key} has type {found.dtype}; allowed: strings or integers")
    return found.astype(np.str_)


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
