"""FedBABU: a common body trained under a fixed random head; clients fine-tune a copy at the end.

Oh, Kim, Yun. FedBABU: toward enhanced representation for federated image classification. ICLR 2022.

Symbols: the body phi -> server["body"]; the head h0, drawn once and never trained ->
server["head"] and every client's state["head"]; eta_ft -> ft_lr; E_ft -> ft_epochs. Momentum
buffers start anew in each round and in fine-tuning.

Differs from the released code in: fine-tuning starts from the head h0 (there from zeros, which
babu_zero_head repeats); at every scored round a throw-away copy is fine-tuned and scored, so that
the method has a curve. Its number is the one after the last round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import need
from pgfed.methods.contract import (
    Algorithm,
    ClientInfo,
    FederationInfo,
    Mean,
    Message,
    Rng,
    State,
    Update,
    need_base,
    sgd,
)
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedBABU(Algorithm):
    name = "fedbabu"
    leaves = {"body": "body", "n": "count"}
    scored_last = True
    new_client_start = (
        "no trained classifier: the common body, with the untrained classifier that the "
        "method keeps fixed"
    )
    grid = {"ft_lr": [0.1, 0.01, 0.001, 0.0001]}

    ft_epochs: int = 1  # E_ft, epochs of fine-tuning, on base and head
    ft_lr: float = 0.001  # eta_ft
    babu_zero_head: bool = False  # fine-tune from a head of zeros

    def __post_init__(self) -> None:
        need(self.ft_epochs >= 0, "method.fedbabu.ft_epochs", ">= 0", self.ft_epochs)
        need(self.ft_lr > 0, "method.fedbabu.ft_lr", "> 0", self.ft_lr)

    def check_model(self, task: Task) -> None:
        need_base("fedbabu", task)

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        body, head = federation.layout.split(w0)
        return {"body": body, "head": head}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"head": client.federation.layout.split(w0)[1]}

    def messages(self, server: State, cohort: Sequence[int]) -> dict[int, Message]:
        return {i: {"body": server["body"]} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(message["body"], state["head"])
        theta, _ = sgd(task, theta, data, rng, self.train, part="base")
        body, _ = task.layout.split(theta)
        return state, {"body": body, "n": len(data)}

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        if not updates:
            return server
        return {**server, "body": mean(updates, "body", around=server["body"])}

    def public(self, server: State) -> Message:
        return {"body": server["body"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        theta, _ = sgd(
            task,
            self._model(task, public["body"], state["head"]),
            data,
            rng,
            self.train,
            epochs=self.ft_epochs,
            lr=self.ft_lr,
            purpose="evaluate",
        )
        return theta

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        return self._model(task, server["body"], server["head"])

    def _model(self, task: Task, body: Tensor, head: Tensor) -> Tensor:
        """What fine-tuning starts from."""
        return task.layout.join(body, torch.zeros_like(head) if self.babu_zero_head else head)
