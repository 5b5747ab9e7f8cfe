"""Models and objectives that cannot be trained with privacy: refused by name, with the way out."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from pgfed.errors import UserError
from pgfed.model.kinds import Classes
from pgfed.model.objectives import Objective
from pgfed.model.private.gradients import made_up
from pgfed.model.task import Task

APART = 1e-3  # how far rounding may take a sample beside others from the sample alone


def check_model(task: Task) -> None:
    """Refuse layers that make one sample's output depend on the others of its batch."""
    resting = {id(module) for module in task._resting}
    for name, module in task.module.named_modules():
        norm = isinstance(module, _BatchNorm)
        tracks = isinstance(module, _NormBase) and module.track_running_stats
        if (norm or tracks) and id(module) not in resting:
            raise UserError(
                f"privacy: the model's {name or 'module'!r} is nn.{type(module).__name__}, which "
                "mixes the samples of a batch; use group norm (model.norm = 'group', or "
                "nn.GroupNorm in a model of your own), or freeze it"
            )
    _check_samples_apart(task)
    _check_buffers(task)


def _check_buffers(task: Task) -> None:
    """Refuse a model that keeps something of what it has seen, also where it is never sent: the
    next sample's gradient would depend on it. What the first pass makes may stay, as a mask."""
    theta = task.initial()
    task._bind(theta, torch.zeros_like(theta), "all", training=True)
    x, _ = made_up(task, 4)
    kept = [theta.clone()]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for two in (x[:2], x[2:]):
            task.module(two)
            kept.append(torch.cat([b.flatten().double() for b in task.module.buffers()] or [theta]))
    if not (torch.equal(kept[0], theta) and torch.equal(kept[1], kept[2])):
        raise UserError(
            "privacy: the model changes a buffer while it is trained, which would carry samples "
            "out; use layers that keep no statistics"
        )


def _check_samples_apart(task: Task) -> None:
    """Refuse a model, or losses, that give a sample something else beside others than alone."""
    x, y = made_up(task, 3)
    outputs = task.logits(task.initial(), x)
    alone = torch.cat([task.logits(task.initial(), x[k : k + 1]) for k in range(3)])
    if not torch.allclose(outputs, alone, rtol=APART, atol=APART):
        raise UserError(
            "privacy: what the model gives for a sample depends on the others of its batch; use "
            "layers that look at each sample by itself"
        )
    losses = task.objective.losses
    singly = torch.cat([losses(alone[k : k + 1], y[k : k + 1]) for k in range(3)])
    if not torch.allclose(losses(alone, y), singly, rtol=APART, atol=APART):
        raise UserError(
            f"task.kind: {type(task.objective).__name__}.losses of a sample depends on the others "
            "of its batch, which privacy cannot bound"
        )


def check_objective(objective: Objective) -> None:
    """Refuse losses that are not one sample's own."""
    if type(objective).losses is Objective.losses:
        raise UserError(
            f"task.kind: {type(objective).__name__} has no losses per sample, which privacy "
            "needs; give it a method `losses`"
        )
    if isinstance(objective, Classes) and objective.balanced:
        raise UserError(
            "task.class_weights: found 'balanced', which follows from the classes of all records; "
            "under privacy allowed: none, or a public list of numbers"
        )


def loss_scale(objective: Objective, outputs: int, given: float | None) -> float | None:
    """L, the public bound on a unit's loss: 2 ln(classes); None where it must be given."""
    if given is not None:
        return given
    if isinstance(objective, Classes):
        return 2.0 * float(torch.tensor(float(max(outputs, 2))).log())
    return None
