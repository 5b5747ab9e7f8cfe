"""Heart disease at four hospitals (UCI, 1988), prepared as FLamby does it.

Of the 14 columns the three that are mostly missing (10 to 12) are left out, then rows with a
missing value; chest pain and the electrocardiogram become indicators (without their first level);
any disease is one class. Each hospital's rows are divided .66/.34, stratified where both classes
have more than two, and standardised by its own training rows.

`read_ranges` scales by ranges that are known without any record, and divides nothing: what a
hospital's inputs are then follows from no other record, as privacy needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.files.limits import check_size
from pgfed.errors import UserError

FOLDER = "heart-disease"
FILES = {  # the hospital's name -> its file
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "long-beach": "processed.va.data",
}
CLASSES = ("absent", "present")
COLUMNS = 14
_DROPPED = (10, 11, 12)
_CATEGORIES = {2: (2.0, 3.0, 4.0), 6: (1.0, 2.0)}  # column -> its levels but the first
_TRAIN_SHARE, _SEED = 0.66, 43

# What a number may be, of age, sex, blood pressure, cholesterol, blood sugar, heart rate, angina,
# ST depression.
_RANGES = ((20, 90), (0, 1), (80, 220), (0, 600), (0, 1), (60, 220), (0, 1), (-3, 7))

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


def paths(root: Path) -> list[Path]:
    return [root / FOLDER / file for file in FILES.values()]


def read(root: Path) -> Arrays:
    """x, y, client and split of all four hospitals."""
    xs, ys, clients, splits = [], [], [], []
    for name, x, y in _hospitals(root):
        test = _test_rows(y)
        xs.append(_standardised(x, ~test))
        ys.append(y)
        clients.append(np.full(len(y), name))
        splits.append(np.where(test, "test", "train"))
    parts: dict[str, list[NDArray[Any]]] = {"x": xs, "y": ys, "client": clients, "split": splits}
    return {key: np.concatenate(part) for key, part in parts.items()}


def read_ranges(root: Path) -> Arrays:
    """x, y and client of all four hospitals; each number from -1 to 1 over its public range."""
    found = list(_hospitals(root))
    low, high = np.array(_RANGES, dtype=np.float64).T
    numbers = len(low)
    for _, x, _ in found:
        x[:, :numbers] = np.clip((2 * x[:, :numbers] - low - high) / (high - low), -1, 1)
    return {
        "x": np.concatenate([x for _, x, _ in found]),
        "y": np.concatenate([y for _, _, y in found]),
        "client": np.concatenate([np.full(len(y), name) for name, _, y in found]),
    }


def _hospitals(root: Path) -> Iterator[tuple[str, Floats, NDArray[np.int64]]]:
    """Each hospital's name, inputs as they were written, and targets."""
    keep = [k for k in range(COLUMNS) if k not in _DROPPED]
    for name, path in zip(FILES, paths(root), strict=True):
        table = _table(path)
        table = table[~np.isnan(table[:, keep]).any(axis=1)]
        yield name, _inputs(table), (table[:, -1] > 0).astype(np.int64)


def _table(path: Path) -> Floats:
    try:
        check_size(str(path), path.stat().st_size)
        lines = path.read_text(encoding="ascii").split()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeError:
        raise UserError(f"{path}: damaged (not a text of numbers)") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            cells = [np.nan if cell == "?" else float(cell) for cell in line.split(",")]
        except ValueError:
            cells = []
        if len(cells) != COLUMNS:
            raise UserError(f"{path}: line {number} has not {COLUMNS} numbers; damaged")
        rows.append(cells)
    if not rows:
        raise UserError(f"{path}: holds no rows; damaged or cut short")
    return np.array(rows)


def _inputs(table: Floats) -> Floats:
    """Eight numbers, then the indicators."""
    plain = [k for k in range(COLUMNS - 1) if k not in (*_DROPPED, *_CATEGORIES)]
    indicators = [table[:, k] == level for k, levels in _CATEGORIES.items() for level in levels]
    return np.column_stack([table[:, plain], *indicators]).astype(np.float64)


def _test_rows(y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """FLamby's very rows: scikit-learn's generator and its stratification."""
    counts = np.bincount(y, minlength=2)
    divide = importlib.import_module("sklearn.model_selection").train_test_split
    _, tested = divide(
        np.arange(len(y)),
        test_size=1 - _TRAIN_SHARE,
        train_size=_TRAIN_SHARE,
        random_state=_SEED,
        stratify=y if counts.min() > 2 else None,
    )
    test = np.zeros(len(y), dtype=np.bool_)
    test[tested] = True
    return test


def _standardised(x: Floats, train: NDArray[np.bool_]) -> Floats:
    spread = x[train].std(axis=0)
    scaled: Floats = (x - x[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled
