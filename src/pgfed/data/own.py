"""A user's own data: KIND:PATH."""

from __future__ import annotations

import importlib
from pathlib import Path

from pgfed.data import OWN, READERS
from pgfed.data.dataset import Dataset, Options, Samples
from pgfed.errors import UserError

TABLES = ("csv", "parquet")
SUFFIXES = {".npz": "npz", ".csv": "csv", ".parquet": "parquet"}


def is_own(name: str) -> bool:
    """Does the name say KIND:PATH?"""
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in READERS


def is_table(name: str) -> bool:
    """Does the name say a table, by its kind or by what the file is called?"""
    kind = name.partition(":")[0] if is_own(name) else SUFFIXES.get(Path(name).suffix)
    return kind in TABLES


def kind_of(name: str) -> str | None:
    """What a path that lacks its kind would be read as: tables, arrays or images."""
    place = Path(name).expanduser()
    if not place.is_dir():
        return SUFFIXES.get(place.suffix) if place.is_file() else None
    return next((kind for kind in TABLES if any(place.glob(f"*.{kind}"))), "folder")


def load(name: str, root: Path | None, options: Options = Options()) -> Dataset:  # noqa: B008
    """Read own data, from this folder or from the data root.

    Sites in a folder are the clients of its samples, and their domains.
    """
    return Dataset.of(name, samples(name, root, options), options.targets)


def samples(name: str, root: Path | None, options: Options, key: str = "data.dataset") -> Samples:
    """As the reader of its kind gives them; ``key``: where the name was found.

    A file may also be named by its path alone: what it is called tells its kind.
    """
    kind, _, path = name.partition(":")
    near = Path(name).expanduser()
    if not is_own(name) and near.suffix in SUFFIXES and near.is_file():
        kind, path = SUFFIXES[near.suffix], name
    elif not is_own(name) or not path:
        raise _unknown(key, name)
    found: Samples = importlib.import_module(READERS[kind]).samples(
        f"{kind}:{path}", _place(key, name, path, root), options
    )
    return found


def _place(key: str, name: str, path: str, root: Path | None) -> Path:
    here = Path(path).expanduser()
    there = here if root is None else root / here
    for place in (here, there):
        if place.exists():
            return place
    also = f" (also looked for {there})" if there != here else ""
    raise UserError(f"{key}: {name}: {here} does not exist{also}")


def _unknown(key: str, name: str) -> UserError:
    if is_own(name):
        return UserError(f"{key}: {name!r} lacks its path; expected {name}PATH")
    kind = kind_of(name)
    hint = "" if kind is None else f" (did you mean '{kind}:{name}'?)"
    return UserError(f"{key}: found {name!r}{hint}; allowed: {', '.join(OWN)}")
