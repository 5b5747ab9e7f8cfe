"""Arrays in files: what is made of one is a file, too."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

CHUNK = 2**23  # bytes moved at a time, so that memory holds no second copy of the data


def chunks(array: NDArray[Any]) -> Iterator[slice]:
    """Some of the samples at a time, in order."""
    n = max(1, CHUNK // max(1, array[:1].nbytes))
    return (slice(start, start + n) for start in range(0, len(array), n))


def is_mapped(array: NDArray[Any]) -> bool:
    """Does the array, or what it is a view of, lie in a file?"""
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap):
            return True
        base = getattr(base, "base", None)
    return False


def on_disk(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array in a temporary file that goes with it."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)


def empty(like: NDArray[Any], shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array where ``like`` is: in memory or on disk."""
    return on_disk(shape, dtype) if is_mapped(like) else np.empty(shape, dtype)


def converted(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """The array as another type, where it is; itself if it has that type."""
    if array.dtype == dtype or not is_mapped(array):
        return np.asarray(array, dtype=dtype)
    out = on_disk(array.shape, dtype)
    for rows in chunks(array):
        out[rows] = array[rows]
    return out
