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
class PGFedCE(Algorithm):
    name = "pgfed-ce"
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
    ce_g2: Annotated[Literal["per_client", "mean"], "whose gradient enters c_j"] = "per_client"
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
        gradients = server["gradients"]
        if self.ce_g2 == "mean":
            gradients = gradients.mean(0, keepdim=True)
        # Buffers come last in what is shared, and are not expanded.
        inner = gradients @ server["w"][: gradients.shape[1]]
        common = {
            "w": server["w"],
            "costs": self.mu * (server["r"] + inner),
            "ids": server["ids"],
        }
        return {i: {**common, "aux": aux[k]} for k, i in enumerate(cohort)}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids, alpha = expansions.met(state, message)

        def descend_alpha(theta: Tensor) -> None:
            if len(ids):
                alpha.sub_(message["costs"], alpha=self.alpha_lr)
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
