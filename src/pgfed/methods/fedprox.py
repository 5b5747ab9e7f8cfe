"""FedProx: FedAvg whose clients are held near the model they receive.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys
2020.

Client i minimises f_i(theta_i) + mu/2 |theta_i - theta|^2 from theta, the model it has received.

Symbols: theta -> server["w"]; mu -> mu; v_i -> state["v"]. The server's mean, and the common model
that every client is scored with, are the contract's defaults.

Differs from the released code in: that has no momentum (train.momentum = 0), and lets stragglers
stop after a random number of epochs, and counts them. (Its default mu is 0, which is FedAvg; its
README runs 0 and 1.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import check_pull
from pgfed.methods.steps import pull, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    name = "fedprox"
    leaves = {"w": "model", "n": "count"}
    covered = True
    control = {"mu": 0.0}
    control_twin = "fedavg"
    grid = {"mu": [0.001, 0.01, 0.1, 1.0]}

    mu: Annotated[float, Ge(0), "mu, weight of the proximal term"] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull(self.name, "mu", self.mu, self.train)

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        leash = pull(self.mu, message["w"][: task.d])
        w, kept = sgd(task, message["w"], data, rng, self.train, state, terms=leash)
        return self.keep(**kept), {"w": w, "n": len(data)}
