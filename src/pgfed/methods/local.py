"""Local: every client trains alone. The yardstick for "did federating help me?".

Symbols: theta_i -> state["w"], the momentum buffer v_i -> state["v"].

A client trains only in the rounds in which it is drawn, so that it does as much work as a
federated one; it goes on from its own weights.
Differs from the released code in: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm):
    name = "local"
    leaves = {}
    averages = False
    personal_from = "own"
    role = "baseline"
    new_client_start = "no global model: the untrained start that all clients shared"

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return {"w0": w0}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        return {i: {} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task, state["w"], data, rng, self.train, state)
        return {"w": w, **self.keep(**kept)}, {}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        return server

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]
        return w

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        w0: Tensor = server["w0"]  # a new client starts where everybody started
        return w0
