"""FedAMP: each client is pulled towards a mixture of its own that holds most of those like it.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized cross-silo federated learning on non-IID data.
AAAI 2021.

The server keeps every client's last model w_j and sends client i the mixture u_i = sum_j xi_ij w_j;
the client minimises f_i(w) + prox/2 |w - u_i|^2 from u_i.

heuristic (HeurFedAMP): xi_ii = self_weight, and the others share the rest by the soft-max of sigma
cos(w_i, w_j). attentive (FedAMP): xi_ij = alpha e^{-|w_i - w_j|^2/sigma}/sigma, and xi_ii what is
left; alpha may be at most sigma/(N - 1), or that could be negative.

Symbols: w_j -> server["models"], rows in the order of server["ids"] (a client that has not answered
yet: server["w0"]); N -> server["clients"]; u_i -> message["w"]; w_i -> state["w"]; xi_ii ->
self_weight; sigma -> sigma; alpha_t -> alpha; lambda/alpha_t -> prox; v_i -> state["v"].

Differs from released code in: there is none by the authors. (The argmin has no start: clients start
at u_i. alpha is constant; re-implementations let it fall from 10,000, so that the pull lambda/alpha
begins at 0.0001.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import check_pull
from pgfed.methods.steps import pull, sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedAMP(Algorithm):
    name = "fedamp"
    leaves = {"w": "model", "n": "count"}
    averages = False
    personal_from = "own"
    frames = False
    covered = True
    control = {"attention": "heuristic", "self_weight": 1.0, "prox": 0.0}
    control_twin = "local"
    new_client_start = "no global model: the mean of the clients' last models instead"
    grid = {"sigma": [10.0, 100.0, 1000.0], "prox": [0.01, 0.1, 1.0]}

    attention: Annotated[
        Literal["heuristic", "attentive"], "how models are weighed: by cosine, or by distance"
    ] = "heuristic"
    self_weight: Annotated[float, Ge(0), Le(1), "xi_ii, the own model's share (heuristic)"] = 0.3
    sigma: Annotated[float, Ge(0), "sigma, how sharply models are told apart"] = 100.0
    alpha: Annotated[float, Gt(0), "alpha, strength of the attention (attentive)"] = 1.0
    prox: Annotated[float, Ge(0), "lambda/alpha, strength of the pull towards the mixture"] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull(self.name, "prox", self.prox, self.train)
        if self.attention == "attentive" and not self.sigma:
            raise UserError(
                "method.fedamp.sigma: must be > 0 with attention = 'attentive', found 0"
            )

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        others = max(1, federation.clients - 1)
        if self.attention == "attentive" and self.alpha > self.sigma / others:
            raise UserError(
                f"method.fedamp.alpha: must be <= sigma/(clients - 1) = {self.sigma / others:g} (a "
                f"client's own share could be negative), found {self.alpha:g}"
            )
        none = torch.empty(0, dtype=torch.int64, device=w0.device)
        known = {"ids": none, "models": w0.new_empty(0, len(w0))}
        return {"w0": w0, "clients": federation.clients, "d": federation.layout.d, **known}

    def attention_of(self, server: State, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """(w_i; xi_ij of a client with the model of each row; how many these are, i aside).

        The rows are the models of those who have answered, then w0, which the others hold.
        """
        ids, d = server["ids"], server["d"]
        rows = torch.cat([server["models"], server["w0"][None]])
        count = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        count[-1] = server["clients"] - len(ids)
        place = (ids == client).nonzero().flatten().tolist() or [-1]
        count[place] -= 1
        own = rows[place[0]]
        models, mine = rows[:, :d].double(), own[:d].double()
        if self.attention == "attentive":
            apart = (models - mine).square().sum(1)
            return own, self.alpha / self.sigma * torch.exp(-apart / self.sigma), count
        cosine = torch.cosine_similarity(models, mine[None])
        lifted = torch.exp(self.sigma * (cosine - cosine[count > 0].amax()).clamp(max=0))
        return own, (1 - self.self_weight) * lifted / (lifted * count).sum(), count

    def mixture(self, server: State, client: int) -> Tensor:
        """u_i; whoever is alone is its own mixture."""
        if server["clients"] == 1:
            w: Tensor = server["models"][0] if len(server["ids"]) else server["w0"]
            return w.clone()
        own, xi, count = self.attention_of(server, client)
        shares = xi * count
        out = (
            own * (1 - float(shares.sum()))
            if self.attention == "attentive"
            else (own * self.self_weight)
        )
        for share, model in zip(shares.tolist(), [*server["models"], server["w0"]], strict=True):
            if share:
                out.add_(model, alpha=share)
        return out

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        return {i: {"w": self.mixture(server, i)} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        terms = pull(self.prox, message["w"][: task.d])
        w, kept = sgd(task, message["w"], data, rng, self.train, state, terms=terms)
        return {"w": w, **self.keep(**kept)}, {"w": w, "n": len(data)}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        ids, rows = mean.each(updates, "w")
        models = dict(zip(server["ids"].tolist(), server["models"], strict=True))
        models |= dict(zip(ids, rows, strict=True))
        order = sorted(models)
        kept = {
            "ids": server["ids"].new_tensor(order),
            "models": torch.stack([models[i] for i in order]),
        }
        return {**server, **kept}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]  # as left by the client's last participation
        return w

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        w0: Tensor = server["w0"]
        return server["models"].mean(0) if len(server["ids"]) else w0

    def export(self, server: State) -> dict[str, Any]:
        """How evenly each client's mixture is spread: the entropy of xi_i, ln N if uniform."""
        if server["clients"] == 1:
            return {}
        out = []
        for i in range(server["clients"]):
            _, xi, count = self.attention_of(server, i)
            kept = 1 - float((xi * count).sum())
            own = -kept * math.log(kept) if kept > 0 else 0.0
            out.append(own - float((count * torch.special.xlogy(xi, xi)).sum()))
        return {"mixture_entropy": np.array(out)}
