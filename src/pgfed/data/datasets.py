"""The data sets by name, each as plain arrays; nothing is divided among clients yet."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgfed.data import cifar, folder, idx, npz
from pgfed.errors import UserError, unknown

# Where Debian's package `dataset-fashion-mnist` puts the IDX files.
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
OFFICE_HOME_FOLDERS = ("office-home", "OfficeHomeDataset_10072016")
OFFICE_HOME_SIZE = 32
MAX_CLASSES = 10_000  # more distinct labels than this are not classes but numbers or identifiers

_ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
    *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
)
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Dataset:
    """Samples with labels 0..K-1, and what is known of the client, domain and part of each."""

    name: str
    x: NDArray[Any]  # uint8 or float32; N x C x H x W or N x features
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    client: NDArray[np.int64] | None = None
    domain: NDArray[np.str_] | None = None
    split: NDArray[np.bool_] | None = None  # True = test

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
        parts = None if split is None else _split(name, np.asarray(split))
        _same_length(name, len(inputs), client=clients, domain=domains, split=parts)
        return cls(name, inputs, labels, names, clients, domains, parts)


def load(name: str, root: Path | None, *, image_size: int | None = None) -> Dataset:
    """Read a data set by the name that the experiment file gives it."""
    kind, colon, path = name.partition(":")
    if image_size is not None:
        if image_size < 1:
            raise UserError(f"data.image_size: found {image_size}; allowed: 1 or more")
        if kind not in ("folder", "office-home"):
            raise UserError(
                f"data.image_size: {name} comes in one size; allowed with folder:PATH and "
                "office-home only"
            )
    if colon and kind in ("npz", "folder"):
        place = _own_path(name, path, root)
        return _npz(name, place) if kind == "npz" else _folder(name, place, image_size)
    if name not in _SOURCES:
        raise unknown("data.dataset", name, [*names(), "npz:PATH", "folder:PATH"])
    if name == "office-home":
        return _office_home(root, image_size)
    return _SOURCES[name].read(root)


def names() -> list[str]:
    """The data sets that have a name of their own."""
    return list(_SOURCES)


def is_present(name: str, root: Path | None) -> bool:
    """Whether all files of a named data set are where `load` looks for them."""
    return _SOURCES[name].present(root)


def describe(root: Path | None = None) -> list[dict[str, object]]:
    """One row per named data set, and whether its files are there."""
    return [
        {
            "name": name,
            "what": source.what,
            "input": source.shape,
            "classes": source.classes,
            "samples": source.samples,
            "files": source.files,
            "present": source.present(root),
        }
        for name, source in _SOURCES.items()
    ]


# ---------------------------------------------------------------------------- checks of arrays


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise UserError(
            f"{name}: x has type {x.dtype}; allowed: uint8 (pixels, scaled to [-1, 1]) or float "
            "(used as it is)"
        )
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise UserError(
            f"{name}: x has shape {_shape(x)}; allowed: N x C x H x W, N x H x W or N x features, "
            "none of them 0"
        )
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] > 4:
        raise UserError(
            f"{name}: x has shape {_shape(x)}, which looks like N x H x W x C; allowed: "
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
        raise UserError(f"{name}: y has shape {_shape(y)}; allowed: one label per sample (N)")
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


def _clients(name: str, client: NDArray[Any]) -> NDArray[np.int64]:
    if client.dtype.kind not in "iu":
        raise UserError(f"{name}: client has type {client.dtype}; allowed: integers")
    return client.astype(np.int64)


def _domains(name: str, domain: NDArray[Any]) -> NDArray[np.str_]:
    if domain.dtype.kind not in "iuU":
        raise UserError(f"{name}: domain has type {domain.dtype}; allowed: strings or integers")
    return domain.astype(np.str_)


def _split(name: str, split: NDArray[Any]) -> NDArray[np.bool_]:
    if split.dtype.kind == "b":
        return split.astype(np.bool_)
    if split.dtype.kind in "iuU":
        train, test = ("train", "test") if split.dtype.kind == "U" else (0, 1)
        wrong = split[(split != train) & (split != test)]
        if not wrong.size:
            return np.asarray(split == test, dtype=np.bool_)
        found = repr(wrong.flat[0].item())
    else:
        found = f"type {split.dtype}"
    raise UserError(f'{name}: split holds {found}; allowed: "train" and "test", or 0 and 1')


def _same_length(name: str, n: int, **arrays: NDArray[Any] | None) -> None:
    for key, array in arrays.items():
        if array is not None and array.shape != (n,):
            raise UserError(f"{name}: {key} has shape {_shape(array)}, but x has {n} samples")


def _shape(array: NDArray[Any]) -> str:
    return " x ".join(str(n) for n in array.shape) or "() (a single value)"


# ------------------------------------------------------------------------------ own data


def _own_path(name: str, path: str, root: Path | None) -> Path:
    if not path:
        raise UserError(f"data.dataset: {name!r} lacks its path; expected {name}PATH")
    here = Path(path).expanduser()
    there = here if root is None else root / here
    for place in (here, there):
        if place.exists():
            return place
    also = f" (also looked for {there})" if there != here else ""
    raise UserError(f"data.dataset: {name}: {here} does not exist{also}")


def _npz(name: str, path: Path) -> Dataset:
    arrays = npz.read(path, ("x", "y"), ("client", "domain", "split", "class_names"))
    class_names = own_class_names(name, arrays)
    return Dataset.from_arrays(name, **arrays, class_names=class_names)


def own_class_names(name: str, arrays: dict[str, NDArray[Any]]) -> list[str] | None:
    """What an npz file calls its classes, taken out of its arrays."""
    found = arrays.pop("class_names", None)
    if found is None:
        return None
    if found.ndim != 1 or found.dtype.kind != "U":
        raise UserError(f"{name}: class_names must be one string per class")
    return [str(label) for label in found]


def _folder(name: str, path: Path, image_size: int | None) -> Dataset:
    if not path.is_dir():
        raise UserError(f"data.dataset: {name}: {path} is not a folder")
    images = folder.read(path, image_size)
    return Dataset.from_arrays(
        name, images.x, images.y, domain=images.domain, class_names=images.class_names
    )


# ------------------------------------------------------------------------------ named data sets


def office_home_by_hand(root: Path) -> str:
    """It has no direct download: how to get it."""
    return (
        "get it from https://www.hemanthdv.org/officeHomeDataset.html and unpack it so that "
        f"{root / OFFICE_HOME_FOLDERS[0]} holds Art, Clipart, Product, Real World"
    )


def _missing(name: str, file: Path | str, root: Path | None) -> UserError:
    if root is None:
        return UserError(
            f"{name}: no data root given to look for {file}; pass --data-root PATH, after "
            f"`pgfed data fetch {name}`"
        )
    how = f"get it with `pgfed data fetch {name}`"
    if name == "office-home":
        how = office_home_by_hand(root)
    return UserError(f"{name}: {file} is missing (data root {root}); {how}")


def _digits(root: Path | None) -> Dataset:
    # scikit-learn is slow to import and has no type hints; nothing else needs it.
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Dataset.from_arrays("digits", x, bunch.target, class_names=_DIGITS)


def _digit_styles(root: Path | None) -> Dataset:
    """The digits in four styles, a quarter of them each."""
    digits = _digits(root)
    x, style = digits.x.copy(), np.arange(len(digits.y)) % 4
    x[style == 1] = 255 - x[style == 1]
    x[style == 2] = x[style == 2, :, :, ::-1]
    x[style == 3] = np.rot90(x[style == 3], axes=(2, 3))
    domain = np.array(("upright", "inverted", "mirrored", "turned"))[style]
    return Dataset.from_arrays(
        "digits-styles", x, digits.y, domain=domain, class_names=digits.class_names
    )


def _idx_files(name: str, root: Path | None) -> list[tuple[Path, Path]] | None:
    places = [] if root is None else [root / name]
    if name == "fashion-mnist":
        places.append(DEBIAN_FASHION_MNIST)
    return next((files for place in places if (files := idx.find(place))), None)


def _idx(name: str, root: Path | None, class_names: tuple[str, ...]) -> Dataset:
    files = _idx_files(name, root)
    if files is None:
        raise _missing(name, idx.first_missing(root / name if root else Path(name)), root)
    x, y = idx.read(files)
    return Dataset.from_arrays(name, x, y, class_names=class_names)


def _cifar_version(layout: cifar.Layout, root: Path) -> Callable[..., cifar.Arrays] | None:
    if all(path.is_file() for path in layout.binary_paths(root)):
        return cifar.read_binary
    if all(path.is_file() for path in layout.python_paths(root)):
        return cifar.read_python
    return None


def _cifar(name: str, root: Path | None, layout: cifar.Layout) -> Dataset:
    if root is None:
        raise _missing(name, layout.binary_folder, root)
    read = _cifar_version(layout, root)
    if read is None:
        raise _missing(name, _first_missing_cifar(layout, root), root)
    x, y, class_names = read(layout, root)
    return Dataset.from_arrays(name, x, y, class_names=class_names)


def _first_missing_cifar(layout: cifar.Layout, root: Path) -> Path:
    python = (root / layout.python_folder).is_dir() and not (root / layout.binary_folder).is_dir()
    paths = layout.python_paths(root) if python else layout.binary_paths(root)
    return next(path for path in paths if not path.is_file())


def _organamnist(root: Path | None) -> Dataset:
    path = (root or Path()) / "organamnist.npz"
    if root is None or not path.is_file():
        raise _missing("organamnist", path, root)
    parts = ("train", "val", "test")
    wanted = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    arrays = npz.read(path, wanted, ())
    for part in parts:
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
            raise UserError(
                f"{path}: {part}_images has shape {_shape(images)} and type {images.dtype}; "
                "expected N x 28 x 28 of uint8 (the 28-pixel version)"
            )
        if len(images) != len(labels):
            raise UserError(f"{path}: {len(labels)} {part}_labels for {len(images)} images")
    x = np.concatenate([arrays[f"{part}_images"] for part in parts])
    y = np.concatenate([arrays[f"{part}_labels"].reshape(-1) for part in parts])
    return Dataset.from_arrays("organamnist", x, y, class_names=_ORGANS)


def _office_home_folder(root: Path | None) -> Path | None:
    places = [root / name for name in OFFICE_HOME_FOLDERS] if root else []
    return next((place for place in places if place.is_dir()), None)


def _office_home(root: Path | None, image_size: int | None = None) -> Dataset:
    path = _office_home_folder(root)
    if path is None:
        raise _missing("office-home", (root or Path()) / OFFICE_HOME_FOLDERS[0], root)
    dataset = _folder("office-home", path, image_size or OFFICE_HOME_SIZE)
    if dataset.domain is None:
        raise UserError(
            f"office-home: {path} holds no domains; expected <domain>/<class>/*, with the domains "
            "Art, Clipart, Product, Real World"
        )
    return dataset


@dataclass(frozen=True)
class _Source:
    what: str
    shape: tuple[int, ...]
    classes: int
    samples: int
    files: str  # where they belong, relative to the data root
    read: Callable[[Path | None], Dataset]
    present: Callable[[Path | None], bool]


def _idx_source(name: str, what: str, class_names: tuple[str, ...], files: str) -> _Source:
    return _Source(
        what=what,
        shape=(1, 28, 28),
        classes=10,
        samples=70_000,
        files=files,
        read=lambda root: _idx(name, root, class_names),
        present=lambda root: _idx_files(name, root) is not None,
    )


def _cifar_source(name: str, what: str, layout: cifar.Layout) -> _Source:
    return _Source(
        what=what,
        shape=(3, 32, 32),
        classes=layout.classes,
        samples=60_000,
        files=f"{layout.binary_folder}/ or {layout.python_folder}/",
        read=lambda root: _cifar(name, root, layout),
        present=lambda root: root is not None and _cifar_version(layout, root) is not None,
    )


_SOURCES = {
    "digits": _Source(
        what="handwritten digits, small (scikit-learn)",
        shape=(1, 8, 8),
        classes=10,
        samples=1_797,
        files="none: inside scikit-learn",
        read=_digits,
        present=lambda root: True,
    ),
    "digits-styles": _Source(
        what="the same in four styles (domains): upright, inverted, mirrored, turned",
        shape=(1, 8, 8),
        classes=10,
        samples=1_797,
        files="none: inside scikit-learn",
        read=_digit_styles,
        present=lambda root: True,
    ),
    "mnist": _idx_source("mnist", "handwritten digits", _DIGITS, "mnist/"),
    "fashion-mnist": _idx_source(
        "fashion-mnist",
        "pictures of clothes",
        _CLOTHES,
        "fashion-mnist/, or Debian's package dataset-fashion-mnist",
    ),
    "cifar10": _cifar_source("cifar10", "small photos of ten kinds", cifar.CIFAR10),
    "cifar100": _cifar_source("cifar100", "small photos of a hundred kinds", cifar.CIFAR100),
    "organamnist": _Source(
        what="abdominal organs in CT slices (MedMNIST)",
        shape=(1, 28, 28),
        classes=11,
        samples=58_850,
        files="organamnist.npz",
        read=_organamnist,
        present=lambda root: root is not None and (root / "organamnist.npz").is_file(),
    ),
    "office-home": _Source(
        what="things at home and in the office, in four styles (domains)",
        shape=(3, OFFICE_HOME_SIZE, OFFICE_HOME_SIZE),
        classes=65,
        samples=15_588,
        files="office-home/<domain>/<class>/",
        read=_office_home,
        present=lambda root: _office_home_folder(root) is not None,
    ),
}
