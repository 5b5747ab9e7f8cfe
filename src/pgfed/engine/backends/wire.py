"""Flat dictionaries over a pipe between our own processes, without intermediate copies."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgfed.methods.values import State

_NAMES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
_TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES}
_LONGEST = 1 << 28  # bytes of a description; one of a million numbers stays below


class BadMessage(OSError):
    """What came is not a message of ours. Whoever sent it is given up, like one that died."""


def send(conn: Connection, head: dict[str, Any], parts: Sequence[State] = ()) -> None:
    """Send a small JSON head and any number of flat dictionaries."""
    described: list[list[list[Any]]] = []
    arrays: list[np.ndarray[Any, Any]] = []
    for part in parts:
        entries: list[list[Any]] = []
        for key, value in part.items():
            if isinstance(value, Tensor):
                array = value.detach().cpu().contiguous().numpy()
                entries.append([key, str(array.dtype), list(array.shape)])
                if array.size:
                    arrays.append(array)
            else:
                entries.append([key, value])
        described.append(entries)
    conn.send_bytes(json.dumps([head, described]).encode())
    for array in arrays:
        conn.send_bytes(array.reshape(-1).view(np.uint8).data)


def receive(conn: Connection) -> tuple[dict[str, Any], list[State]]:
    """The inverse of `send`. Each tensor is received into memory of its own, aligned by torch:
    results must not depend on where a message happened to lie.

    Raises BadMessage for anything that `send` does not send.
    """
    try:
        head, described = json.loads(conn.recv_bytes(_LONGEST))
        if not isinstance(head, dict):
            raise ValueError("no head")
        return head, [{key: _value(conn, value) for key, *value in part} for part in described]
    except (EOFError, OSError):
        raise
    except Exception as error:
        raise BadMessage(f"not a message of ours ({type(error).__name__})") from error


def _value(conn: Connection, described: list[Any]) -> Any:
    """A number as it was described, or the tensor that follows."""
    if len(described) == 1:
        if type(described[0]) not in (int, float):
            raise ValueError("neither number nor tensor")
        return described[0]
    name, shape = described
    if not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise ValueError("no shape")
    size = math.prod(shape) * _TYPES[name].itemsize
    if not size:
        return torch.empty(shape, dtype=_TYPES[name])
    if _length(conn) != size:
        raise ValueError(f"the bytes that follow do not make {shape} of {name}")
    tensor = torch.empty(shape, dtype=_TYPES[name])
    _fill(conn, tensor.numpy().reshape(-1).view(np.uint8).data)
    return tensor


def _length(conn: Connection) -> int:
    """The length of the next message, which `Connection.send_bytes` writes before its bytes."""
    header = bytearray(4)
    _fill(conn, memoryview(header))
    if header == b"\xff\xff\xff\xff":  # 2 GiB or more: in the eight bytes that follow
        header = bytearray(8)
        _fill(conn, memoryview(header))
    return int.from_bytes(header)


def _fill(conn: Connection, place: memoryview) -> None:
    """Read straight into memory: `Connection.recv_bytes` makes two copies on the way."""
    while place:
        count = os.readv(conn.fileno(), [place])
        if not count:
            raise EOFError
        place = place[count:]
