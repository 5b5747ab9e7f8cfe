"""LG-FedAvg: each client's own body under a common head ("local representations, global model").

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think locally, act globally:
federated learning with local and global representations. arXiv 2001.01523, 2020.

Symbols: client i's local representation phi_i -> state["body"]; the global head h ->
server["head"]. The momentum buffer starts anew in each round.

Differs from the released code in: base and head take one common step per batch, as in the paper.
The code steps the base and then, with a second pass over the same batch, the head (lg_two_pass;
a part rests while the other one steps, as it does there under torch 2, not under torch 1.4). The
bases' mean of the global model is divided by the number of samples. The paper starts from a trained
FedAvg model and shares two layers on CIFAR-10; this starts at random and shares the last, as the
code does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import (
    Algorithm,
    ClientInfo,
    FederationInfo,
    Mean,
    Message,
    Rng,
    State,
    Update,
    batches,
    sgd,
)
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Algorithm):
    name = "lg-fedavg"
    leaves = {"head": "head", "n": "count"}
    shares = {"body": "body", "n": "count"}
    new_client_start = (
        "no global body: the common classifier, on the mean of all clients' bodies, "
        "weighted by their training samples"
    )

    lg_two_pass: bool = False  # step base and head in turns, each on a pass of its own

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        body, head = federation.layout.split(w0)
        return {"body": body, "head": head}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"body": client.federation.layout.split(w0)[0]}

    def messages(self, server: State, cohort: Sequence[int]) -> dict[int, Message]:
        return {i: {"head": server["head"]} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(state["body"], message["head"])
        if self.lg_two_pass:
            self._in_turns(task, theta, data, rng)
        else:
            theta, _ = sgd(task, theta, data, rng, self.train)
        body, head = task.layout.split(theta)
        return {"body": body}, {"head": head.clone(), "n": len(data)}

    def _in_turns(self, task: Task, theta: Tensor, data: Shard, rng: Rng) -> None:
        """Train ``theta`` in place: per batch a step of the base, then one of the head."""
        train = self.train
        v = torch.zeros_like(theta[: task.d])
        base, head = task.layout.base, task.layout.head
        for x, y in batches(data, train.batch_size, rng, epochs=train.epochs):
            v[base].mul_(train.momentum)
            task.add_gradient(theta, x, y, v, part="base")
            theta[base].add_(v[base], alpha=-train.lr)
            v[head].mul_(train.momentum)
            task.add_gradient(theta, x, y, v, part="head", training=False)
            theta[head].add_(v[head], alpha=-train.lr)

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        if not updates:
            return server
        return {**server, "head": mean(updates, "head", around=server["head"])}

    def public(self, server: State) -> Message:
        return {"head": server["head"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return task.layout.join(state["body"], public["head"])

    def share(self, state: State, client: ClientInfo) -> Update:
        return {"body": state["body"], "n": client.n}

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        # Without any client's base a new client starts from the one everybody started from.
        body = Mean()(shares, "body") if shares else server["body"]
        return task.layout.join(body, server["head"])
