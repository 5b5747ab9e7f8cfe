"""SCAFFOLD: control variates take the clients' drift out of their steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for
federated learning. ICML 2020.

Client i takes K steps y <- y - eta (grad f_i(y) - c_i + c) from theta, then (option II) c_i <- c_i
- c + (theta - y)/(K eta), the mean of the gradients it has met. The server takes the plain mean of
the models, and moves c by 1/N of the sum of the changes of the c_i, so that c is the mean of all
c_i. The change of c_i is -c - (y - theta)/(K eta): the server knows it from y and K.

Symbols: theta -> server["w"]; c -> server["c"]; N -> server["clients"]; c_i -> state["c"] (absent:
0); K, the steps really taken -> update["steps"]; eta_g -> server_lr.

With momentum rho, whose buffer begins anew in each round, y moves by K_rho times a weighted mean of
the gradients, K_rho = K/(1 - rho) - rho (1 - rho^K)/(1 - rho)^2: it stands in K's place, and c_i is
again a mean of gradients. (A buffer kept from an earlier round could not be corrected for: it is
never kept, whatever train.reset_momentum says.)

Differs from released code in: there is none by the authors. (The paper has no momentum:
momentum_policy = "official" or train.momentum = 0.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
class Scaffold(Algorithm):
    name = "scaffold"
    leaves = {"w": "model", "steps": "scalar"}
    covered = True
    official_momentum = False
    plain_sgd = "a control variate is the mean gradient of plain steps"
    control = {"variates": False}
    grid = {"server_lr": [0.5, 1.0]}

    server_lr: Annotated[float, Gt(0), "eta_g, how far the server goes towards the mean"] = 1.0
    variates: Annotated[
        bool, "the control variates; false: FedAvg with a plain mean of the models"
    ] = True

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        c = torch.zeros_like(w0[: federation.layout.d])
        return {"w": w0, "c": c, "clients": federation.clients}

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        return {i: {"w": server["w"], "c": server["c"]} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta, c = message["w"], message["c"]
        correction = c - state["c"] if "c" in state else c
        steps = 0.0

        def count(_: Tensor) -> None:
            nonlocal steps
            steps += 1

        terms = Terms(constant=correction, after=count)
        y, _ = sgd(task, theta, data, rng, self.steps, terms=terms)
        if not self.variates:
            return {}, {"w": y, "steps": steps}
        moved = y[: task.d] - theta[: task.d]
        return {"c": -correction - moved / self.reach(steps)}, {"w": y, "steps": steps}

    def reach(self, steps: float) -> float:
        """K_rho eta: how far a constant gradient would have carried the model."""
        rho = self.steps.momentum
        lost = rho * (1 - math.pow(rho, steps)) / (1 - rho) ** 2
        return self.train.lr * (steps / (1 - rho) - lost)

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        old, c, d = server["w"], server["c"], len(server["c"])
        new = mean(updates, "w", around=old, uniform=True).clone()
        new[:d] = torch.lerp(old[:d], new[:d], self.server_lr)
        if not self.variates:
            return {**server, "w": new}
        # The mean gradients that the steps were taken along, in the place of how many they were:
        # a defence judges them under that name.
        met: dict[int, Update] = {}
        for i, update in updates.items():
            gradient = (old[:d] - update["w"][:d]) / self.reach(max(1.0, update["steps"]))
            met[i] = {**update, "steps": gradient}
        share = len(updates) / server["clients"]
        c = c + share * (mean(met, "steps", uniform=True) - c)
        return {**server, "w": new, "c": c}
