"""What the server sends, looked at before any method sees it; and what is to leave for it.

A site cannot tell a crafted model from a bad one. It can insist on the form: finite values, and
shapes that its own model, or the number of seats, gives rise to.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pgfed.engine import personal
from pgfed.engine.client import ClientSide
from pgfed.engine.exchange.replies import Form, refusal
from pgfed.federation.flower.records import Head
from pgfed.federation.site.house import Refused
from pgfed.methods.values import Kind, State
from pgfed.model.task import Task

NUMBERS = 1 << 20  # bytes of a message beside its arrays
ROWS = 16  # that a stack of models or gradients may have where there are fewer seats
KINDS: tuple[Kind, ...] = ("model", "own", "gradient", "classes", "prototypes")


def longest(task: Task, seats: int) -> int:
    """Bytes of a message: a stack of everything that has a shape here. No method sends more."""
    form = Form(task.layout, "all", task.outputs, task.width)
    values = sum(math.prod(form.shape(kind, {})) for kind in KINDS)
    return 4 * values * max(seats, ROWS) + NUMBERS


def check(name: str, part: State, form: Form, seats: int) -> None:
    """Refuse what is not finite, or of no shape that belongs to this federation."""
    shapes = {form.shape(kind, {}) for kind in KINDS} | {(form.layout.n,)}
    for key, value in part.items():
        where = f"{name}.{key}"
        if not bool(torch.isfinite(torch.as_tensor(value)).all()):
            raise Refused(f"{where}: holds NaN or infinite values")
        if not isinstance(value, Tensor):
            continue
        if key == "w" and tuple(value.shape) != (wanted := form.shape("model", {})):
            raise Refused(f"{where}: shape {tuple(value.shape)}, expected {wanted}")
        if value.is_floating_point():
            _check_shape(where, value, shapes, max(seats, ROWS))
        elif value.dim() != 1 or len(value) > seats or not _are_seats(value, seats):
            raise Refused(f"{where}: not the numbers of seats")


def _check_shape(where: str, value: Tensor, shapes: set[tuple[int, ...]], rows: int) -> None:
    shape = tuple(value.shape)
    one_each = len(shape) <= 1 and value.numel() <= rows  # a number for each site
    stacked = len(shape) > 1 and shape[0] <= rows and shape[1:] in shapes
    if value.dtype != torch.float32 or not (one_each or stacked or shape in shapes):
        raise Refused(f"{where}: {value.dtype}, shape {shape}: nothing here has that shape")


def _are_seats(value: Tensor, seats: int) -> bool:
    return bool(((value >= 0) & (value < seats)).all())


def check_leaving(
    side: ClientSide, message: State, update: State, limit: int, longest: float | None
) -> None:
    """Refuse to send another form than declared, or a long step: under a crafted model a step may
    be long, and the longer it is, the more it says."""
    leaves = personal.declared(message, side.algorithm)
    said = side.heard(leaves, message, update)
    why = refusal(leaves, side.form, message, said, limit, longest)
    if why is not None:
        raise Refused(f"what training gave does not leave this site: {why}")


def check_shared(side: ClientSide, client: int, message: State, share: State) -> None:
    """Refuse to give after the last round what the method does not declare."""
    declared = side.algorithm.shares_of(side.task.layout)
    if not declared:
        raise Refused("of this method nothing is shared after the last round")
    why = refusal(declared, side.form, message, share, side.trains_on(client))
    if why is not None:
        raise Refused(f"what would be shared does not leave this site: {why}")


def question(head: Head, parts: Mapping[str, State]) -> str:
    """By which a question is known again."""
    asked = {k: v for k, v in head.items() if k != "ticket"}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode())
    for name, part in sorted(parts.items()):
        for key, value in sorted(part.items()):
            digest.update(f"{name}.{key};".encode())
            if isinstance(value, Tensor):
                digest.update(f"{value.dtype} {tuple(value.shape)};".encode())
                digest.update(value.contiguous().numpy().tobytes())
            else:
                digest.update(f"{value!r};".encode())
    return digest.hexdigest()[:16]
