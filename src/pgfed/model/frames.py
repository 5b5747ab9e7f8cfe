"""Frames: a client's own class shares, as an offset of a model's outputs.

Where sites see the same classes in other shares (label shift), the best predictor of client i is
softmax(o(x) + log pi_i), with the outputs o of a model for balanced classes and the client's shares
pi_i; of a model for other shares, softmax(o(x) + log pi_i - log of those).
Prediction: Saerens, Latinne, Decaestecker, Neural Computation 2002; Menon et al., ICLR 2021; Hong
et al., CVPR 2021. Training: Ren et al., Balanced meta-softmax, NeurIPS 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pgfed.errors import UserError
from pgfed.model.task import Task

FLOOR = 1e-4  # the least share of a class that a model may have been trained on


def shares(counts: Tensor, expected: Tensor | None = None) -> Tensor:
    """Of each class at a client with these training samples of them, in float64.

    Few samples say little: a class that is not among n of them is rare, not impossible. So as many
    samples as there are classes, in shares as ``expected`` (all alike), are added to what is there:
    Laplace's rule of succession. Noisy counts may be below 0.
    """
    counts = counts.double().clamp(min=0)
    classes = len(counts)
    if expected is None:
        expected = torch.full_like(counts, 1 / classes)
    return (counts + classes * expected) / (counts.sum() + classes)


def own_frame(counts: Tensor) -> Tensor:
    """For a model for balanced classes: log pi_i less its mean, which no soft-max sees."""
    log = shares(counts).log()
    return (log - log.mean()).float()


def corrected(counts: Tensor, trained_on: Tensor) -> Tensor:
    """For a model that was trained on these shares: from them to the client's own."""
    common = trained_on.double().clamp(min=FLOOR)
    return (shares(counts, common / common.sum()).log() - common.log()).float()


def check(task: Task, shared: str, at: str) -> None:
    """Refuse what no frame can be put on, naming the key."""
    if not task.objective.classifies:
        raise UserError(f"{at}: needs classes, and the task has none; allowed: 'none'")
    if not task.linear_head or task.head_bias is None:
        raise UserError(
            f"{at}: is folded into the bias of the classifier, which must be one nn.Linear with a "
            f"bias; {task.head_name!r} is not; allowed: 'none'"
        )
    if task.layout.own(shared).size:
        kept = torch.zeros(task.layout.n)
        task.layout.own(shared).put(kept, torch.ones(task.layout.own(shared).size))
        if bool(kept[task.layout.head].any()):
            raise UserError(f"{at}: needs a classifier that is shared; allowed: 'none'")
