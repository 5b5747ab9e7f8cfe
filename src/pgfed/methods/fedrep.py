"""FedRep: a common representation under each client's own head, trained in turns.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated
learning. ICML 2021.

A client first trains its head on the representation it receives, then the representation under the
head it has found.

Symbols: the representation phi -> server["w"] (what is shared: the body); client i's head h_i ->
state["own"]; the momentum buffers of the two phases -> the base's and the head's part of
state["v"]; E_h -> head_epochs; E -> train.epochs. The two phases are steps.head_then_base.

Differs from the released code in: it has no momentum there (momentum_policy = "official"); the
features of the head phase are computed once, since the frozen base gives the same ones in every
epoch (with batch norm or dropout it does not: they are then those of evaluation mode, there of
training mode, which also moves the statistics); the heads' mean of the global model is divided by
the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, need_base
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import head_then_base
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedRep(Algorithm):
    name = "fedrep"
    leaves = {"w": "model", "n": "count"}
    personal_from = "both"
    covered = True
    shared = "body"
    official_momentum = False
    new_client_start = (
        "no global classifier: the common body, with the mean of all clients' classifiers, "
        "weighted by their training samples"
    )

    head_epochs: Annotated[int, Ge(0), "E_h, epochs on the head before those on the base"] = 5

    def check_model(self, task: Task) -> None:
        need_base("fedrep", task)

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(self.shared, message["w"], state["own"])
        theta, kept = head_then_base(
            task, theta, data, rng, self.steps, state, head_epochs=self.head_epochs
        )
        body, head = task.layout.split(self.shared, theta)
        # A copy, as a slice of theta would keep all of it in memory.
        return {"own": head.clone(), **self.keep(**kept)}, {"w": body, "n": len(data)}
