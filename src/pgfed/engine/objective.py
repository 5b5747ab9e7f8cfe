"""From the [task] table of an experiment to its objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from pgfed.config.tables import Task
from pgfed.data.federation import Federation
from pgfed.data.targets import Targets
from pgfed.errors import NOTES, UserError
from pgfed.model import kinds
from pgfed.model.objectives import Objective


def targets_of(table: Task) -> Targets:
    """The form in which the data's targets are to be read."""
    return kinds.class_of(table.kind).targets


def make_objective(table: Task, outputs: Sequence[str]) -> Objective:
    """What the [task] table describes; ``outputs`` are the names of the model's outputs."""
    return kinds.make(
        table.kind,
        outputs,
        metric=table.metric,
        also=table.metrics,
        weights=table.class_weights,
        positive=table.positive,
        means=table.target_means,
        scales=table.target_scales,
    )


def completed(table: Task, federation: Federation) -> Task:
    """With what the data says of its targets, where the experiment is silent.

    Regression's are standardised by constants that all clients have in common: declared, or in a
    simulation those of all training data, which is said.
    """
    if table.kind == "binary" and table.positive is None:
        return replace(table, positive=federation.positive)
    if table.kind != "regression" or table.target_means or table.target_scales:
        return table
    if federation.target_scaling is not None:
        means, spread = federation.target_scaling
        return replace(table, target_means=means, target_scales=spread)
    parts = [federation.train(i).y for i in range(len(federation))]
    values = torch.cat(parts).double()
    scales = values.std(0, correction=0)
    if not len(values) or not bool((scales > 0).all()):
        raise UserError(f"{federation.name}: a target has the same value everywhere")
    means = [float(f"{value:.6g}") for value in values.mean(0)]
    spread = [float(f"{value:.6g}") for value in scales]
    NOTES.info(
        f"targets are standardised by mean {_listed(means)} and scale {_listed(spread)}, of all "
        "training data (task.target_means and task.target_scales change it)"
    )
    return replace(table, target_means=means, target_scales=spread)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
