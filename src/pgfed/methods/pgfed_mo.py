"""PGFedMo: PGFed whose auxiliary gradient has momentum over the client's participations.

Luo, Mendieta, Chen, Wu. PGFed: Personalize Each Client's Global Objective for Federated Learning.
ICCV 2023.

As PGFed (pgfed.py), but a client mixes the auxiliary gradient it receives with the one it used in
its previous participation: g~_i <- (1 - beta) g~_i(new) + beta g~_i(old).

Symbols: theta -> server["w"]; grad f_j(theta_j) -> server["gradients"] (rows in the order of
server["ids"] = S_{t-1}); r_j = f_j(theta_j) - grad_j . theta_j -> "r"; A -> alphas.py; theta_i ->
state["w"]; v_i -> state["v"]; g~_i(new) -> message["aux"]; g~_i -> state["aux"]; g-bar ->
message["mean_gradient"]; mu r_j -> message["risks"]; eta_2 -> alpha_lr.

Differs from the released code in: the gradient pass is computed in large batches (the same mean);
random streams are separate. Where the code differs from the paper, this follows the code: alpha is
clamped at 0 (alpha_clamp) and steps before theta (alpha_order); the first auxiliary gradient is
taken whole, not scaled by 1 - beta. (The released command line cannot switch this method on.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
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
class PGFedMo(Algorithm):
    name = "pgfed-mo"
    leaves = {"w": "model", "gradient": "gradient", "r": "scalar", "alpha": "row", "n": "count"}
    control = {"mu": 0.0}
    control_twin = "fedavg-local"
    grid = {"mu": [0.1, 0.05, 0.01, 0.005, 0.001], "beta": [0.2, 0.5, 0.8]}

    mu: float = 0.1  # mu, weight of the other clients' risks
    alpha_lr: float = 0.01  # eta_2, step of the alphas
    beta: float = 0.5  # beta, share of the previous auxiliary gradient
    alpha_clamp: bool = True  # keep alphas >= 0
    alpha_order: Literal["pre", "post"] = "pre"  # alpha steps before or after theta
    full_grad: bool = False  # take the gradient pass over every sample

    def __post_init__(self) -> None:
        need(self.mu >= 0, "method.pgfed-mo.mu", ">= 0", self.mu)
        need(self.alpha_lr >= 0, "method.pgfed-mo.alpha_lr", ">= 0", self.alpha_lr)
        need(0 <= self.beta <= 1, "method.pgfed-mo.beta", "between 0 and 1", self.beta)

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
            "mean_gradient": self.mu * server["gradients"].mean(0),
            "risks": self.mu * server["r"],
            "ids": server["ids"],
        }
        return {i: {**shared, "aux": aux[k]} for k, i in enumerate(cohort)}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids = message.get("ids", state["alpha_ids"][:0])
        alpha, post = alphas.row(state, ids), self.alpha_order == "post"
        aux = state.get("aux")
        if len(ids):
            aux = message["aux"] if aux is None else torch.lerp(message["aux"], aux, self.beta)

        def descend_alpha(theta: Tensor) -> None:
            if len(ids):
                alpha.sub_(message["risks"] + message["mean_gradient"] @ theta, alpha=self.alpha_lr)
                if self.alpha_clamp:
                    alpha.clamp_(min=0)

        theta, v = sgd(
            task,
            message["w"],
            data,
            rng,
            self.train,
            velocity=state.get("v"),
            constant=aux if len(ids) else None,
            before=None if post else descend_alpha,
            after=descend_alpha if post else None,
        )
        risk = expansions.expand(task, theta, data, rng, self.train, full=self.full_grad)
        new = {"w": theta, **alphas.with_row(state, ids, alpha), **self.keep(v=v)}
        if aux is not None:
            new["aux"] = aux
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
