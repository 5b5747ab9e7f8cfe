"""Explicit against implicit: what do the other clients' risks add to a client's objective?

Luo, Mendieta, Chen, Wu. PGFed: Personalize Each Client's Global Objective for Federated Learning.
ICCV 2023, the figure of section 3.

From one FedAvg model, each client takes S steps on (a) its own risk f_i, (b) f_i + mu / (N - 1)
sum_{j != i} f_j, every risk and gradient exact: over all training samples, at the client's own
model. Plain gradient descent. The second objective also changes the length of a step, so the step
length is chosen for each arm by itself, and the whole range is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pgfed.data.federation import Federation, Shard
from pgfed.engine.parallel import side_by_side
from pgfed.errors import UserError
from pgfed.methods.randomness import generator
from pgfed.model.task import GRADIENT_BATCH, Task
from pgfed.results.folder.layout import csv_text
from pgfed.results.statistics import Comparison, Paired, mean_std

Floats = NDArray[np.float64]

STEPS = 6
RATES = (1.0, 0.1, 0.01, 0.001, 0.0001)  # the paper's grid, and one more for plain full-batch steps
MUS = (0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Arm:
    """One objective with one step length: clients x (steps + 1) accuracies."""

    mu: float  # 0: the client's own risk alone
    lr: float
    test: Floats
    validation: Floats

    @property
    def name(self) -> str:
        return f"explicit, mu = {self.mu:g}" if self.mu else "implicit"

    @property
    def curve(self) -> Floats:
        """Mean test accuracy after 0, 1, ... steps."""
        curve: Floats = np.nanmean(self.test, axis=0)
        return curve

    @property
    def gains(self) -> Floats:
        """Per client: accuracy after the last step minus that of the start."""
        gains: Floats = np.round(self.test[:, -1] - self.test[:, 0], 9)
        return gains


@dataclass(frozen=True)
class Explicit:
    """What came out."""

    clients: list[int]
    arms: list[Arm]
    chosen: dict[float, Arm]  # mu -> the arm with the best step length
    chosen_on: str  # validation or test

    @property
    def implicit(self) -> Arm:
        return self.chosen[0.0]

    @property
    def explicit(self) -> Arm:
        """Of the chosen arms with the others' risks, the best one."""
        return max(
            (arm for mu, arm in self.chosen.items() if mu),
            key=lambda arm: _last(arm, self.chosen_on),
        )

    def difference(self) -> Comparison:
        """Explicit minus implicit, client by client."""
        gains = {"explicit": self.explicit.gains[None], "implicit": self.implicit.gains[None]}
        return Paired(gains).difference("explicit", "implicit")


def study(
    task: Task,
    federation: Federation,
    start: Tensor,
    clients: Sequence[int],
    *,
    steps: int = STEPS,
    rates: Sequence[float] = RATES,
    mus: Sequence[float] = MUS,
    jobs: int = 1,
    done: Callable[[int], None] = lambda client: None,
) -> Explicit:
    """Descend from ``start`` on every objective with every step length, for each client."""
    objectives = [(mu, lr) for mu in dict.fromkeys([0.0, *mus]) for lr in rates]

    def work(client: int) -> list[Any]:
        return [descend(task, federation, client, start, mu, lr, steps) for mu, lr in objectives]

    found: dict[int, list[Any]] = {}
    for position, scores in side_by_side(work, list(clients), jobs):
        found[clients[position]] = scores
        done(clients[position])
    arms = []
    for k, (mu, lr) in enumerate(objectives):
        scores = np.array([found[i][k] for i in clients], dtype=np.float64)  # None becomes NaN
        arms.append(Arm(mu, lr, scores[:, :, 0], scores[:, :, 1]))
    chosen_on = "test" if np.isnan(arms[0].validation).all() else "validation"
    chosen: dict[float, Arm] = {}
    for arm in arms:
        held = chosen.get(arm.mu)
        if held is None or _last(arm, chosen_on) > _last(held, chosen_on):
            chosen[arm.mu] = arm
    return Explicit(list(clients), arms, chosen, chosen_on)


def _last(arm: Arm, part: str) -> float:
    return float(np.nanmean(getattr(arm, part)[:, -1]))


def descend(
    task: Task,
    federation: Federation,
    client: int,
    start: Tensor,
    mu: float,
    lr: float,
    steps: int,
) -> list[list[float | None]]:
    """(test, validation) accuracy of the client's model after 0, 1, ... steps."""
    theta = start.clone()
    scores = [_score(task, theta, federation, client)]
    for _ in range(steps):
        theta[: task.d].add_(objective_gradient(task, theta, federation, client, mu), alpha=-lr)
        scores.append(_score(task, theta, federation, client))
    return scores


def objective_gradient(
    task: Task, theta: Tensor, federation: Federation, client: int, mu: float
) -> Tensor:
    """The gradient of f_i + mu / (N - 1) sum_{j != i} f_j at ``theta``."""
    total = torch.zeros(task.d, device=task.device)
    others = [j for j in range(len(federation)) if j != client] if mu else []
    _add_risk_gradient(task, theta, federation.train(client), total, 1.0)
    for j in others:
        _add_risk_gradient(task, theta, federation.train(j), total, mu / len(others))
    return total


def _add_risk_gradient(task: Task, theta: Tensor, data: Shard, out: Tensor, weight: float) -> None:
    piece = torch.empty_like(out)
    for first in range(0, len(data), GRADIENT_BATCH):
        x, y = data.batch(slice(first, min(first + GRADIENT_BATCH, len(data))))
        piece.zero_()
        task.add_gradient(theta, x, y, piece, training=False)
        out.add_(piece, alpha=weight * len(y) / len(data))


def _score(task: Task, theta: Tensor, federation: Federation, client: int) -> list[float | None]:
    parts = federation.test(client), federation.validation(client)
    return [task.score(theta, data).score if len(data) else None for data in parts]


def choose_clients(federation: Federation, count: int | None, seed: int) -> list[int]:
    """Clients with test data; ``count`` of them drawn at random."""
    able = np.flatnonzero(federation.n_test > 0)
    if not len(able):
        raise UserError("the study needs test data, and no client has any")
    if count is None or count >= len(able):
        return [int(i) for i in able]
    return sorted(int(i) for i in generator(seed, "study").choice(able, count, replace=False))


# -- what is written ---------------------------------------------------------------------------


def document(result: Explicit) -> dict[str, Any]:
    """The content of explicit.json."""
    difference = result.difference()
    return {
        "clients": result.clients,
        "steps": len(result.implicit.curve) - 1,
        "chosen_on": result.chosen_on,
        "explicit_minus_implicit": {
            "mean": difference.mean,
            "low": difference.low,
            "high": difference.high,
        },
        "arms": [
            {
                **row(result, arm),
                "accuracy": arm.curve.tolist(),
                "gains": [None if np.isnan(gain) else float(gain) for gain in arm.gains],
            }
            for arm in result.arms
        ],
    }


def row(result: Explicit, arm: Arm) -> dict[str, Any]:
    """One line of explicit.csv."""
    mean, std = mean_std(arm.gains)
    return {
        "objective": "explicit" if arm.mu else "implicit",
        "mu": arm.mu,
        "lr": arm.lr,
        "chosen": arm is result.chosen[arm.mu],
        "accuracy_before": float(arm.curve[0]),
        "accuracy_after": float(arm.curve[-1]),
        "gain_mean": mean,
        "gain_std": None if np.isnan(std) else std,
        "clients_harmed": int((arm.gains < 0).sum()),
    }


def table(result: Explicit) -> str:
    """The content of explicit.csv."""
    return csv_text([row(result, arm) for arm in result.arms])
