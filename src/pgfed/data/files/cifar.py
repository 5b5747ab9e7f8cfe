"""CIFAR-10 and CIFAR-100: the binary version, and the python one without trusting its pickles."""

from __future__ import annotations

import io
import pickle
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pgfed.data.files.limits import check_size
from pgfed.errors import UserError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """How one CIFAR comes: its folders, files, and where a record keeps its label."""

    classes: int
    binary_folder: str
    binary_files: tuple[str, ...]
    binary_names: str  # text file with one class name per line
    label_bytes: int  # in front of the pixels; the last of them is the label used
    python_folder: str
    python_files: tuple[str, ...]
    python_names: tuple[str, str]  # file, and the key of the class names in it
    python_label: str

    def binary_paths(self, root: Path) -> list[Path]:
        return [root / self.binary_folder / file for file in self.binary_files]

    def python_paths(self, root: Path) -> list[Path]:
        return [root / self.python_folder / file for file in self.python_files]


CIFAR10 = Layout(
    classes=10,
    binary_folder="cifar-10-batches-bin",
    binary_files=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    binary_names="batches.meta.txt",
    label_bytes=1,
    python_folder="cifar-10-batches-py",
    python_files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    python_names=("batches.meta", "label_names"),
    python_label="labels",
)
CIFAR100 = Layout(
    classes=100,
    binary_folder="cifar-100-binary",
    binary_files=("train.bin", "test.bin"),
    binary_names="fine_label_names.txt",
    label_bytes=2,  # coarse label, then the fine one
    python_folder="cifar-100-python",
    python_files=("train", "test"),
    python_names=("meta", "fine_label_names"),
    python_label="fine_labels",
)

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]


def read_binary(layout: Layout, root: Path) -> Arrays:
    """Images, labels and class names of the binary version."""
    record = layout.label_bytes + PIXELS
    images, labels = [], []
    for path in layout.binary_paths(root):
        data = _bytes(path)
        if not data or len(data) % record:
            raise UserError(
                f"{path}: cut short or damaged ({len(data)} bytes is not a multiple of the "
                f"{record} of one image)"
            )
        rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, record)
        labels.append(rows[:, layout.label_bytes - 1].astype(np.int64))
        images.append(rows[:, layout.label_bytes :])
    names_file = root / layout.binary_folder / layout.binary_names
    names = _bytes(names_file).decode("utf-8", "replace").split() if names_file.is_file() else []
    return _merge(layout, images, labels, names, names_file)


def read_python(layout: Layout, root: Path) -> Arrays:
    """The same from the python version."""
    images, labels = [], []
    for path in layout.python_paths(root):
        content = _unpickle(path)
        data, label = content.get("data"), content.get(layout.python_label)
        if (
            not isinstance(data, np.ndarray)
            or data.dtype != np.uint8
            or data.ndim != 2
            or data.shape[1] != PIXELS
        ):
            raise UserError(f"{path}: 'data' is not an array of N x {PIXELS} bytes")
        if not isinstance(label, list) or not all(type(value) is int for value in label):
            raise UserError(f"{path}: {layout.python_label!r} is not a list of integers")
        if len(label) != len(data):
            raise UserError(f"{path}: {len(label)} labels for {len(data)} images")
        images.append(data)
        labels.append(np.array(label, dtype=np.int64))
    file, key = layout.python_names
    names_file = root / layout.python_folder / file
    names = _unpickle(names_file).get(key, []) if names_file.is_file() else []
    return _merge(layout, images, labels, names, names_file)


def _merge(
    layout: Layout,
    images: list[NDArray[np.uint8]],
    labels: list[NDArray[np.int64]],
    names: list[str],
    names_file: Path,
) -> Arrays:
    if names and len(names) != layout.classes:
        raise UserError(f"{names_file}: {len(names)} class names; expected {layout.classes}")
    class_names = tuple(str(name) for name in names or range(layout.classes))
    x = np.concatenate(images).reshape(-1, 3, 32, 32)
    return x, np.concatenate(labels), class_names


def _bytes(path: Path) -> bytes:
    try:
        check_size(str(path), path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


# Stands in for numpy.ndarray, which a pickle could call to allocate whatever it asks for.
_NDARRAY = "numpy.ndarray"


def _empty_array(kind: object, shape: object, code: object) -> NDArray[Any]:
    """The empty array that numpy's pickles start from; its content follows as its state."""
    if kind != _NDARRAY or shape != (0,):
        raise pickle.UnpicklingError("not a plain array")
    return np.empty(0, dtype=np.uint8)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, numbers, strings and numpy arrays; refuses everything else."""

    _ALLOWED: ClassVar[dict[tuple[str, str], object]] = {
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def _check_steps(data: bytes) -> None:
    """Look at a pickle's steps before any is taken: what they ask for could exhaust memory.

    A place in the memo is a number that the unpickler allocates up to, and steps newer than these
    files are of no use in them.
    """
    for count, (step, argument, _) in enumerate(pickletools.genops(data)):
        if step.proto > 4:
            raise pickle.UnpicklingError(f"it holds the step {step.name}")
        if step.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= (argument or 0) <= count + 1:
            raise pickle.UnpicklingError(f"it keeps place {argument} of its memo")


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        data = _bytes(path)
        if not data:
            raise UserError(f"{path}: the file is cut short")
        _check_steps(data)
        # Written by Python 2: its byte strings are read as latin1.
        content = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
    except UserError:
        raise
    except Exception as error:  # a hostile pickle can raise anything
        raise UserError(f"{path}: refused, not a plain CIFAR batch ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: refused, not a plain CIFAR batch")
    return content
