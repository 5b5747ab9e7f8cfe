"""The data sets by name, each as plain arrays; nothing is divided among clients yet."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.data import OWN, own
from pgfed.data.dataset import Dataset, Options, Targets, shape_text
from pgfed.data.files import cifar, folder, idx, npz
from pgfed.data.named import heart_disease, scikit
from pgfed.data.tables.schema import Schema
from pgfed.errors import NOTES, UserError, unknown

__all__ = [
    "Dataset",
    "Targets",
    "describe",
    "is_present",
    "load",
    "names",
    "needs_no_files",
    "office_home_by_hand",
]

# Where Debian's package `dataset-fashion-mnist` puts the IDX files.
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
OFFICE_HOME_FOLDERS = ("office-home", "OfficeHomeDataset_10072016")
OFFICE_HOME_SIZE = 32
INSIDE = "none: inside scikit-learn"

_ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
    *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
)
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_DIGITS = tuple(str(digit) for digit in range(10))


def load(
    name: str,
    root: Path | None,
    *,
    image_size: int | None = None,
    skip_bad: bool = False,
    targets: Targets = "classes",
    schema: Schema | None = None,
) -> Dataset:
    """Read a data set by the name that the experiment file gives it.

    ``skip_bad`` leaves out files and rows that cannot be read. ``targets``: the form in
    which the task wants what is to be predicted.
    """
    kind = name.partition(":")[0]
    if image_size is not None:
        if image_size < 1:
            raise UserError(f"data.image_size: found {image_size}; allowed: 1 or more")
        if kind not in ("folder", "office-home"):
            raise UserError(
                f"data.image_size: {name} comes in one size; allowed with folder:PATH and "
                "office-home only"
            )
    if schema is not None and not own.is_table(name):
        raise UserError(f"data.schema: {name} is no table; allowed with csv:PATH and parquet:PATH")
    if own.is_own(name):
        return own.load(name, root, Options(targets, image_size, skip_bad, schema))
    if name not in _SOURCES:
        if (instead := own.kind_of(name)) is not None:
            raise UserError(f"data.dataset: found {name!r}; as own data it is '{instead}:{name}'")
        raise unknown("data.dataset", name, [*names(), *OWN])
    if targets != _SOURCES[name].targets:
        raise UserError(
            f"task.kind: {name} has {_SOURCES[name].targets} to predict, and the task wants "
            f"{targets}; allowed: another task.kind, or another data.dataset"
        )
    if name == "office-home":
        return _office_home(root, image_size, skip_bad)
    return _SOURCES[name].read(root)


def names() -> list[str]:
    """The data sets that have a name of their own."""
    return list(_SOURCES)


def is_present(name: str, root: Path | None) -> bool:
    """Whether all files of a named data set are where `load` looks for them."""
    return _SOURCES[name].present(root)


def needs_no_files(name: str) -> bool:
    """Whether a named data set comes with scikit-learn."""
    return _SOURCES[name].files == INSIDE


def describe(root: Path | None = None) -> list[dict[str, object]]:
    """One row per named data set, and whether its files are there."""
    return [
        {
            "name": name,
            "what": source.what,
            "input": source.shape,
            "classes": source.classes,
            "targets": source.targets,
            "samples": source.samples,
            "files": source.files,
            "present": source.present(root),
        }
        for name, source in _SOURCES.items()
    ]


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
    # What scikit-learn's load_digits reads; to import that package takes as long as torch.
    found = importlib.util.find_spec("sklearn")
    assert found is not None, "pgfed depends on it"
    assert found.origin is not None
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")  # 64 pixels from 0 to 16, and the digit
    x = np.rint(rows[:, :64].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Dataset.from_arrays("digits", x, rows[:, 64].astype(np.int64), class_names=_DIGITS)


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
                f"{path}: {part}_images has shape {shape_text(images)} and type {images.dtype}; "
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


def _office_home(
    root: Path | None, image_size: int | None = None, skip_bad: bool = False
) -> Dataset:
    path = _office_home_folder(root)
    if path is None:
        raise _missing("office-home", (root or Path()) / OFFICE_HOME_FOLDERS[0], root)
    images = folder.read(path, image_size or OFFICE_HOME_SIZE, skip_bad=skip_bad)
    if images.left_out is not None:
        NOTES.warning(images.left_out)
    if images.site is None:
        raise UserError(
            f"office-home: {path} holds no domains; expected <domain>/<class>/*, with the domains "
            "Art, Clipart, Product, Real World"
        )
    # Its domains are styles, nobody's sites.
    return Dataset.from_arrays(
        "office-home", images.x, images.y, domain=images.site, class_names=images.class_names
    )


def _heart_disease(
    root: Path | None,
    name: str = "heart-disease",
    read: Callable[[Path], heart_disease.Arrays] = heart_disease.read,
) -> Dataset:
    place = root or Path()
    missing = next((path for path in heart_disease.paths(place) if not path.is_file()), None)
    if root is None or missing is not None:
        raise _missing("heart-disease", missing or heart_disease.FOLDER, root)
    arrays: dict[str, Any] = dict(read(root))
    return Dataset.from_arrays(name, **arrays, class_names=heart_disease.CLASSES)


@dataclass(frozen=True)
class _Source:
    what: str
    shape: tuple[int, ...]
    classes: int
    samples: int
    files: str  # where they belong, relative to the data root
    read: Callable[[Path | None], Dataset]
    present: Callable[[Path | None], bool]
    targets: Targets = "classes"


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
        files=INSIDE,
        read=_digits,
        present=lambda root: True,
    ),
    "digits-styles": _Source(
        what="the same in four styles (domains): upright, inverted, mirrored, turned",
        shape=(1, 8, 8),
        classes=10,
        samples=1_797,
        files=INSIDE,
        read=_digit_styles,
        present=lambda root: True,
    ),
    "breast-cancer": _Source(
        what="tumours, benign or malignant, at four clinics (scikit-learn)",
        shape=(30,),
        classes=2,
        samples=569,
        files=INSIDE,
        read=lambda root: scikit.breast_cancer(),
        present=lambda root: True,
    ),
    "diabetes": _Source(
        what="a number to predict: progression of diabetes, at four practices (scikit-learn)",
        shape=(10,),
        classes=1,
        samples=442,
        files=INSIDE,
        read=lambda root: scikit.diabetes(),
        present=lambda root: True,
        targets="values",
    ),
    "heart-disease": _Source(
        what="heart disease, absent or present, at four hospitals (UCI)",
        shape=(13,),
        classes=2,
        samples=740,
        files="heart-disease/",
        read=_heart_disease,
        present=lambda root: (
            root is not None and all(p.is_file() for p in heart_disease.paths(root))
        ),
    ),
    "heart-disease-ranges": _Source(
        what="the same, scaled by public ranges: for training with privacy",
        shape=(13,),
        classes=2,
        samples=740,
        files="heart-disease/",
        read=lambda root: _heart_disease(root, "heart-disease-ranges", heart_disease.read_ranges),
        present=lambda root: (
            root is not None and all(p.is_file() for p in heart_disease.paths(root))
        ),
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
