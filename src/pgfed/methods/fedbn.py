"""FedBN: everything is averaged but the layers that normalise, which stay with each client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: federated learning on non-IID features via local batch
normalization. ICLR 2021.

Symbols: the model without its normalisation layers -> server["w"] (what is shared); client i's own
such layers, weights, biases and statistics -> state["own"]; v_i -> state["v"]. The server's mean
and the personal model, the newest common part with the own layers, are the contract's defaults.

Differs from the released code in: the layers are known by their type, there by "bn" in their names;
the mean is weighted by n, there uniform; it trains without momentum there (momentum_policy =
"official"). Group, layer and instance norm stay at home like batch norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedBN(Algorithm):
    name = "fedbn"
    leaves = {"w": "model", "n": "count"}
    personal_from = "both"
    covered = True
    official_momentum = False
    control = {"shared": "all"}
    control_twin = "fedavg"
    new_client_start = (
        "the common part, with the mean of all clients' normalisation layers, weighted by their "
        "training samples"
    )

    shared: Annotated[
        Literal["not-norm", "all"], "what is averaged; all: the normalisation layers, too"
    ] = "not-norm"

    def twin(self) -> str | None:
        return self.control_twin if self.steps == self.train else None

    def check_model(self, task: Task) -> None:
        if not any(place.norm for place in task.layout.places):
            raise UserError(
                "methods: 'fedbn' keeps normalisation layers at home, and the model has none that "
                "are trained; use one that has, as model.name = 'resnet18', or 'fedavg'"
            )

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(self.shared, message["w"], state.get("own"))
        theta, kept = sgd(task, theta, data, rng, self.steps, state)
        w, own = task.layout.split(self.shared, theta)
        # A copy, as a slice of theta would keep all of it in memory.
        state = {"own": own.clone()} if len(own) else {}
        return {**state, **self.keep(**kept)}, {"w": w, "n": len(data)}
