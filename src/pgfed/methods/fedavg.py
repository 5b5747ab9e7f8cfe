"""FedAvg: one model for all, averaged from the clients' local training.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017.

Symbols: theta -> server["w"], the clients' momentum buffers v_i -> state["v"].

Differs from the released code in: nothing. (The original has no momentum: train.momentum = 0.)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, Message, Rng, State, Update, sgd
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    name = "fedavg"
    leaves = {"w": "model", "n": "count"}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, v = sgd(task, message["w"], data, rng, self.train, velocity=state.get("v"))
        return self.keep(v=v), {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public["w"]
        return w
