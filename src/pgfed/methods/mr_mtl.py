"""MR-MTL: each client keeps a model of its own, pulled towards the mean of all of them.

Liu, Hu, Wu, Smith. On privacy and personalization in cross-silo federated learning. NeurIPS 2022.
(Mean-regularized multi-task learning.)

The client goes on with its own w_i and minimises f_i(w_i) + lambda/2 |w_i - w_mean|^2, w_mean the
mean as of the round's start. It sends its step, which the server adds, weighted by n_i over the
samples of all clients: w_mean is always the mean of what all clients hold, also of those who rest.
(A site that had not said at the start how much data it has counts from its first answer on.)

Symbols: w_mean (w bar) -> server["w"]; n_i of all clients -> server["samples"]; w_i ->
state["personal"]; its step w_i+ - w_i -> update["step"]; lambda -> lam; v_i -> state["v"].

Differs from the released code in: that trains without momentum (momentum_policy = "official") and
with everybody in every round; lambda is 1 by default, there 0, which is Local, and 0.001 to 3 in
its scripts. With privacy it clips the loss's gradient and the pull together, so that a large lambda
leaves little of the clip; here the pull is added after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import check_pull
from pgfed.methods.steps import pull, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class MRMTL(Algorithm):
    name = "mr-mtl"
    leaves = {"step": "step", "n": "count"}
    personal_from = "own"
    averages = False  # w is the mean of what all clients hold
    covered = True
    official_momentum = False
    control = {"lam": 0.0}
    control_twin = "local"
    new_client_start = "the mean of all clients' models, weighted by their training samples"
    grid = {"lam": [0.1, 0.3, 1.0, 3.0]}

    lam: Annotated[float, Ge(0), "lambda, strength of the pull towards the mean"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull(self.name, "lam", self.lam, self.train)

    def twin(self) -> str | None:
        return self.control_twin if self.steps == self.train else None

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return {"w": w0, "samples": torch.tensor(federation.samples, device=w0.device)}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        samples = server["samples"].clone()
        for i, update in updates.items():
            samples[i] = update["n"]
        share = sum(int(update["n"]) for update in updates.values()) / int(samples.sum())
        return {"w": server["w"] + share * mean(updates, "step"), "samples": samples}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        leash = pull(self.lam, message["w"][: task.d])
        old = state["personal"]
        new, kept = sgd(task, old, data, rng, self.steps, state, terms=leash)
        return {"personal": new, **self.keep(**kept)}, {"step": new - old, "n": len(data)}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        personal: Tensor = state["personal"]  # as left by the client's last participation
        return personal
