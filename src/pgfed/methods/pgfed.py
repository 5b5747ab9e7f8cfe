"""PGFed: each client's objective holds the other clients' risks, explicitly.

Luo, Mendieta, Chen, Wu. PGFed: Personalize Each Client's Global Objective for Federated Learning.
ICCV 2023.

Client i minimises f_i(theta) + mu * sum_j alpha_ij f_j(theta). The other risks are replaced by
their first-order expansions at the models theta_j of the last round, so that what client i needs
of them is one vector, the auxiliary gradient.

Symbols: theta -> server["w"]; grad f_j(theta_j) -> server["gradients"] (rows in the order of
server["ids"] = S_{t-1}); r_j = f_j(theta_j) - grad_j . theta_j -> "r"; A -> alphas.py; theta_i ->
state["w"]; v_i -> state["v"]; g~_i -> message["aux"]; g-bar -> message["mean_gradient"];
mu r_j -> message["risks"]; eta_2 -> alpha_lr.

alpha_gradient = "exact" is an oracle, to measure what replacing the clients' gradients by their
mean does to A: it sends all M of them (mu grad_j -> message["gradients"]), which no federation
could afford, and each alpha_ij steps along its own inner product.

Differs from the released code in: the gradient pass is computed in large batches (the same mean);
random streams are separate. Where the code differs from the paper, this follows the code: alpha is
clamped at 0 (alpha_clamp) and steps before theta (alpha_order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import need
from pgfed.methods import alphas, expansions
from pgfed.methods.contract import (
    Algorithm,
    ClientInfo,
    FederationInfo,
    Mean,
    Message,
    Rng,
    State,
    Update,
    sgd,
)
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class PGFed(Algorithm):
    name = "pgfed"
    leaves = {"w": "model", "gradient": "gradient", "r": "scalar", "alpha": "row", "n": "count"}
    control = {"mu": 0.0}
    control_twin = "fedavg-local"
    grid = {"mu": [0.1, 0.05, 0.01, 0.005, 0.001]}

    mu: float = 0.1  # mu, weight of the other clients' risks
    alpha_lr: float = 0.01  # eta_2, step of the alphas
    alpha_clamp: bool = True  # keep alphas >= 0
    alpha_order: Literal["pre", "post"] = "pre"  # alpha steps before or after theta
    # exact: an oracle that sends each client's gradient instead of their mean
    alpha_gradient: Literal["mean", "exact"] = "mean"
    full_grad: bool = False  # take the gradient pass over every sample

    def __post_init__(self) -> None:
        need(self.mu >= 0, "method.pgfed.mu", ">= 0", self.mu)
        need(self.alpha_lr >= 0, "method.pgfed.alpha_lr", ">= 0", self.alpha_lr)

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return expansions.unknown(w0, federation)

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0, **alphas.empty_row(client.federation.cohort)}

    def messages(self, server: State, cohort: Sequence[int]) -> dict[int, Message]:
        if not len(server["ids"]):  # round 1, or nobody answered in the last one
            return {i: {"w": server["w"]} for i in cohort}
        aux = expansions.auxiliary(server, cohort, self.mu)
        shared = {
            "w": server["w"],
            **self._slope(server["gradients"]),
            "risks": self.mu * server["r"],
            "ids": server["ids"],
        }
        return {i: {**shared, "aux": aux[k]} for k, i in enumerate(cohort)}

    def _slope(self, gradients: Tensor) -> Message:
        """What is multiplied by theta_i in the gradient of the alphas."""
        if self.alpha_gradient == "exact":
            return {"gradients": self.mu * gradients}
        return {"mean_gradient": self.mu * gradients.mean(0)}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids = message.get("ids", state["alpha_ids"][:0])
        alpha, post = alphas.row(state, ids), self.alpha_order == "post"
        slope = message.get("gradients", message.get("mean_gradient"))

        def descend_alpha(theta: Tensor) -> None:
            if slope is not None:
                alpha.sub_(message["risks"] + slope @ theta, alpha=self.alpha_lr)
                if self.alpha_clamp:
                    alpha.clamp_(min=0)

        theta, v = sgd(
            task,
            message["w"],
            data,
            rng,
            self.train,
            velocity=state.get("v"),
            constant=message.get("aux"),
            before=None if post else descend_alpha,
            after=descend_alpha if post else None,
        )
        risk = expansions.expand(task, theta, data, rng, self.train, full=self.full_grad)
        new = {"w": theta, **alphas.with_row(state, ids, alpha), **self.keep(v=v)}
        return new, {"w": theta, **risk, "alpha": alpha, "n": len(data)}

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        return expansions.collect(server, updates, mean)

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]  # as left by the client's last participation
        return w

    def export(self, server: State) -> dict[str, Any]:
        return alphas.export(server)
