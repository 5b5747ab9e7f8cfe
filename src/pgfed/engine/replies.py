"""Nothing a client sends is used before it is checked, and every byte is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pgfed.core import Algorithm, Message, Update
from pgfed.task import Layout


def refusal(
    algorithm: Algorithm, layout: Layout, message: Message, update: Update, limit: int
) -> str | None:
    """Why this reply must not be used, or None. ``limit``: the most samples it may claim."""
    if set(update) != set(algorithm.leaves):
        return f"keys {sorted(map(str, update))}, expected {sorted(algorithm.leaves)}"
    lengths = {
        "model": layout.n,
        "body": layout.n - layout.h,
        "head": layout.h,
        "gradient": layout.d,
        "row": len(message["ids"]) if "ids" in message else 0,
    }
    for key, kind in algorithm.leaves.items():
        value: Any = update[key]
        if kind == "count":
            if type(value) is not int or not 1 <= value <= limit:
                return f"{key}: {value!r} is not a count between 1 and {limit}"
        elif kind == "scalar":
            if type(value) is not float or not abs(value) < float("inf"):
                return f"{key}: {value!r} is not a finite number"
        else:
            if not isinstance(value, Tensor) or value.dtype != torch.float32:
                return f"{key}: not a float32 tensor"
            if tuple(value.shape) != (lengths[kind],):
                return f"{key}: shape {tuple(value.shape)}, expected ({lengths[kind]},)"
            if not bool(torch.isfinite(value).all()):
                return f"{key}: holds NaN or infinite values"
    return None


def payload_bytes(values: Message) -> dict[str, int]:
    """float32 payload by key; counts, ids and round numbers are not payload."""
    sizes = {}
    for key, value in values.items():
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            sizes[key] = value.numel() * value.element_size()
        elif isinstance(value, float):
            sizes[key] = 4
    return sizes


def overhead_bytes(values: Message) -> int:
    """What travels beside the payload: integers, eight bytes each."""
    return sum(
        8 * (value.numel() if isinstance(value, Tensor) else 1)
        for value in values.values()
        if not (
            isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
        )
    )
