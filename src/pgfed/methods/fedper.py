"""FedPer: a common body under each client's own head, trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated learning with personalization layers. arXiv
1912.00818, 2019.

Symbols: the base layers phi -> server["w"] (what is shared: the body); client i's personalization
layers h_i -> state["own"]; its momentum buffer v_i (base and head) -> state["v"]. The server's mean
and the personal model, the newest body under the own head, are the contract's defaults.

With ``shared`` other layers stay at home; "not:fc2.bias" is FedAvg but for a bias of their own.

Differs from the released code in: the heads' mean of the global model is divided by the number of
samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, need_base
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedPer(Algorithm):
    name = "fedper"
    leaves = {"w": "model", "n": "count"}
    personal_from = "both"
    covered = True
    new_client_start = (
        "no global classifier: the common body, with the mean of all clients' classifiers, "
        "weighted by their training samples"
    )

    shared: Annotated[
        str,
        "what is averaged: body | all | head | not-norm | a pattern of names | not: and a pattern",
    ] = "body"

    def check_model(self, task: Task) -> None:
        task.layout.shared(self.shared)  # a pattern that fits nothing is said now
        if self.shared == "body":
            need_base("fedper", task)

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(self.shared, message["w"], state.get("own"))
        theta, kept = sgd(task, theta, data, rng, self.train, state)
        w, own = task.layout.split(self.shared, theta)
        # A copy, as a slice of theta would keep all of it in memory.
        home = {"own": own.clone()} if len(own) else {}
        return {**home, **self.keep(**kept)}, {"w": w, "n": len(data)}
