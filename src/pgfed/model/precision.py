"""Gradients in bfloat16 (`train.precision`): whether a model can have them, and where they pay."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pgfed.errors import NOTES, UserError, first_line
from pgfed.model.task import Task


def check(task: Task, example: Tensor) -> None:
    """Refuse a model that has layers which do not compute in bfloat16, forward or backward."""
    view = copy.copy(task)
    view.bfloat16 = True
    out = torch.zeros(task.d, device=task.device)
    try:
        _, outputs = view.forward(task.initial(), example.to(task.device), out)
        outputs.sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UserError(
            f"train.precision: the model does not compute in bfloat16: {first_line(error)}"
        ) from error


def say_if_slower(task: Task, device: str) -> None:
    """Say where bfloat16 is slower than what it takes the place of."""
    if torch.device(device).type != "cpu":
        return
    if task.written_out:
        NOTES.warning(
            "train.precision: the gradient of this small model is written out in float32 alone: "
            "the run will be slower than with float32"
        )
        return
    # torch before 2.12 does not tell.
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    able = known.get("avx512_bf16") or known.get("amx_bf16")
    if known.get("architecture") == "x86_64" and not able:
        NOTES.warning(
            "train.precision: this processor does not compute in bfloat16 (it has neither "
            "AVX512_BF16 nor AMX): the run will be slower than with float32"
        )
