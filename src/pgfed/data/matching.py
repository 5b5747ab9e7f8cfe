"""Samples of a site that was not there when the others agreed on classes and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.dataset import Dataset, Targets
from pgfed.data.files import npz
from pgfed.data.own import class_names_of, read_folder
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
) -> Dataset:
    """Own data, ``npz:PATH`` or ``folder:PATH``, with the labels and inputs that were agreed on.

    Classes are mapped by their names; a site may lack some of them. Grey images are taken where
    colour was agreed on (nothing is lost), never the other way round.
    """
    kind, colon, path = name.partition(":")
    if not colon or kind not in ("npz", "folder") or not path:
        near = Path(name).expanduser()
        guess = "folder" if near.is_dir() else "npz" if near.is_file() else None
        hint = f" (did you mean '{guess}:{name}'?)" if guess else ""
        raise UserError(f"data: found {name!r}{hint}; allowed: folder:PATH or npz:PATH")
    place = Path(path).expanduser()
    if not place.exists() and root is not None:
        place = root / place
    if not place.exists():
        raise UserError(f"data: {name}: {path} does not exist")
    x, y, names, split = _npz(place) if kind == "npz" else _folder(place, image_size, skip_bad)
    if targets in ("classes", "masks"):
        y = _renumbered(name, y, names, classes)
    if x.ndim == 4 and x.shape[1] == 1 and len(input_shape) == 3 and input_shape[0] == 3:
        x = np.repeat(x, 3, axis=1)
    dataset = Dataset.from_arrays(
        name, x, y, split=split, class_names=list(classes), targets=targets
    )
    if dataset.x.shape[1:] != input_shape or dataset.x.dtype != input_type:
        raise UserError(
            f"{name}: holds {form(dataset.x.shape[1:])} ({dataset.x.dtype}); expected: "
            f"{form(input_shape)} ({input_type})"
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
    if y.dtype.kind not in "iu":
        return y
    values = np.unique(y)
    if names is not None and not all(0 <= v < len(names) for v in values):
        raise UserError(f"{name}: y holds labels beyond its {len(names)} class_names")
    known = {label: k for k, label in enumerate(classes)}
    labels = [str(v if names is None else names[v]) for v in values]
    for label in labels:
        if label not in known:
            raise unknown(f"{name}: class", label, classes)
    return np.array([known[label] for label in labels], dtype=np.int64)[np.searchsorted(values, y)]


_Parts = tuple[NDArray[Any], NDArray[Any], Sequence[str] | None, NDArray[Any] | None]


def _npz(path: Path) -> _Parts:
    arrays = npz.read(path, ("x", "y"), ("client", "domain", "split", "class_names"))
    names = class_names_of(str(path), arrays)
    x = arrays["x"]
    if x.ndim == 3 and (x.dtype == np.uint8 or x.dtype.kind == "f"):
        x = x[:, None]
    return x, arrays["y"], names, arrays.get("split")


def _folder(path: Path, image_size: int | None, skip_bad: bool) -> _Parts:
    if not path.is_dir():
        raise UserError(f"{path}: not a folder")
    images = read_folder(str(path), path, image_size, skip_bad=skip_bad)
    return images.x, images.y, images.class_names, images.split
