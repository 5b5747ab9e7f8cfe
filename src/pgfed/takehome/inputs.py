"""Inputs for a model: image files, folders of them, arrays and tables, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pgfed.data.files import npz
from pgfed.data.files.folder import COLOUR_MODES, opened
from pgfed.data.files.tree import LITTER
from pgfed.data.matching import form
from pgfed.data.tables.reading import Bad, frames, raw, rows
from pgfed.errors import NOTES, UserError
from pgfed.results.kept.models import Model

BATCH = 256


@dataclass(frozen=True)
class Input:
    """One sample, and where it came from."""

    file: Path
    row: int | None  # in an array; the line of a csv file
    x: NDArray[Any]  # of the model's input shape


def batches(
    paths: Sequence[Path], model: Model, *, resize: bool, skip_bad: bool = False
) -> Iterator[tuple[list[Input], Tensor]]:
    """The samples with their inputs as the model wants them, at most 256 at a time.

    Files and rows that cannot be used do not keep back the others; at the end there is an error
    about them, unless ``skip_bad`` asks for none. Where nothing can be used, there always is one.
    """
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: does not exist")
    waiting: list[Input] = []
    left_out: list[str] = []
    done = 0
    for sample in _samples(paths, model, resize, skip_bad, left_out):
        waiting.append(sample)
        done += 1
        if len(waiting) == BATCH:
            yield waiting, _prepared(waiting, model)
            waiting = []
    if waiting:
        yield waiting, _prepared(waiting, model)
    if not left_out:
        return
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    if not done:
        raise UserError(f"{left_out[0]}{more}")
    if skip_bad:
        for one in left_out:
            NOTES.warning(f"left out: {one}")
        return
    hint = "" if "--skip-bad" in left_out[0] else "; --skip-bad leaves it out"
    raise LeftOut(f"{left_out[0]}{hint}{more}; all others are done")


def _prepared(samples: list[Input], model: Model) -> Tensor:
    rule = model.manifest.normalisation
    x = torch.from_numpy(np.stack([sample.x for sample in samples]))
    return x if rule.input != "uint8" else torch.div(x, rule.divide).sub_(rule.subtract)


class LeftOut(UserError):
    """Told at the end: what could not be used did not keep back the rest."""


def _samples(
    paths: Sequence[Path], model: Model, resize: bool, skip_bad: bool, left_out: list[str]
) -> Iterator[Input]:
    for path in paths:
        for file in _files(path) if path.is_dir() else [path]:
            try:
                if file.suffix in (".npy", ".npz"):
                    yield from _array(file, model)
                elif file.suffix in (".csv", ".parquet"):
                    yield from _table(file, model, skip_bad)
                else:
                    yield Input(file, None, _image(file, model, resize))
            except UserError as error:
                left_out.append(str(error))


def _files(folder: Path) -> list[Path]:
    """The files in a folder and the folders in it, in order."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name.lower() not in LITTER
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise UserError(f"{folder}: holds no files")
    return files


def _image(path: Path, model: Model, resize: bool) -> NDArray[np.uint8]:
    about = model.manifest
    expects = f"{model.path.name} expects {form(about.shape)}"
    if (
        len(about.shape) != 3
        or about.shape[0] not in (1, 3)
        or about.normalisation.input != "uint8"
    ):
        raise UserError(
            f"{expects} as {about.normalisation.input} arrays (.npy, .npz); {path} is no array"
        )
    channels, height, width = about.shape
    with opened(path) as image:
        colour = image.mode in COLOUR_MODES
        found = f"{path} is {image.width}x{image.height} {'RGB' if colour else 'grey'}"
        fits = image.size == (width, height)
        # Grey becomes colour without loss; colour never becomes grey unasked.
        if colour and channels == 1:
            raise UserError(f"{expects}, {found}")
        if not (fits or resize or about.image_size):
            raise UserError(f"{expects}, {found} (--resize resizes it)")
        pixels = image.convert("RGB" if channels == 3 else "L")
    if not fits:
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(pixels).reshape(height, width, channels).transpose(2, 0, 1)


def _table(path: Path, model: Model, skip_bad: bool) -> Iterator[Input]:
    """The rows of a csv or parquet file, prepared as the client's training rows were."""
    schema = model.table
    if schema is None:
        raise UserError(
            f"{model.path.name} was not trained on a table, and {path} is one; allowed: arrays "
            "(.npy, .npz) or images"
        )
    for name, numbers in schema.numeric.items():
        if numbers.fill is None:
            raise UserError(
                f"{model.path.name} has no scaling of its own for {name!r}; allowed: the model of "
                "one client, or a schema that agrees on means and scales"
            )
    if (schema.width,) != model.manifest.shape:
        raise UserError(f"{model.path.parent}: its table does not fit its model; damaged")
    bad = Bad(skip_bad)
    unseen: Counter[str] = Counter()
    for table in frames(path, bad):
        part = rows(path, table, schema, bad, targets=False)
        values, columns = raw([part], schema)
        unseen.update(columns.unseen(values, schema))
        for row, x in zip(part.line.tolist(), columns.inputs(values, schema), strict=True):
            yield Input(path, row, x)
    for name, count in unseen.items():
        NOTES.warning(f"{path}: {count} rows have a category of {name!r} that is not known")
    bad.settle(str(path))


def _array(path: Path, model: Model) -> Iterator[Input]:
    about = model.manifest
    x = _npy(path) if path.suffix == ".npy" else _npz(path)
    wanted = about.normalisation.input
    kinds = {"uint8": x.dtype == np.uint8, "float32": x.dtype.kind == "f"}
    if not kinds.get(wanted, x.dtype.kind in "iu") or x.ndim < 2:
        raise _unfit(path, x, model)
    if not _fits(x.shape, model):
        raise _unfit(path, x, model)
    x = x.reshape(len(x), *about.shape)
    bad: list[int] = []
    for row in range(len(x)):
        sample = np.asarray(x[row], dtype=wanted)
        if np.isfinite(sample).all():
            yield Input(path, row, sample)
        else:
            bad.append(row)
    if bad:
        raise UserError(
            f"{path}: {len(bad)} row(s) hold NaN or infinite values, first in row {bad[0]}"
        )


def _fits(shape: tuple[int, ...], model: Model) -> bool:
    """Are these samples of the model's input shape? Grey images may lack the axis of channels."""
    wanted = model.manifest.shape
    return shape[1:] == wanted or (len(shape) == 3 and (1, *shape[1:]) == wanted)


def _unfit(path: Path, x: NDArray[Any], model: Model) -> UserError:
    about = model.manifest
    sizes = " x ".join(map(str, ("N", *about.shape)))
    hint = "; a single sample needs a leading axis: x[None]" if _fits((1, *x.shape), model) else ""
    return UserError(
        f"{model.path.name} expects {form(about.shape)} ({sizes}, {about.normalisation.input}), "
        f"{path} holds {' x '.join(map(str, x.shape)) or 'one number'} of {x.dtype}{hint}"
    )


def _npy(path: Path) -> NDArray[Any]:
    try:
        # Read as needed: an array may be larger than the memory.
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: not a plain numpy array, or cut short ({error})") from None
    return array


def _npz(path: Path) -> NDArray[Any]:
    return npz.read(path, ("x",), ("y", *npz.OPTIONAL))["x"]
