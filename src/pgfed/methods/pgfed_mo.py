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
random streams are separate; with batch norm or dropout that pass is in evaluation mode, there in
training mode. Where the code differs from the paper, this follows the code: alpha is
clamped at 0 (alpha_clamp) and steps before theta (alpha_order); the first auxiliary gradient is
taken whole, not scaled by 1 - beta. (The released command line cannot switch this method on.)

With ``shared`` the explicit objective goes with personal layers ("body": FedPer's), with ``solver``
also with FedRep's way of training them: the explicit term and the alphas then act while the base is
trained. Its control is the same with mu = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods import alphas, expansions
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo, need_base
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class PGFedMo(Algorithm):
    name = "pgfed-mo"
    leaves = {"w": "model", "gradient": "gradient", "r": "scalar", "alpha": "row", "n": "count"}
    personal_from = "own"
    covered = True
    control = {"mu": 0.0}
    control_twin = "fedavg-local"
    plain_sgd = expansions.PLAIN
    grid = {"mu": [0.1, 0.05, 0.01, 0.005, 0.001], "beta": [0.2, 0.5, 0.8]}

    mu: Annotated[float, Ge(0), "mu, weight of the other clients' risks"] = 0.1
    alpha_lr: Annotated[float, Ge(0), "eta_2, step of the alphas"] = 0.01
    beta: Annotated[float, Ge(0), Le(1), "beta, share of the previous auxiliary gradient"] = 0.5
    alpha_clamp: Annotated[bool, "keep alphas >= 0"] = True
    alpha_order: Annotated[Literal["pre", "post"], "alpha steps before or after theta"] = "pre"
    full_grad: Annotated[bool, "take the gradient pass over every sample"] = False
    shared: Annotated[str, expansions.SHARED] = "all"
    solver: Annotated[Literal["sgd", "head-then-base"], expansions.SOLVER] = "sgd"
    head_epochs: Annotated[int, Ge(0), expansions.HEAD_EPOCHS] = 5

    def check_model(self, task: Task) -> None:
        task.layout.shared(self.shared)  # a pattern that fits nothing is said now
        if self.solver == "head-then-base" or self.shared == "body":
            need_base(self.name, task)

    def twin(self) -> str | None:
        return self.control_twin if (self.shared, self.solver) == ("all", "sgd") else None

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return expansions.unknown(w0, federation, self.shared)

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return expansions.untrained(w0, client)

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        if not len(server["ids"]):  # round 1, or nobody answered in the last one
            return {i: {"w": server["w"]} for i in cohort}
        aux = expansions.auxiliary(server, cohort, self.mu)
        common = {
            "w": server["w"],
            "mean_gradient": self.mu * server["gradients"].mean(0),
            "risks": self.mu * server["r"],
            "ids": server["ids"],
        }
        return {i: {**common, "aux": aux[k]} for k, i in enumerate(cohort)}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids, alpha = expansions.met(state, message)
        aux, expanded = state.get("aux"), task.layout.stepped(self.shared)
        if len(ids):
            aux = message["aux"] if aux is None else torch.lerp(message["aux"], aux, self.beta)

        def descend_alpha(theta: Tensor) -> None:
            if len(ids):
                slope = message["mean_gradient"] @ expanded.take(theta)
                alpha.sub_(message["risks"] + slope, alpha=self.alpha_lr)
                if self.alpha_clamp:
                    alpha.clamp_(min=0)

        new, update = expansions.local_round(
            self,
            task,
            state,
            message,
            data,
            rng,
            aux=aux if len(ids) else None,
            ids=ids,
            alpha=alpha,
            descend_alpha=descend_alpha,
            alpha_last=self.alpha_order == "post",
        )
        return new if aux is None else {**new, "aux": aux}, update

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        return expansions.collect(server, updates, mean)

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]  # as left by the client's last participation
        return w

    def share(self, state: State, client: ClientInfo) -> Update:
        return expansions.own_part(self.shared, state, client)

    def export(self, server: State) -> dict[str, Any]:
        return alphas.export(server)
