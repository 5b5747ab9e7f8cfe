"""APFL: each client mixes a model of its own with the common one, and trains both.

Deng, Kamani, Mahdavi. Adaptive personalized federated learning. arXiv:2003.13461, 2020.

The client trains w_i as in FedAvg, and its own v_i through the mixture m_i = alpha v_i +
(1 - alpha) w_i: v_i descends along alpha grad f_i(m_i).

Symbols: w -> server["w"]; v_i -> state["personal"]; alpha -> alpha; the momentum buffers of w_i
and v_i -> state["velocity_w"], state["velocity_v"] (the latter without its constant factor alpha).

Differs from the released code in: that trains without momentum (momentum_policy = "official").
(alpha is fixed, as in the released code and the comparison. The original can adapt it, and mixes
the outputs of the two models, not their weights, in training and in scoring.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import Step
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm):
    name = "apfl"
    leaves = {"w": "model", "n": "count"}
    personal_from = "both"
    official_momentum = False
    grid = {"alpha": [0.25, 0.5, 0.75]}

    alpha: Annotated[float, Ge(0), Le(1), "alpha, share of the own model in the mixture"] = 0.5

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        d, train = task.d, self.steps
        common = Step(task, message["w"], train, state, key="velocity_w")
        slower = replace(train, lr=train.lr * self.alpha)
        own = Step(task, state["personal"], slower, state, key="velocity_v")
        w, v = common.theta, own.theta
        mixed, home = torch.lerp(w, v, self.alpha), task.home
        for x, y in task.batches(data, train.batch_size, rng, epochs=train.epochs):
            task.add_gradient(w, x, y, common.collect())
            common.take()
            home.add_gradient(mixed, x, y, own.collect())  # at the mixture of the models before
            own.take()
            torch.lerp(w[:d], v[:d], self.alpha, out=mixed[:d])
        v[d:] = mixed[d:]  # the statistics that batch norm saw at the mixture
        return {"personal": v, **self.keep(**common.kept, **own.kept)}, {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return torch.lerp(public["w"], state["personal"], self.alpha)
