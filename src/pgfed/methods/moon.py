"""MOON: each sample's features are drawn to those of the common model, away from the client's last.

Li, He, Song. Model-contrastive federated learning. CVPR 2021.

Client i minimises its loss plus mu times the mean over samples of softplus((s_prev - s_glob)/tau),
which is -log(e^{s_glob/tau} / (e^{s_glob/tau} + e^{s_prev/tau})): s_glob is the cosine of the
sample's features z under theta_i and under theta, the model that the client has received, s_prev
that under the model that it sent last.

Symbols: theta -> server["w"]; the model of the last participation -> state["last"]; z -> what the
model's head is given; mu -> mu; tau -> tau; v_i -> state["v"].

Differs from the released code in: a client that takes part for the first time has no last model and
trains as in FedAvg (there in round 1, too; in later rounds the last one is then the client's own
random start). Its projection head is a part of the classifying path: an option of the model, and
none of the method. One last model is kept. (There mu is 1 by default, 5 in its CIFAR-10 example.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import NONE, Terms, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Beside, Task


@dataclass(frozen=True, kw_only=True)
class Moon(Algorithm):
    name = "moon"
    leaves = {"w": "model", "n": "count"}
    covered = True
    control = {"mu": 0.0}
    control_twin = "fedavg"
    grid = {"mu": [0.1, 1.0, 5.0, 10.0]}

    mu: Annotated[float, Ge(0), "mu, weight of the contrast"] = 1.0
    tau: Annotated[float, Gt(0), "tau, the contrast's temperature"] = 0.5

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        terms = NONE
        if self.mu and "last" in state:
            models = (message["w"], state["last"])
            terms = Terms(beside=Beside(contrast(self.mu, self.tau), models))
        w, kept = sgd(task, message["w"], data, rng, self.train, state, terms=terms)
        return {"last": w, **self.keep(**kept)}, {"w": w, "n": len(data)}


def contrast(mu: float, tau: float) -> Callable[..., Tensor]:
    """mu softplus((s_prev - s_glob)/tau) of each sample."""

    def losses(z: Tensor, y: Tensor, common: Tensor, last: Tensor) -> Tensor:
        flat = z.flatten(1)
        s_glob, s_prev = (F.cosine_similarity(flat, o.flatten(1)) for o in (common, last))
        return mu * F.softplus((s_prev - s_glob) / tau)

    return losses
