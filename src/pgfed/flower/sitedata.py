"""A site's own samples, with the classes that the federation agreed on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pgfed.data import folder, npz
from pgfed.data.datasets import Dataset
from pgfed.data.federation import Federation, build_seat
from pgfed.errors import UserError
from pgfed.experiment import Data
from pgfed.flower.folder import SiteFile


def load(site: SiteFile, name: str, data: Data, at: Path) -> Federation:
    """The site's samples in its seat, divided as the experiment says; ``at``: relative to where."""
    kind, _, path = name.partition(":")
    if kind not in ("npz", "folder") or not path:
        raise UserError(
            f"data: found {name!r}; allowed: npz:PATH or folder:PATH (in site.toml, or --data)"
        )
    place = at / Path(path).expanduser()
    dataset = _npz(name, place, site) if kind == "npz" else _folder(name, place, site)
    found = f"{list(dataset.x.shape[1:])} of {dataset.x.dtype}"
    agreed = f"{site.input_shape} of {site.input}"
    if found != agreed:
        raise UserError(f"{name}: inputs are {found}; the federation agreed on {agreed}")
    return build_seat(
        dataset,
        site.client,
        site.seats,
        test_share=data.test_share,
        validation_share=data.validation_share,
        seed=data.seed,
    )


def _npz(name: str, path: Path, site: SiteFile) -> Dataset:
    arrays = npz.read(path, ("x", "y"), ("client", "domain", "split", "class_names"))
    y = np.asarray(arrays["y"]).reshape(-1)
    if y.dtype.kind not in "iu":
        raise UserError(f"{name}: y has type {y.dtype}; labels must be integers")
    names = arrays.get("class_names")
    if names is not None and len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(names):
        raise UserError(f"{name}: y holds labels beyond its {len(names)} class_names")
    values, number = np.unique(y, return_inverse=True)
    labels = [str(names[v]) if names is not None else str(v) for v in values]
    return Dataset.from_arrays(
        name,
        arrays["x"],
        _agreed(name, labels, site)[number.reshape(-1)],
        split=arrays.get("split"),
        class_names=site.classes,
    )


def _folder(name: str, path: Path, site: SiteFile) -> Dataset:
    if not path.is_dir():
        raise UserError(f"{name}: {path} is not a folder")
    shape = site.input_shape
    square = len(shape) == 3 and shape[1] == shape[2]
    images = folder.read(path, shape[1] if square else None)
    labels = _agreed(name, list(images.class_names), site)[images.y]
    return Dataset.from_arrays(name, images.x, labels, class_names=site.classes)


def _agreed(name: str, labels: list[str], site: SiteFile) -> NDArray[np.int64]:
    """The federation's number of each of the site's classes."""
    number = {label: k for k, label in enumerate(site.classes)}
    unknown = [label for label in labels if label not in number]
    if unknown:
        raise UserError(
            f"{name}: class {unknown[0]!r} is not one of the federation's: "
            f"{', '.join(site.classes[:20])}"
        )
    return np.array([number[label] for label in labels], dtype=np.int64)
