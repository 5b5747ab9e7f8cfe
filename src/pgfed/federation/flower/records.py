"""Flat dictionaries as Flower records: plain arrays and numbers, never pickles.

An array travels as its raw little-endian bytes with a declared type and shape. Flower's own
conversions are not used, so nothing that is received is ever given to a deserialiser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from torch import Tensor

from pgfed.errors import OneLine
from pgfed.methods.values import State

MESSAGE = "query.pgfed"  # the one kind of message; what it asks for is in its head
RAW = "pgfed/little-endian"
_TYPES: dict[str, tuple[torch.dtype, np.dtype[Any]]] = {
    "float32": (torch.float32, np.dtype("<f4")),
    "float64": (torch.float64, np.dtype("<f8")),
    "int64": (torch.int64, np.dtype("<i8")),
    "int32": (torch.int32, np.dtype("<i4")),
    "int8": (torch.int8, np.dtype("i1")),
}
_NAMES = {dtype: name for name, (dtype, _) in _TYPES.items()}

# What Flower's own reading of a made-up message can end in; a broken connection is none of these.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    DecodeError,
)

Head = dict[str, Any]  # what a message is about: strings, numbers, bytes


class BadRecord(OneLine):
    """What was received is not a message of ours; says why."""


def pack(head: Head, **parts: State) -> RecordDict:
    """A head and named flat dictionaries as the content of a message."""
    content = RecordDict({"head": ConfigRecord(dict(head))})
    for name, part in parts.items():
        arrays = {k: _array(v) for k, v in part.items() if isinstance(v, Tensor)}
        numbers = {k: v for k, v in part.items() if k not in arrays}
        content[f"{name}.arrays"] = ArrayRecord(arrays)
        content[f"{name}.numbers"] = ConfigRecord(numbers)
    return content


def unpack(content: RecordDict) -> tuple[Head, dict[str, State]]:
    """The inverse of `pack`; raises BadRecord for anything that `pack` does not make."""
    head: Head = {}
    parts: dict[str, State] = {}
    for name, record in content.items():
        part, _, kind = name.rpartition(".")
        if name == "head" and isinstance(record, ConfigRecord):
            head = dict(record)
        elif kind == "arrays" and isinstance(record, ArrayRecord):
            for key, array in record.items():
                parts.setdefault(part, {})[key] = _tensor(f"{part}.{key}", array)
            parts.setdefault(part, {})
        elif kind == "numbers" and isinstance(record, ConfigRecord):
            for key, value in record.items():
                if type(value) not in (int, float):
                    raise BadRecord(f"{part}.{key}: {type(value).__name__}, expected a number")
                parts.setdefault(part, {})[key] = value
        else:
            raise BadRecord(f"unexpected record {name!r}")
    return head, parts


class Grid(Protocol):
    """How a run reaches the sites; `grid.LinkGrid` is the real one."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are there."""

    def seat(self, node: int) -> int:
        """The client whose key this node signs with."""

    def push_message(self, message: Message, most: int) -> str:
        """Send it; its name, or "" if that cannot be. ``most``: bytes of the reply's arrays."""

    def pull_message(self, name: str) -> Message | None:
        """The reply to this message if it is there, once; raises BadRecord for a bad one."""

    def forget(self, names: Iterable[str]) -> None:
        """Nobody waits for the replies to these messages any more."""


def pull(grid: Grid, names: Iterable[str]) -> Iterator[tuple[str, Message | BadRecord]]:
    """The replies that are there, each with the name of the message that it answers."""
    for name in names:
        try:
            reply = grid.pull_message(name)
        except BadRecord as error:
            yield name, error
        except UNREADABLE as error:
            yield name, BadRecord(f"Flower cannot read its reply ({type(error).__name__})")
        else:
            if reply is not None:
                yield name, reply


def size(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    return sum(
        len(array.data)
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )


def field(head: Head, key: str, kind: type) -> Any:
    """One entry of a head, of exactly this type."""
    value = head.get(key)
    if type(value) is not kind:
        raise BadRecord(f"{key}: found {value!r:.40}, expected {kind.__name__}")
    return value


def _array(value: Tensor) -> Array:
    if value.dtype not in _NAMES:
        raise TypeError(f"{value.dtype} does not travel; allowed: {', '.join(_TYPES)}")
    name = _NAMES[value.dtype]
    plain = value.detach().cpu().contiguous().numpy().astype(_TYPES[name][1], copy=False)
    return Array(name, tuple(value.shape), RAW, plain.tobytes())


def _tensor(where: str, array: Array) -> Tensor:
    if array.stype != RAW:
        raise BadRecord(f"{where}: serialised as {array.stype!r:.40}, expected {RAW!r}")
    if array.dtype not in _TYPES:
        raise BadRecord(f"{where}: type {array.dtype!r:.40}; allowed: {', '.join(_TYPES)}")
    shape = tuple(array.shape)
    dtype, plain = _TYPES[array.dtype]
    if len(shape) > 4 or any(type(n) is not int or n < 0 for n in shape):
        raise BadRecord(f"{where}: shape {shape}")
    if math.prod(n or 1 for n in shape) >= 2**62:  # torch fails on 0 x 2**70, though it is nothing
        raise BadRecord(f"{where}: shape {shape}")
    if len(array.data) != math.prod(shape) * plain.itemsize:
        raise BadRecord(f"{where}: {len(array.data)} bytes do not make {shape} of {array.dtype}")
    # Memory of its own, aligned by torch: results must not depend on where a message lay.
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        np.copyto(tensor.numpy().reshape(-1), np.frombuffer(array.data, dtype=plain))
    return tensor
