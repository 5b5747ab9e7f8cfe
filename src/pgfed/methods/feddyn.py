"""FedDyn: local objectives are bent until their minima agree with the federation's.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated learning based on dynamic
regularization. ICLR 2021.

Client i minimises f_i(theta_i) - <lambda_i, theta_i> + a/2 |theta_i - theta|^2, where lambda_i
follows the gradient of f_i at its last model; the server subtracts h/a, the mean of the lambdas,
from the plain mean of the models.

Symbols: theta -> server["w"]; h -> server["h"]; N -> server["clients"]; lambda_i ->
state["lambda"] (absent: 0); v_i -> state["v"]; a (alpha in the paper) -> a.

Differs from the released code in: nothing. (The original trains without momentum, with weight
decay, with the gradient's norm clipped at 10 (train.clip), and scales a by each client's relative
size; what it scores is not theta but the plain mean of the models, of the round's clients and of
all clients' last ones, without the term h/a.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import Terms, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    name = "feddyn"
    leaves = {"w": "model"}
    averages = False  # its server step has a correction of its own
    covered = True
    plain_sgd = "lambda is the gradient at a minimum that plain gradient steps have reached"
    grid = {"a": [0.1, 0.01, 0.001]}

    a: Annotated[float, Gt(0), "a, weight of the dynamic regularizer"] = 0.01

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

        terms = Terms(extra=add_regularizer)
        theta, kept = sgd(task, message["w"], data, rng, self.train, state, terms=terms)
        moved = theta[: task.d] - start
        return {"lambda": past.sub(moved, alpha=self.a), **self.keep(**kept)}, {"w": theta}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        d, share = len(server["h"]), len(updates) / server["clients"]
        w = mean(updates, "w", around=server["w"], uniform=True).clone()
        h = server["h"] - self.a * share * (w[:d] - server["w"][:d])
        w[:d].sub_(h, alpha=1 / self.a)
        return {**server, "w": w, "h": h}
