"""FedALA: a client mixes the received head with its own, weight by weight, before it trains.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation for personalized federated
learning. AAAI 2023.

From its second participation on the client starts from theta_hat: the received theta, whose head
(the last two tensors) is replaced by theta_i + (theta - theta_i) * W, theta_i its own last model.
W, 1 at first, lies in [0, 1] and is learned on batches of its data: W <- clip(W - eta_w grad *
(theta - theta_i)), grad that of the loss by theta_hat.

Symbols: theta -> server["w"]; theta_i -> state["personal"]; W -> state["weights"] (absent: 1, and
not learned yet); eta_w -> weight_lr; the share of the data that W is learned on -> sample_share;
v_i -> state["v"].

Differs from the released code in: only the clients of a round mix (there all of them in every
round, when they are scored), and the personal model is theta_i as trained (there the mix before
training, so that scoring changes the state). When W is learned for the first time, passes go on
until the standard deviation of the last ten passes' mean losses is below 0.1, at most 20 (there of
last batches' losses, without end); where no losses are told, as under privacy, W is learned in one
pass, the first time as later. The sample is drawn as batches of a shuffled pass (there a slice
of the stored order), in evaluation mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task

WINDOW, SETTLED, MOST = 10, 0.1, 20  # passes looked at, their losses' deviation, passes at most


@dataclass(frozen=True, kw_only=True)
class FedALA(Algorithm):
    name = "fedala"
    leaves = {"w": "model", "n": "count"}
    personal_from = "own"
    covered = True
    control = {"weight_lr": 0.0}
    control_twin = "fedavg-local"
    grid = {"weight_lr": [0.1, 1.0, 10.0]}

    weight_lr: Annotated[float, Ge(0), "eta_w, step of the weights of the mix"] = 1.0
    sample_share: Annotated[float, Gt(0), Le(1), "share of the data they are learned on"] = 0.8

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        start, learned = message["w"], {}
        if "trained" in state and self.weight_lr:
            start, learned["weights"] = self.mixed(task, state, message["w"], data, rng)
        w, kept = sgd(task, start, data, rng, self.train, state)
        return {"personal": w, "trained": 1, **learned, **self.keep(**kept)}, {
            "w": w,
            "n": len(data),
        }

    def mixed(
        self, task: Task, state: State, theta: Tensor, data: Shard, rng: Rng
    ) -> tuple[Tensor, Tensor]:
        """(theta_hat, W) after the passes over W."""
        at = task.layout.head
        own, new = state["personal"][at], theta[at]
        apart = new - own
        weights = state["weights"].clone() if "weights" in state else torch.ones_like(own)
        mix, gradient = theta.clone(), torch.zeros_like(theta)
        mix[at] = torch.lerp(own, new, weights)
        size = min(self.train.batch_size or len(data), len(data))
        count = max(1, round(self.sample_share * len(data) / size))
        losses: list[float] = []
        for epoch in range(1 if "weights" in state else MOST):
            batches = task.batches(data, size, rng, purpose=f"mix {epoch}")
            seen = []
            for x, y in islice(batches, count):
                gradient[at] = 0
                seen.append(
                    float(task.add_gradient(mix, x, y, gradient, part="head", training=False))
                )
                weights.sub_(gradient[at] * apart, alpha=self.weight_lr).clamp_(0, 1)
                mix[at] = torch.lerp(own, new, weights)
            losses.append(sum(seen) / len(seen))
            if math.isnan(losses[-1]):  # not told: it cannot be known when they settle
                break
            if len(losses) > WINDOW and float(np.std(losses[-WINDOW:])) < SETTLED:
                break
        return mix, weights

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        personal: Tensor = state["personal"]  # as left by the client's last participation
        return personal
