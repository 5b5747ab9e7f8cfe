"""FedPer: a common body under each client's own head, trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated learning with personalization layers. arXiv
1912.00818, 2019.

Symbols: the base layers phi -> server["body"]; client i's personalization layers h_i ->
state["head"]; its momentum buffer v_i (base and head) -> state["v"].

Differs from the released code in: the heads' mean of the global model is divided by the number of
samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
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
class FedPer(Algorithm):
    name = "fedper"
    leaves = {"body": "body", "n": "count"}
    shares = {"head": "head", "n": "count"}
    new_client_start = (
        "no global classifier: the common body, with the mean of all clients' classifiers, "
        "weighted by their training samples"
    )

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        body, head = federation.layout.split(w0)
        return {"body": body, "head": head}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"head": client.federation.layout.split(w0)[1]}

    def messages(self, server: State, cohort: Sequence[int]) -> dict[int, Message]:
        return {i: {"body": server["body"]} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(message["body"], state["head"])
        theta, v = sgd(task, theta, data, rng, self.train, velocity=state.get("v"))
        body, head = task.layout.split(theta)
        # A copy, as a slice of theta would keep all of it in memory.
        return {"head": head.clone(), **self.keep(v=v)}, {"body": body, "n": len(data)}

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        if not updates:
            return server
        return {**server, "body": mean(updates, "body", around=server["body"])}

    def public(self, server: State) -> Message:
        return {"body": server["body"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return task.layout.join(public["body"], state["head"])

    def share(self, state: State, client: ClientInfo) -> Update:
        return {"head": state["head"], "n": client.n}

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        # Without any client's head a new client starts from the one everybody started from.
        head = Mean()(shares, "head") if shares else server["head"]
        return task.layout.join(server["body"], head)
