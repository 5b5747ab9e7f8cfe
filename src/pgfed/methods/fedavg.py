"""FedAvg: one model for all, averaged from the clients' local training.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017.

Symbols: theta -> server["w"], the clients' momentum buffers v_i -> state["v"]. The server's mean,
and the common model that every client is scored with, are the contract's defaults.

Differs from the released code in: nothing. (The original has no momentum: train.momentum = 0.)
"""

from __future__ import annotations

from dataclasses import dataclass

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    name = "fedavg"
    leaves = {"w": "model", "n": "count"}
    covered = True

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task, message["w"], data, rng, self.train, state)
        return self.keep(**kept), {"w": w, "n": len(data)}
