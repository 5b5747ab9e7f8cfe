"""MNIST's IDX files, compressed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from pgfed.data.files.limits import check_size
from pgfed.errors import UserError

# Training part first; the two parts are merged, and every client splits its own share.
PAIRS = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_PIECE = 1 << 20  # bytes read at a time


def find(folder: Path) -> list[tuple[Path, Path]] | None:
    """The four files in a folder, or None if one is missing."""
    pairs = [(_either(folder / images), _either(folder / labels)) for images, labels in PAIRS]
    found = [(images, labels) for images, labels in pairs if images and labels]
    return found if len(found) == len(pairs) else None


def first_missing(folder: Path) -> Path:
    """The first of the four files that a folder lacks, for the error message."""
    stems = [folder / name for pair in PAIRS for name in pair]
    missing = next((stem for stem in stems if _either(stem) is None), stems[0])
    return missing.with_name(missing.name + ".gz")


def read(pairs: list[tuple[Path, Path]]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (N x 1 x H x W) and labels of all pairs."""
    images: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.uint8]] = []
    for image_file, label_file in pairs:
        x, y = _read_array(image_file, 3), _read_array(label_file, 1)
        if len(x) != len(y):
            raise UserError(
                f"{label_file}: {len(y)} labels for the {len(x)} images of {image_file.name}"
            )
        if images and x.shape[1:] != images[0].shape[1:]:
            raise UserError(
                f"{image_file}: images of {x.shape[1]}x{x.shape[2]} pixels, but those of "
                f"{pairs[0][0].name} have {images[0].shape[1]}x{images[0].shape[2]}"
            )
        images.append(x)
        labels.append(y)
    return np.concatenate(images)[:, None], np.concatenate(labels)


def _either(stem: Path) -> Path | None:
    for path in (stem, stem.with_name(stem.name + ".gz")):
        if path.is_file():
            return path
    return None


def _read_array(path: Path, ndim: int) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(path, cast(BinaryIO, file), ndim)
    except EOFError:
        raise UserError(f"{path}: the file is cut short") from None
    except (OSError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _parse(path: Path, file: BinaryIO, ndim: int) -> NDArray[np.uint8]:
    header = file.read(4 * (1 + ndim))
    if header[:4] != bytes([0, 0, 8, ndim]):
        raise UserError(
            f"{path}: not an IDX file of bytes with {ndim} dimension(s) "
            f"(it starts with {header[:4].hex() or 'nothing'})"
        )
    if len(header) < 4 * (1 + ndim):
        raise UserError(f"{path}: the file is cut short (within its header)")
    shape = tuple(int(n) for n in np.frombuffer(header[4:], dtype=">u4"))
    size = math.prod(shape)
    check_size(str(path), size)
    # In pieces: one read would allocate what the header claims.
    data = bytearray()
    while len(data) <= size and (piece := file.read(min(_PIECE, size + 1 - len(data)))):
        data += piece
    if len(data) < size:
        raise UserError(f"{path}: the file is cut short ({len(data)} of {size} bytes of data)")
    if len(data) > size:
        raise UserError(f"{path}: longer than its header says ({size} bytes of data)")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
