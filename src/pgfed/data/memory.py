"""Data that was passed from Python: one data set per site, of any size.

What lies in files (memory maps) stays there: whatever is made of it is a file, too, in the folder
for temporary files ($TMPDIR), and goes with the last array that uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.dataset import Dataset, Options, Samples
from pgfed.data.files.mapped import chunks, is_mapped, on_disk
from pgfed.data.tables.reading import Bad
from pgfed.data.tables.samples import from_tables
from pgfed.errors import UserError

NAME = "data"  # in messages


def is_table(value: Any) -> bool:
    """Is it a pandas DataFrame? Asked without importing pandas."""
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns")


def from_sites(sites: Mapping[str, Any], options: Options, target: Sequence[str] | None) -> Dataset:
    """One data set per site: DataFrames; pairs of arrays (x, y); or anything with a length whose
    items are pairs (x, y), as torch's map-style data sets: those are copied once, to disk."""
    if not sites:
        raise UserError("datasets: found none; allowed: one per site")
    for name, value in sites.items():
        if not isinstance(name, str) or not name:
            raise UserError(f"datasets: found the name {name!r}; allowed: a text per site")
        if is_table(value) != is_table(next(iter(sites.values()))):
            raise UserError(f"datasets: {name!r} is another kind of data; allowed: one for all")
    if is_table(next(iter(sites.values()))):
        _check_some({name: len(value) for name, value in sites.items()})
        return from_frames(sites, list(sites), options, target)
    if target is not None or options.schema is not None:
        raise UserError("target, schema: found with arrays; allowed with DataFrames")
    parts = {name: _arrays(name, value) for name, value in sites.items()}
    _check_some({name: len(part[1]) for name, part in parts.items()})
    x, y = (_joined([part[k] for part in parts.values()]) for k in (0, 1))
    client = np.repeat(np.array(list(parts)), [len(part[1]) for part in parts.values()])
    return Dataset.of(NAME, Samples(x, y, client=client), options.targets)


def from_frames(
    frames: Mapping[str, Any],
    sites: Sequence[str] | None,
    options: Options,
    target: Sequence[str] | None,
) -> Dataset:
    """DataFrames with a schema, or with the name of what is to be predicted."""
    tables = {
        Path(name): frame.rename(columns=str).reset_index(drop=True)
        for name, frame in frames.items()
    }
    if target is not None and options.schema is not None:
        raise UserError("target: found beside a schema, which names it; allowed: one of them")
    samples = from_tables(NAME, tables, sites, options, Bad(options.skip_bad), target)
    return Dataset.of(NAME, samples, options.targets)


def _arrays(name: str, value: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(value, tuple) and len(value) == 2:
        x, y = (np.asarray(array) for array in value)
        if x.ndim < 2 or len(x) != len(y):
            raise UserError(
                f"datasets: {name}: {len(x) if x.ndim else 0} inputs and {y.size} targets; "
                "allowed: as many of one as of the other"
            )
        return x, y
    if not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        raise UserError(
            f"datasets: {name}: found {type(value).__name__}; allowed: a DataFrame, (x, y), or "
            "a data set with a length and items (x, y)"
        )
    if not len(value):
        raise UserError(f"datasets: {name}: is empty; allowed: one sample or more")
    x0, y0 = _pair(name, 0, value[0])
    x = on_disk((len(value), *x0.shape), _plain(x0.dtype))
    y = np.empty((len(value), *y0.shape), dtype=y0.dtype if y0.dtype.kind != "U" else object)
    for i, (xi, yi) in enumerate(_pairs(name, value)):
        if xi.shape != x0.shape or yi.shape != y0.shape:
            raise UserError(
                f"datasets: {name}: sample {i} has shapes {xi.shape} and {yi.shape}; allowed: "
                f"those of the first, {x0.shape} and {y0.shape}"
            )
        x[i], y[i] = xi, yi.tolist() if y.dtype == object else yi
    return x, y


def _pairs(name: str, value: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for i in range(len(value)):
        yield _pair(name, i, value[i])


def _pair(name: str, i: int, item: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise UserError(f"datasets: {name}: sample {i} is no pair (x, y)")
    x, y = (np.asarray(part) for part in item)
    if x.dtype.kind not in "fiub":
        raise UserError(
            f"datasets: {name}: sample {i} has an x of type {type(item[0]).__name__}; allowed: "
            "tensors or arrays of numbers (for images: a transform that makes tensors)"
        )
    return x, y


def _plain(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The type that inputs have in the end."""
    if kind == np.uint8:
        return kind
    return np.dtype(np.float32 if kind.kind == "f" else np.int64)


def _check_some(sizes: Mapping[str, int]) -> None:
    """A site without samples would vanish without a word."""
    for name, size in sizes.items():
        if not size:
            raise UserError(f"datasets: {name!r} holds no samples; allowed: one or more per site")


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """One after the other; on disk if any of them is."""
    if any(part.dtype.kind == "O" for part in parts):  # names, collected one by one
        parts = [part.astype(object) for part in parts]
    if len({(part.shape[1:], part.dtype.kind) for part in parts}) > 1:
        found = ", ".join(sorted({f"{part.shape[1:]} {part.dtype}" for part in parts}))
        raise UserError(f"datasets: sites differ in shape or type: {found}; allowed: one")
    if len(parts) == 1:
        return parts[0]
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    kind = np.result_type(*parts) if parts[0].dtype.kind != "O" else np.dtype(object)
    if not any(is_mapped(part) for part in parts):
        return np.concatenate(parts)
    out = on_disk(shape, kind)
    start = 0
    for part in parts:
        mine = out[start : start + len(part)]
        for rows in chunks(part):
            mine[rows] = part[rows]
        start += len(part)
    return out
