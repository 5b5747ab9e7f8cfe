"""Ditto: FedAvg for all, and at each client a personal model on a leash to what it receives.

Li, Hu, Beirami, Smith. Ditto: fair and robust federated learning through personalization. ICML
2021.

The client trains theta_i as in FedAvg, and on the same batches its own v_i, from where it left it,
on f_i(v_i) + lambda/2 |v_i - theta|^2, theta the model it has received. Nothing that is sent
depends on v_i: it is trained with `task.home`.

Symbols: theta -> server["w"]; v_i -> state["personal"]; lambda -> lam; the momentum buffers of
theta_i and v_i -> state["v"], state["v_own"].

Differs from the released code (TensorFlow) in: the mean is weighted by n, there uniform; both
models have the momentum of [train]; lambda is fixed (there it can be chosen in each step, from 0.1,
1 and 2, by the validation loss), and its default 1, there 0, which is Local. (There v_i steps
before theta_i on each batch. They never meet within a round, so that the order does not matter.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import check_pull
from pgfed.methods.steps import pull, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    name = "ditto"
    leaves = {"w": "model", "n": "count"}
    personal_from = "own"
    control = {"lam": 0.0}
    control_twin = "local"
    grid = {"lam": [0.1, 1.0, 2.0]}

    lam: Annotated[float, Ge(0), "lambda, strength of the leash"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull(self.name, "lam", self.lam, self.train)

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task, message["w"], data, rng, self.train, state)
        leash = pull(self.lam, message["w"][: task.d])
        own, kept_own = sgd(
            task.home, state["personal"], data, rng, self.train, state, terms=leash, key="v_own"
        )
        return {"personal": own, **self.keep(**kept, **kept_own)}, {"w": w, "n": len(data)}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        personal: Tensor = state["personal"]  # as left by the client's last participation
        return personal
