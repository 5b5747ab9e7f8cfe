"""FedBABU: a common body trained under a fixed random head; clients fine-tune a copy at the end.

Oh, Kim, Yun. FedBABU: toward enhanced representation for federated image classification. ICLR 2022.

Symbols: the body phi -> server["w"] (what is shared); the head h0, drawn once and never trained ->
server["own"] and every client's state["own"]; eta_ft -> ft_lr; E_ft -> ft_epochs. Momentum
buffers start anew in each round and in fine-tuning.

Differs from the released code in: fine-tuning starts from the head h0 (there from zeros, which
babu_zero_head repeats); at every scored round a throw-away copy is fine-tuned and scored, so that
the method has a curve. Its number is the one after the last round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, need_base
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedBABU(Algorithm):
    name = "fedbabu"
    leaves = {"w": "model", "n": "count"}
    shares = {}  # all heads are the one that everybody started from
    shared = "body"
    scored_last = True
    new_client_start = (
        "no trained classifier: the common body, with the untrained classifier that the "
        "method keeps fixed"
    )
    grid = {"ft_lr": [0.1, 0.01, 0.001, 0.0001]}

    ft_epochs: Annotated[int, Ge(0), "E_ft, epochs of fine-tuning, on base and head"] = 1
    ft_lr: Annotated[float, Gt(0), "eta_ft"] = 0.001
    babu_zero_head: Annotated[bool, "fine-tune from a head of zeros"] = False

    def check_model(self, task: Task) -> None:
        need_base("fedbabu", task)

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(self.shared, message["w"], state["own"])
        theta, _ = sgd(task, theta, data, rng, self.train, part="base")
        body, _ = task.layout.split(self.shared, theta)
        return state, {"w": body, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        start = self._model(task, public["w"], state["own"])
        train = replace(self.train, epochs=self.ft_epochs, lr=self.ft_lr)
        theta, _ = sgd(task, start, data, rng, train, purpose="evaluate")
        return theta

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        return self._model(task, server["w"], server["own"])

    def _model(self, task: Task, body: Tensor, head: Tensor) -> Tensor:
        """What fine-tuning starts from."""
        head = torch.zeros_like(head) if self.babu_zero_head else head
        return task.layout.join(self.shared, body, head)
