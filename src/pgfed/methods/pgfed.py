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
random streams are separate; with batch norm or dropout that pass is in evaluation mode, there in
training mode. Where the code differs from the paper, this follows the code: alpha is
clamped at 0 (alpha_clamp) and steps before theta (alpha_order).

With ``shared`` the explicit objective goes with personal layers ("body": FedPer's), with ``solver``
also with FedRep's way of training them: the explicit term and the alphas then act while the base is
trained. Its control is the same with mu = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods import alphas, expansions
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo, need_base
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class PGFed(Algorithm):
    name = "pgfed"
    leaves = {"w": "model", "gradient": "gradient", "r": "scalar", "alpha": "row", "n": "count"}
    personal_from = "own"
    covered = True
    control = {"mu": 0.0}
    control_twin = "fedavg-local"
    plain_sgd = expansions.PLAIN
    grid = {"mu": [0.1, 0.05, 0.01, 0.005, 0.001]}

    mu: Annotated[float, Ge(0), "mu, weight of the other clients' risks"] = 0.1
    alpha_lr: Annotated[float, Ge(0), "eta_2, step of the alphas"] = 0.01
    alpha_clamp: Annotated[bool, "keep alphas >= 0"] = True
    alpha_order: Annotated[Literal["pre", "post"], "alpha steps before or after theta"] = "pre"
    alpha_gradient: Annotated[
        Literal["mean", "exact"],
        "exact: an oracle that sends each client's gradient instead of their mean",
    ] = "mean"
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
            **self._slope(server["gradients"]),
            "risks": self.mu * server["r"],
            "ids": server["ids"],
        }
        return {i: {**common, "aux": aux[k]} for k, i in enumerate(cohort)}

    def _slope(self, gradients: Tensor) -> Message:
        """What is multiplied by theta_i in the gradient of the alphas."""
        if self.alpha_gradient == "exact":
            return {"gradients": self.mu * gradients}
        return {"mean_gradient": self.mu * gradients.mean(0)}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids, alpha = expansions.met(state, message)
        slope = message.get("gradients", message.get("mean_gradient"))
        expanded = task.layout.stepped(self.shared)

        def descend_alpha(theta: Tensor) -> None:
            if slope is not None:
                alpha.sub_(message["risks"] + slope @ expanded.take(theta), alpha=self.alpha_lr)
                if self.alpha_clamp:
                    alpha.clamp_(min=0)

        return expansions.local_round(
            self,
            task,
            state,
            message,
            data,
            rng,
            aux=message.get("aux"),
            ids=ids,
            alpha=alpha,
            descend_alpha=descend_alpha,
            alpha_last=self.alpha_order == "post",
        )

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
