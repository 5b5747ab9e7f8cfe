"""Alone: what a site would do if there were no federation.

It trains on its own data to the end: as many epochs as were best on a fifth held out (of few
samples each fifth in turn; a patient's samples together), then as many on all of its training
data. `local` trains only in the rounds in which the client is drawn, as the paper has it, so that
all methods do the same work; in a short run that is a weak opponent. This is the honest one.

It takes no rounds: every client works once. Nothing of it leaves the site.

Symbols: theta_i -> state["w"].
Differs from the released code in: the released code does not have this baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.to_the_end import trained_to_the_end
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class Alone(Algorithm):
    name = "alone"
    leaves = {}
    averages = False
    personal_from = "own"
    role = "baseline"
    course = "once"
    new_client_start = "no global model: the untrained start that all clients shared"

    max_epochs: Annotated[int, Ge(1), Le(100_000), "at most"] = 200
    patience: Annotated[int, Ge(1), Le(100_000), "epochs without a gain before it stops"] = 20

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return {"w0": w0}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def images(self, n: int) -> int:
        return 0  # how many it will be, only the training tells

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        return {i: {} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w = trained_to_the_end(
            task.home,
            state["w"],
            data,
            rng,
            self.train,
            most=self.max_epochs,
            patience=self.patience,
        )
        return {"w": w}, {}

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
