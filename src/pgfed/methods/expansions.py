"""What PGFed's server knows of the clients' risks: their first-order expansions.

Client j's risk near the model theta_j it reached is f_j(theta_j) + grad_j . (theta - theta_j), so
server["r"], r_j = f_j(theta_j) - grad_j . theta_j, and server["gradients"] tell all of it. Both
hold one row per client of server["ids"], the clients that answered in the last round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods import alphas
from pgfed.methods.contract import (
    FederationInfo,
    Mean,
    Rng,
    State,
    TrainConfig,
    Update,
    mean_gradient,
)
from pgfed.model.task import Task


def unknown(w0: Tensor, federation: FederationInfo) -> State:
    """The server's state before anybody has answered."""
    return {
        "w": w0,
        "ids": torch.empty(0, dtype=torch.int64),
        "gradients": torch.empty(0, federation.layout.d),
        "r": torch.empty(0),
        **alphas.empty(federation.clients, federation.cohort),
    }


def auxiliary(server: State, cohort: Sequence[int], mu: float) -> Tensor:
    """mu * sum_j alpha_ij grad_j for every client i of the cohort, as one matrix product."""
    alpha = alphas.matrix(server, cohort, server["ids"])
    return alpha.matmul(server["gradients"]).mul_(mu)


def expand(
    task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig, *, full: bool
) -> Update:
    """A client's own risk at theta, as it is reported."""
    risk, gradient = mean_gradient(task, theta, data, rng, train, full=full)
    return {"gradient": gradient, "r": risk - float(gradient @ theta[: task.d])}


def collect(server: State, updates: Mapping[int, Update], mean: Mean) -> State:
    """The server's state after a round: the mean model, the risks, and the rows of A."""
    if not updates:  # the next round runs as the first
        return {**server, **{key: server[key][:0] for key in ("ids", "gradients", "r")}}
    ids, gradients = mean.each(updates, "gradient")
    _, r = mean.each(updates, "r")
    return {
        **server,
        **alphas.with_rows(server, server["ids"], {i: u["alpha"] for i, u in updates.items()}),
        "w": mean(updates, "w", around=server["w"]),
        "ids": server["ids"].new_tensor(ids),
        "gradients": gradients,
        "r": r.to(gradients.device),
    }
