"""A method of your own in twenty lines: FedProx, run without touching the package.

Li et al. Federated optimization in heterogeneous networks. MLSys 2020.

    pgfed run --set 'methods=["local", "fedavg", "own_algorithm:FedProx"]'    (in this folder)
    python own_algorithm.py                                                   (checks it)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm
from pgfed.methods.values import Message, State, Update
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    name = "fedprox"
    summary = "FedAvg on a leash: clients pay for leaving the common model"
    leaves = {"w": "model", "n": "count"}

    leash: float = 0.1  # mu, weight of the squared distance to the common model

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        start = message["w"][: task.d]

        def pull_back(theta: Tensor, gradient: Tensor) -> None:
            gradient.add_(theta - start, alpha=self.leash)

        w, v = sgd(
            task, message["w"], data, rng, self.train, velocity=state.get("v"), extra=pull_back
        )
        return self.keep(v=v), {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return public["w"]


if __name__ == "__main__":
    from pgfed.testing import check_algorithm

    check_algorithm(FedProx)
    print("FedProx passes all checks")
