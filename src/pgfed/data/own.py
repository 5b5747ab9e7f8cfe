"""A user's own data: npz:PATH, folder:PATH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pgfed.data.dataset import Dataset, Targets
from pgfed.data.files import folder, npz
from pgfed.errors import NOTES, UserError

KINDS = ("npz", "folder")


def load(
    kind: str,
    path: str,
    root: Path | None,
    image_size: int | None,
    *,
    skip_bad: bool = False,
    targets: Targets = "classes",
) -> Dataset:
    """Read own data, from this folder or from the data root.

    Sites in a folder are the clients of its samples, and their domains.
    """
    name = f"{kind}:{path}"
    place = _place(name, path, root)
    if kind == "npz":
        return _npz(name, place, targets)
    images = read_folder(name, place, image_size, skip_bad=skip_bad)
    return Dataset.from_arrays(
        name,
        images.x,
        images.y,
        client=images.site,
        domain=images.site,
        split=images.split,
        class_names=images.class_names,
        targets=targets,
    )


def _place(name: str, path: str, root: Path | None) -> Path:
    if not path:
        raise UserError(f"data.dataset: {name!r} lacks its path; expected {name}PATH")
    here = Path(path).expanduser()
    there = here if root is None else root / here
    for place in (here, there):
        if place.exists():
            return place
    also = f" (also looked for {there})" if there != here else ""
    raise UserError(f"data.dataset: {name}: {here} does not exist{also}")


def _npz(name: str, path: Path, targets: Targets) -> Dataset:
    arrays = npz.read(path, ("x", "y"), ("client", "domain", "split", "class_names"))
    class_names = class_names_of(name, arrays)
    return Dataset.from_arrays(name, **arrays, class_names=class_names, targets=targets)


def class_names_of(name: str, arrays: dict[str, NDArray[Any]]) -> list[str] | None:
    """What an npz file calls its classes, taken out of its arrays."""
    found = arrays.pop("class_names", None)
    if found is None:
        return None
    if found.ndim != 1 or found.dtype.kind != "U":
        raise UserError(f"{name}: class_names must be one string per class")
    return [str(label) for label in found]


def read_folder(
    name: str, path: Path, image_size: int | None, *, skip_bad: bool = False
) -> folder.Images:
    """The images of a folder; what was left out of it is said."""
    if not path.is_dir():
        raise UserError(f"data.dataset: {name}: {path} is not a folder")
    images = folder.read(path, image_size, skip_bad=skip_bad)
    for line in (images.left_out, images.ignored):
        if line is not None:
            NOTES.warning(line)
    return images
