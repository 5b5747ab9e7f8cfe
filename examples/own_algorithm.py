"""A method of your own in twenty lines: FedProx, run without touching the package.

Li et al. Federated optimization in heterogeneous networks. MLSys 2020.

    pgfed run --module-path . --set 'methods=["local", "fedavg", "own_algorithm:FedProx"]'
    python own_algorithm.py     (checks it; both in this folder)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from pgfed.methods import Algorithm, Message, Rng, Shard, State, Task, Terms, Update, sgd


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    name = "fedprox"
    summary = "FedAvg on a leash: clients pay for leaving the common model"
    leaves = {"w": "model", "n": "count"}

    leash: Annotated[float, Ge(0), "mu, weight of the squared distance to the common model"] = 0.1

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        start = message["w"][: task.d]

        def pull_back(theta: Tensor, gradient: Tensor) -> None:
            gradient.add_(theta - start, alpha=self.leash)

        terms = Terms(extra=pull_back)
        w, kept = sgd(task, message["w"], data, rng, self.train, state, terms=terms)
        return self.keep(**kept), {"w": w, "n": len(data)}


if __name__ == "__main__":
    from pgfed.testing import check_algorithm

    check_algorithm(FedProx)
    print("FedProx passes all checks")
