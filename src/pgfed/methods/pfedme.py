"""pFedMe: each client keeps a personal model on a leash to its copy of the common one.

Dinh, Tran, Nguyen. Personalized federated learning with Moreau envelopes. NeurIPS 2020.

For every mini-batch the client solves min f_i(theta) + lambda/2 |theta - w_i|^2 roughly, by K
gradient steps on that batch, and then moves w_i towards the solution.

Symbols: w -> server["w"]; theta_i (or w_i, see pfedme_eval) of the last participation ->
state["personal"]; K -> inner_steps; lambda -> lam; eta_p -> personal_lr; eta -> train.lr; beta ->
beta; kappa, the inner solver's weight decay -> kappa.

Differs from the released code in: the personal model is theta_i. There (and in the original) the
"personal parameters" are the very tensors that w_i is written to at the end of the round, so that
w_i is what is scored: pfedme_eval = "w". Its beta is 0 by default, which freezes w for ever; its
lambda is 1. (In the original all clients train in each round, and only some are averaged.) The
inner solver has no momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import check_plain
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm):
    name = "pfedme"
    leaves = {"w": "model", "n": "count"}
    personal_from = "own"
    covered = True
    grid = {"lr": [0.01, 0.001, 0.0001]}  # lr times lambda may not exceed 1

    inner_steps: Annotated[int, Ge(0), "K, gradient steps per mini-batch"] = 5
    lam: Annotated[float, Ge(0), "lambda, strength of the leash"] = 15.0
    personal_lr: Annotated[float, Gt(0), "eta_p, step of the inner solver"] = 0.01
    beta: Annotated[float, Ge(0), "beta, how far the server goes towards the mean"] = 1.0
    kappa: Annotated[float, Ge(0), "kappa, weight decay of the inner solver"] = 0.001
    pfedme_eval: Annotated[Literal["theta", "w"], "which of the two is the personal model"] = (
        "theta"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self.name, self.train, "its inner solver takes plain gradient steps")
        if self.train.lr * self.lam > 1:
            raise UserError(
                "method.pfedme.lam: lr * lam must be <= 1 (w_i would step beyond theta_i), "
                f"found {self.train.lr:g} * {self.lam:g}"
            )

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return {"w": w0, "d": federation.layout.d}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        theta, w = message["w"].clone(), message["w"].clone()
        step, anchor = theta[: task.d], w[: task.d]
        gradient = torch.empty_like(step)
        for x, y in task.batches(data, self.train.batch_size, rng, epochs=self.train.epochs):
            for _ in range(self.inner_steps):
                torch.mul(step, self.lam + self.kappa, out=gradient)
                gradient.sub_(anchor, alpha=self.lam)
                task.add_gradient(theta, x, y, gradient)
                step.sub_(gradient, alpha=self.personal_lr)
            anchor.lerp_(step, self.train.lr * self.lam)
        w[task.d :] = theta[task.d :]
        personal = theta if self.pfedme_eval == "theta" else w
        return {"personal": personal}, {"w": w, "n": len(data)}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        old, d = server["w"], server["d"]
        new = mean(updates, "w", around=old).clone()
        new[:d] = torch.lerp(old[:d], new[:d], self.beta)
        return {**server, "w": new}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        personal: Tensor = state["personal"]  # as left by the client's last participation
        return personal
