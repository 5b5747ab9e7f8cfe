"""LG-FedAvg: each client's own body under a common head ("local representations, global model").

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think locally, act globally:
federated learning with local and global representations. arXiv 2001.01523, 2020.

Symbols: client i's local representation phi_i -> state["own"]; the global head h -> server["w"]
(what is shared). The momentum buffer starts anew in each round.

Differs from the released code in: base and head take one common step per batch, as in the paper.
The code steps the base and then, with a second pass over the same batch, the head (lg_two_pass;
a part rests while the other one steps, as it does there under torch 2, not under torch 1.4; the
head's pass is in evaluation mode, so that batch norm does not see a batch twice as it does there).
The bases' mean of the global model is divided by the number of samples. The paper starts from a
trained FedAvg model and shares two layers on CIFAR-10; this starts at random and shares the last,
as the code does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, need_base
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import check_plain
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Algorithm):
    name = "lg-fedavg"
    leaves = {"w": "model", "n": "count"}
    personal_from = "both"
    covered = True
    shared = "head"
    new_client_start = (
        "no global body: the common classifier, on the mean of all clients' bodies, "
        "weighted by their training samples"
    )

    lg_two_pass: Annotated[bool, "step base and head in turns, each on a pass of its own"] = False

    def check_model(self, task: Task) -> None:
        need_base("lg-fedavg", task)
        if self.lg_two_pass:
            check_plain("lg-fedavg", self.train, "lg_two_pass takes steps of its own")

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta = task.layout.join(self.shared, message["w"], state["own"])
        if self.lg_two_pass:
            self._in_turns(task, theta, data, rng)
        else:
            theta, _ = sgd(task, theta, data, rng, self.train)
        head, body = task.layout.split(self.shared, theta)
        return {"own": body}, {"w": head.clone(), "n": len(data)}

    def _in_turns(self, task: Task, theta: Tensor, data: Shard, rng: Rng) -> None:
        """Train ``theta`` in place: per batch a step of the base, then one of the head."""
        train = self.train
        v = torch.zeros_like(theta[: task.d])
        base, head = task.layout.base, task.layout.head
        for x, y in task.batches(data, train.batch_size, rng, epochs=train.epochs):
            v[base].mul_(train.momentum)
            task.add_gradient(theta, x, y, v, part="base")
            theta[base].add_(v[base], alpha=-train.lr)
            v[head].mul_(train.momentum)
            task.add_gradient(theta, x, y, v, part="head", training=False)
            theta[head].add_(v[head], alpha=-train.lr)
