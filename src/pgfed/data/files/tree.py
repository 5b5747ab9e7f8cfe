"""Which files of a folder are whose: <class>/*, <site>/<class>/* or <site>/<split>/<class>/*.

A site that is alone may leave its level out: <split>/<class>/*.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgfed.errors import UserError

LITTER = {"thumbs.db", "desktop.ini"}
SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
FEW = 5  # names in a line
_SUFFIXES = {
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".tif", ".tiff"),
    *(".webp", ".ppm", ".pgm", ".pbm", ".pnm"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One image file, and the folders that name its class, site and split."""

    path: Path
    label: str
    site: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Tree:
    """The samples by site, split, class and name; and what lies where it does not belong."""

    samples: list[Sample]
    strays: list[Path]


@dataclass(frozen=True)
class _Level:
    """One folder, listed once."""

    path: Path
    folders: tuple[str, ...]
    files: tuple[str, ...]
    litter: tuple[str, ...]

    @property
    def images(self) -> list[str]:
        return [name for name in self.files if os.path.splitext(name)[1].lower() in _SUFFIXES]

    def below(self) -> list[_Level]:
        return [_listed(self.path / name) for name in self.folders]

    def strays(self) -> Iterator[Path]:
        for name in sorted((*self.files, *self.litter)):
            yield self.path / name


@dataclass(frozen=True)
class _Holder:
    """A folder of class folders, and whose it is."""

    level: _Level
    classes: list[_Level]
    site: str | None = None
    split: str | None = None


def scan(folder: Path) -> Tree:
    """Recognise the layout from all folders, whatever stray files lie between them."""
    root = _listed(folder)
    if not root.folders:
        raise UserError(f"{folder}: no class folders in it; expected {expected(folder)}")
    tops = root.below()
    if not any(top.folders for top in tops):
        return _tree(folder, [root], [_Holder(root, tops)])
    for top in tops:
        _no_images_beside(folder, top, next(other for other in tops if other.folders))
    for top in tops:
        if not top.folders:
            found = f" (found: {few(top.files)})" if top.files else ""
            raise UserError(f"{top.path}: the site folder {top.path.name!r} holds no images{found}")
    below = [top.below() for top in tops]
    seconds = [level for levels in below for level in levels]
    # A class folder that has images may hold folders besides: they are left alone.
    if any(second.folders and not second.images for second in seconds):
        return _by_split(folder, root, tops, below)
    if all(top.path.name.lower() in SPLITS for top in tops):
        holders = [
            _Holder(top, classes, split=SPLITS[top.path.name.lower()])
            for top, classes in zip(tops, below, strict=True)
        ]
    else:
        holders = [
            _Holder(top, classes, site=top.path.name)
            for top, classes in zip(tops, below, strict=True)
        ]
    return _tree(folder, [root, *tops], holders)


def _by_split(folder: Path, root: _Level, tops: list[_Level], below: list[list[_Level]]) -> Tree:
    """<site>/<split>/<class>/*: whatever a site holds must be a split of it."""
    seconds = [level for levels in below for level in levels]
    deep = next(second for second in seconds if second.folders and not second.images)
    for second in seconds:
        _no_images_beside(folder, second, deep)
    for second in seconds:
        if second.path.name.lower() not in SPLITS:
            raise UserError(
                f"{folder}: {_name(folder, deep)!r} holds folders ({few(deep.folders)}), and "
                f"{_name(folder, second)!r} is none of the splits {', '.join(SPLITS)}; expected "
                f"{expected(folder)}"
            )
    holders = [
        _Holder(split, split.below(), top.path.name, SPLITS[split.path.name.lower()])
        for top, splits in zip(tops, below, strict=True)
        for split in splits
    ]
    for holder in holders:
        for label in holder.classes:
            if label.folders and not label.images:
                raise UserError(
                    f"{folder}: {_name(folder, label)!r} holds folders ({few(label.folders)}) "
                    f"where images belong; expected {expected(folder)}"
                )
    return _tree(folder, [root, *tops, *(holder.level for holder in holders)], holders)


def _no_images_beside(folder: Path, level: _Level, deep: _Level) -> None:
    if level.images:
        other = f"{_name(folder, deep)!r} holds folders ({few(deep.folders)})"
        raise UserError(
            f"{folder}: {other} but {_name(folder, level)!r} holds files ({few(level.images)}); "
            f"use one layout for all: {expected(folder)}"
        )


def _tree(folder: Path, above: list[_Level], holders: list[_Holder]) -> Tree:
    samples = [
        Sample(label.path / name, label.path.name, holder.site, holder.split)
        for holder in holders
        for label in holder.classes
        for name in label.files
    ]
    used = {sample.label for sample in samples}
    for holder in holders:
        for label in holder.classes:
            if label.path.name not in used:
                raise UserError(
                    f"{label.path}: the class folder {label.path.name!r} holds no images"
                )
    sites = {sample.site for sample in samples}
    for holder in holders:
        if holder.site is not None and holder.site not in sites:
            raise UserError(
                f"{folder / holder.site}: the site folder {holder.site!r} holds no images"
            )
    if not samples:
        raise UserError(f"{folder}: no class folders in it; expected {expected(folder)}")
    strays = [path for level in above for path in level.strays()]
    labels = [label for holder in holders for label in holder.classes]
    strays += [label.path / name for label in labels for name in label.folders]
    return Tree(samples, strays)


def expected(folder: Path) -> str:
    """The layouts, as messages give them."""
    name = folder.name or str(folder)
    return f"{name}/<class>/*, {name}/<site>/<class>/* or {name}/<site>/<split>/<class>/*"


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more


def _name(folder: Path, level: _Level) -> str:
    return str(level.path.relative_to(folder))


def _listed(folder: Path) -> _Level:
    folders: list[str] = []
    files: list[str] = []
    litter: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") or entry.name.lower() in LITTER
                if _is(entry, folder=True):
                    if not hidden:
                        folders.append(entry.name)
                elif _is(entry, folder=False):
                    (litter if hidden else files).append(entry.name)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None
    return _Level(folder, tuple(sorted(folders)), tuple(sorted(files)), tuple(sorted(litter)))


def _is(entry: os.DirEntry[str], *, folder: bool) -> bool:
    """Links are followed; one that leads in a circle leads nowhere."""
    try:
        return entry.is_dir() if folder else entry.is_file()
    except OSError:
        return False
