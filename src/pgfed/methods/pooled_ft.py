"""Pooled-FT: the model of `pooled`, fine-tuned at each client. A bound, in simulation only.

As many epochs on the client's own data as were best on a fifth of it held out, none included: where
fine-tuning does not help, it is `pooled`.

Symbols: theta -> server["w"].
Differs from the released code in: the released code does not have this bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.to_the_end import trained_to_the_end
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class PooledFT(Algorithm):
    name = "pooled-ft"
    leaves = {"w": "model"}
    averages = False
    role = "bound"
    course = "pooled"

    max_epochs: Annotated[int, Ge(1), Le(100_000), "at most, of either training"] = 200
    patience: Annotated[int, Ge(1), Le(100_000), "epochs without a gain before it stops"] = 20

    def images(self, n: int) -> int:
        return 0  # how many it will be, only the training tells

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        """``data`` is everybody's."""
        return {}, {"w": self._trained(task, message["w"], data, rng, least=1)}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        (update,) = updates.values()
        return {**server, "w": update["w"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return self._trained(task, public["w"], data, rng, least=0)

    def _trained(self, task: Task, theta: Tensor, data: Shard, rng: Rng, least: int) -> Tensor:
        return trained_to_the_end(
            task,
            theta,
            data,
            rng,
            self.train,
            most=self.max_epochs,
            patience=self.patience,
            least=least,
        )
