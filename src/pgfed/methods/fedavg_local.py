"""FedAvg-local: FedAvg, but each client is scored with the model it trained last.

The control that makes PGFed's comparison honest: it is PGFed with mu = 0, so the difference
between the two is what the explicit objective contributes, and the difference between this one and
FedAvg is what scoring after local training contributes.

Symbols: theta -> server["w"], theta_i of the last participation -> state["w"], v_i -> state["v"].
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvgLocal(Algorithm):
    name = "fedavg-local"
    leaves = {"w": "model", "n": "count"}
    personal_from = "own"
    covered = True

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task, message["w"], data, rng, self.train, state)
        return {"w": w, **self.keep(**kept)}, {"w": w, "n": len(data)}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]
        return w
