"""PGFed-CE: PGFed that sends one vector less ("communication-efficient").

Luo, Mendieta, Chen, Wu. PGFed: Personalize Each Client's Global Objective for Federated Learning.
ICCV 2023.

As PGFed (pgfed.py), but the gradient of alpha_ij is taken once, at the model the round starts
from, by the server: c_j = mu (r_j + grad_j . theta). The client needs no mean gradient and no inner
product per step. From the paper's appendix.

Symbols: theta -> server["w"]; grad f_j(theta_j) -> server["gradients"] (rows in the order of
server["ids"] = S_{t-1}); r_j = f_j(theta_j) - grad_j . theta_j -> "r"; A -> alphas.py; theta_i ->
state["w"]; v_i -> state["v"]; g~_i -> message["aux"]; c_j -> message["costs"]; eta_2 -> alpha_lr.

Differs from the released code in: the released code does not have this method. The appendix takes
each client's own gradient in c_j; ce_g2 = "mean" takes their mean, as PGFed does, which isolates
"constant" from "adaptive".
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
class PGFedCE(Algorithm):
    name = "pgfed-ce"
    leaves = {"w": "model", "gradient": "gradient", "r": "scalar", "alpha": "row", "n": "count"}
    control = {"mu": 0.0}
    control_twin = "fedavg-local"
    grid = {"mu": [0.1, 0.05, 0.01, 0.005, 0.001]}

    mu: float = 0.1  # mu, weight of the other clients' risks
    alpha_lr: float = 0.01  # eta_2, step of the alphas
    alpha_clamp: bool = True  # keep alphas >= 0
    ce_g2: Literal["per_client", "mean"] = "per_client"  # whose gradient enters c_j
    full_grad: bool = False  # take the gradient pass over every sample

    def __post_init__(self) -> None:
        need(self.mu >= 0, "method.pgfed-ce.mu", ">= 0", self.mu)
        need(self.alpha_lr >= 0, "method.pgfed-ce.alpha_lr", ">= 0", self.alpha_lr)

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return expansions.unknown(w0, federation)

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0, **alphas.empty_row(client.federation.cohort)}

    def messages(self, server: State, cohort: Sequence[int]) -> dict[int, Message]:
        if not len(server["ids"]):  # round 1, or nobody answered in the last one
            return {i: {"w": server["w"]} for i in cohort}
        aux = expansions.auxiliary(server, cohort, self.mu)
        gradients = server["gradients"]
        if self.ce_g2 == "mean":
            gradients = gradients.mean(0, keepdim=True)
        inner = gradients @ server["w"][: gradients.shape[1]]
        shared = {
            "w": server["w"],
            "costs": self.mu * (server["r"] + inner),
            "ids": server["ids"],
        }
        return {i: {**shared, "aux": aux[k]} for k, i in enumerate(cohort)}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids = message.get("ids", state["alpha_ids"][:0])
        alpha = alphas.row(state, ids)

        def descend_alpha(theta: Tensor) -> None:
            if len(ids):
                alpha.sub_(message["costs"], alpha=self.alpha_lr)
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
            before=descend_alpha,
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
