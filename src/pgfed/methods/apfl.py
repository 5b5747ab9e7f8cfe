"""APFL: each client mixes a model of its own with the common one, and trains both.

Deng, Kamani, Mahdavi. Adaptive personalized federated learning. arXiv:2003.13461, 2020.

The client trains w_i as in FedAvg, and its own v_i through the mixture m_i = alpha v_i +
(1 - alpha) w_i: v_i descends along alpha grad f_i(m_i).

Symbols: w -> server["w"]; v_i -> state["personal"]; alpha -> alpha; the momentum buffers of w_i
and v_i -> state["velocity_w"], state["velocity_v"] (the latter without its constant factor alpha).

Differs from the released code in: that trains without momentum (momentum_policy = "official").
(alpha is fixed, as in the released code and the comparison; the original can adapt it.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import need
from pgfed.methods.contract import Algorithm, ClientInfo, Message, Rng, State, Update, batches
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm):
    name = "apfl"
    leaves = {"w": "model", "n": "count"}
    official_momentum = False
    grid = {"alpha": [0.25, 0.5, 0.75]}

    alpha: float = 0.5  # alpha, share of the own model in the mixture

    def __post_init__(self) -> None:
        need(0 <= self.alpha <= 1, "method.apfl.alpha", "between 0 and 1", self.alpha)

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        d, lr = task.d, self.train.lr
        w, v = message["w"].clone(), state["personal"].clone()
        mixed = torch.lerp(w, v, self.alpha)
        velocity_w, velocity_v = (
            state[key].clone() if key in state else torch.zeros_like(w[:d])
            for key in ("velocity_w", "velocity_v")
        )
        for x, y in batches(data, self.train.batch_size, rng, epochs=self.train.epochs):
            velocity_w.mul_(self.momentum)
            task.add_gradient(w, x, y, velocity_w)
            w[:d].add_(velocity_w, alpha=-lr)
            velocity_v.mul_(self.momentum)
            task.add_gradient(mixed, x, y, velocity_v)  # at the mixture of the models before
            v[:d].add_(velocity_v, alpha=-lr * self.alpha)
            torch.lerp(w[:d], v[:d], self.alpha, out=mixed[:d])
        v[d:] = mixed[d:]  # the statistics that batch norm saw at the mixture
        kept = self.keep(velocity_w=velocity_w, velocity_v=velocity_v)
        return {"personal": v, **kept}, {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return torch.lerp(public["w"], state["personal"], self.alpha)
