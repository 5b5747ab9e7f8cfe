"""Flat dictionaries over a pipe between our own processes, without intermediate copies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgfed.core import State


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
    results must not depend on where a message happened to lie."""
    head, described = json.loads(conn.recv_bytes())
    parts: list[State] = []
    for entries in described:
        part: State = {}
        for key, *value in entries:
            if len(value) == 1:
                part[key] = value[0]
                continue
            dtype, shape = value
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            if tensor.numel():
                conn.recv_bytes_into(tensor.numpy().reshape(-1).view(np.uint8).data)
            part[key] = tensor
        parts.append(part)
    return head, parts
