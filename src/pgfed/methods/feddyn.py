"""FedDyn: local objectives are bent until their minima agree with the federation's.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated learning based on dynamic
regularization. ICLR 2021.

Client i minimises f_i(theta_i) - <lambda_i, theta_i> + a/2 |theta_i - theta|^2, where lambda_i
follows the gradient of f_i at its last model; the server subtracts h/a, the mean of the lambdas,
from the plain mean of the models.

Symbols: theta -> server["w"]; h -> server["h"]; N -> server["clients"]; lambda_i ->
state["lambda"] (absent: 0); v_i -> state["v"]; a (alpha in the paper) -> a.

Differs from the released code in: nothing. (The original trains without momentum, with weight
decay, with the gradient's norm clipped at 10 (clip), and scales a by each client's relative size.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import need
from pgfed.methods.contract import Algorithm, FederationInfo, Mean, Message, Rng, State, Update, sgd
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    name = "feddyn"
    leaves = {"w": "model"}
    grid = {"a": [0.1, 0.01, 0.001]}

    a: float = 0.01  # a, weight of the dynamic regularizer
    clip: float = 0.0  # bound on the norm of each step's gradient; 0 = none

    def __post_init__(self) -> None:
        need(self.a > 0, "method.feddyn.a", "> 0", self.a)
        need(self.clip >= 0, "method.feddyn.clip", ">= 0", self.clip)

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        h = torch.zeros_like(w0[: federation.layout.d])
        return {"w": w0, "h": h, "clients": federation.clients}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        start = message["w"][: task.d]
        past = state.get("lambda", torch.zeros_like(start))
        pull = past + self.a * start  # what of the regularizer's gradient does not move

        def add_regularizer(theta: Tensor, gradient: Tensor) -> None:
            gradient.add_(theta, alpha=self.a).sub_(pull)

        theta, v = sgd(
            task,
            message["w"],
            data,
            rng,
            self.train,
            velocity=state.get("v"),
            extra=add_regularizer,
            clip=self.clip,
        )
        moved = theta[: task.d] - start
        return {"lambda": past.sub(moved, alpha=self.a), **self.keep(v=v)}, {"w": theta}

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        if not updates:
            return server
        d, share = len(server["h"]), len(updates) / server["clients"]
        w = mean(updates, "w", around=server["w"], uniform=True).clone()
        h = server["h"] - self.a * share * (w[:d] - server["w"][:d])
        w[:d].sub_(h, alpha=1 / self.a)
        return {**server, "w": w, "h": h}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public["w"]
        return w
