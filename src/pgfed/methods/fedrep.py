"""FedRep: a common representation under each client's own head, trained in turns.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated
learning. ICML 2021.

A client first trains its head on the representation it receives, then the representation under the
head it has found.

Symbols: the representation phi -> server["body"]; client i's head h_i -> state["head"]; the
momentum buffers of the two phases -> the base's and the head's part of state["v"]; E_h ->
head_epochs; E -> train.epochs.

Differs from the released code in: it has no momentum there (momentum_policy = "official"); the
features of the head phase are computed once, since the frozen base gives the same ones in every
epoch; the heads' mean of the global model is divided by the number of samples.
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
    batch_indices,
    need_base,
    sgd,
)
from pgfed.model.task import EVALUATION_BATCH, Task


@dataclass(frozen=True, kw_only=True)
class FedRep(Algorithm):
    name = "fedrep"
    leaves = {"body": "body", "n": "count"}
    shares = {"head": "head", "n": "count"}
    official_momentum = False
    new_client_start = (
        "no global classifier: the common body, with the mean of all clients' classifiers, "
        "weighted by their training samples"
    )

    head_epochs: int = 5  # E_h, epochs on the head before those on the base

    def __post_init__(self) -> None:
        need(self.head_epochs >= 0, "method.fedrep.head_epochs", ">= 0", self.head_epochs)

    def check_model(self, task: Task) -> None:
        need_base("fedrep", task)

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
        v = state["v"].clone() if "v" in state else torch.zeros_like(theta[: task.d])
        head, v_head = theta[task.layout.head], v[task.layout.head]
        train, rho, epochs = self.train, self.momentum, self.head_epochs
        starts = range(0, len(data), EVALUATION_BATCH)
        inputs = (data.batch(slice(i, i + EVALUATION_BATCH))[0] for i in starts)
        z = torch.cat([task.features(theta, x) for x in inputs])
        for k in batch_indices(data, train.batch_size, rng, epochs=epochs, purpose="head"):
            v_head.mul_(rho)
            task.add_head_gradient(theta, z[k], data.y[k], v)
            head.add_(v_head, alpha=-train.lr)
        theta, v = sgd(task, theta, data, rng, train, velocity=v, part="base", momentum=rho)
        body, head = task.layout.split(theta)
        # A copy, as a slice of theta would keep all of it in memory.
        return {"head": head.clone(), **self.keep(v=v)}, {"body": body, "n": len(data)}

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        if not updates:
            return server
        return {**server, "body": mean(updates, "body", around=server["body"])}

    def public(self, server: State) -> Message:
        return {"body": server["body"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return task.layout.join(public["body"], state["head"])

    def share(self, state: State, client: ClientInfo) -> Update:
        return {"head": state["head"], "n": client.n}

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        # Without any client's head a new client starts from the one everybody started from.
        head = Mean()(shares, "head") if shares else server["head"]
        return task.layout.join(server["body"], head)
