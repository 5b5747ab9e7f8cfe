"""Pooled: one model trained on everybody's data together. A bound, in simulation only.

What sharing the data would give, which a federation exists to avoid: it says how far a method is
from that. Trained as `alone` is: as many epochs as were best on a fifth held out, then as many on
all training data.

Symbols: theta -> server["w"].
Differs from the released code in: the released code does not have this bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from pgfed.data.federation import Shard
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.to_the_end import trained_to_the_end
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class Pooled(Algorithm):
    name = "pooled"
    leaves = {"w": "model"}
    averages = False
    role = "bound"
    course = "pooled"

    max_epochs: Annotated[int, Ge(1), Le(100_000), "at most"] = 200
    patience: Annotated[int, Ge(1), Le(100_000), "epochs without a gain before it stops"] = 20

    def images(self, n: int) -> int:
        return 0  # how many it will be, only the training tells

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        """``data`` is everybody's."""
        w = trained_to_the_end(
            task,
            message["w"],
            data,
            rng,
            self.train,
            most=self.max_epochs,
            patience=self.patience,
        )
        return {}, {"w": w}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        (update,) = updates.values()
        return {**server, "w": update["w"]}
