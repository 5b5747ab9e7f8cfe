"""numpy's npz archives, read without pickle and without trusting what they claim."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pgfed.data.dataset import Options, Samples
from pgfed.data.files.limits import check_size
from pgfed.errors import UserError, unknown

OPTIONAL = ("client", "group", "domain", "split", "class_names")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def samples(name: str, place: Path, options: Options) -> Samples:
    """x and y, and what else is known of the samples."""
    arrays: dict[str, Any] = dict(read(place, ("x", "y"), OPTIONAL))
    names = arrays.pop("class_names", None)
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise UserError(f"{name}: class_names must be one string per class")
    listed = None if names is None else [str(label) for label in names]
    return Samples(**arrays, class_names=listed)


def read(
    path: Path, required: Sequence[str], optional: Sequence[str], *, skip: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The named arrays; a missing, an unknown, a pickled or an oversized one is refused.

    Those to ``skip`` are left where they are.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            _check_names(path, list(members), required, optional)
            check_size(str(path), sum(info.file_size for info in archive.infolist()))
            return {
                name: _read_member(f"{path}: array {name!r}", archive, info)
                for name, info in members.items()
                if name not in skip
            }
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: not an npz file, or cut short or damaged ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be unpacked ({error})") from None


def _check_names(
    path: Path, found: Sequence[str], required: Sequence[str], optional: Sequence[str]
) -> None:
    for name in required:
        if name not in found:
            raise UserError(
                f"{path}: no array {name!r}; found: {', '.join(sorted(found)) or 'none'}; "
                f"needed: {', '.join(required)}"
            )
    for name in found:
        if name not in required and name not in optional:
            raise unknown(f"{path}: array", name, (*required, *optional))


def _read_member(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(where, file)
        if dtype.hasobject:
            raise UserError(
                f"{where} holds Python objects (a pickle), which are refused; "
                "save plain numbers or strings"
            )
        size = math.prod(shape) * dtype.itemsize
        if dtype.itemsize == 0 or size != info.file_size - file.tell():
            raise UserError(f"{where} is damaged (its size does not match its header)")
        flat = np.frombuffer(file.read(), dtype=dtype)
    if dtype.kind == "U":
        _check_text(where, flat)
    try:
        return flat.reshape(shape, order="F" if fortran else "C")
    except (ValueError, OverflowError):  # negative numbers, too many of them, or too large
        raise UserError(f"{where} is damaged (no array has the shape of its header)") from None


def _check_text(where: str, flat: NDArray[Any]) -> None:
    """numpy keeps whatever code points a file holds; Python fails later on those that are none."""
    points = flat.view(np.dtype(np.uint32).newbyteorder(flat.dtype.byteorder))
    if ((points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))).any():
        raise UserError(f"{where} is damaged (it holds what is no text)")


def _read_header(where: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        return _HEADERS[npy.read_magic(file)](file)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError):
        raise
    except Exception:  # the header is Python source: parsing it can raise anything
        raise UserError(f"{where} is not a plain numpy array") from None
