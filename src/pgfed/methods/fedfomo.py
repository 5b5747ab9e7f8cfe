"""FedFomo: each client takes from the others' models what helps on its own validation data.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized federated learning with first order model
optimization. ICLR 2021.

A client steps from its anchor, the model it held before its last training, towards those of the
received models that have a lower validation loss, each in proportion to the decrease per distance.

Symbols: theta_i -> state["w"]; its anchor -> state["anchor"] (absent: theta_i); v_i -> state["v"];
theta_j, j in S_{t-1} -> server["models"], rows in the order of server["ids"]; P - I ->
server["preference"], by the sorted pairs i * N + j -> server["pairs"]; M_f -> candidates; the
weights w_j -> update["weights"], in the order of message["ids"].

Differs from the released code in: a client's own model is always a candidate, as in the original;
there only if it took part in the last round, so that one that pauses can lose its own training
(fomo_include_self = False). That trains without momentum (momentum_policy = "official"). Equal
preferences go by lot. (The original explores, uses an L1 distance, and falls back to the anchor.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods import alphas
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class FedFomo(Algorithm):
    name = "fedfomo"
    leaves = {"w": "model", "weights": "row", "n": "count"}
    averages = False
    personal_from = "own"
    frames = False
    covered = True
    shares = {"w": "model", "n": "count"}
    official_momentum = False
    new_client_start = (
        "no global model: the mean of all clients' models instead, "
        "weighted by their training samples"
    )

    candidates: Annotated[int, Ge(0), "M_f, most models a client receives in a round"] = 8
    validation_share: Annotated[
        float, Gt(0), Lt(1), "of the training data, its end: never trained on"
    ] = 0.2
    fomo_include_self: Annotated[bool, "the client's own model is always a candidate"] = True

    def trained(self, n: int) -> int:
        """How many of n samples are trained on; of two or more, at least one is not."""
        return max(1, n - max(1, int(self.validation_share * n + 1e-9)))

    def images(self, n: int) -> int:
        return super().images(self.trained(n))

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        none = torch.empty(0, dtype=torch.int64, device=w0.device)
        models, preference = w0.new_empty(0, len(w0)), w0.new_empty(0)
        known = {"ids": none, "models": models, "pairs": none, "preference": preference}
        return {"w0": w0, "clients": federation.clients, **known}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def chosen(self, server: State, client: int, rng: ServerRng) -> Tensor:
        """The rows of the models to send: those of the M_f clients with the largest P_ij.

        Equal ones in an order drawn anew for each client and round: with an order of its own, say
        by id, the same few would be sent for ever, and nobody would learn of the others.
        """
        ids = server["ids"]
        met = client * server["clients"] + ids
        p = alphas.find(server["pairs"], server["preference"], met, 0.0) + (ids == client)
        drawn = rng.generator("candidates", client).permutation(len(ids))
        order = torch.from_numpy(drawn).to(ids.device)
        ranked = order[torch.sort(p[order], descending=True, stable=True).indices]
        return ranked[: self.candidates].sort().values

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        models = list(zip(server["ids"].tolist(), server["models"].unbind(), strict=True))
        out: dict[int, Message] = {}
        for i in cohort:
            rows = self.chosen(server, i, rng)
            sent = {f"model_{j}": model for j, model in (models[k] for k in rows.tolist())}
            out[i] = {"ids": server["ids"][rows], **sent} if sent else {}
        return out

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        ids = message["ids"].tolist() if "ids" in message else []
        models = [message[f"model_{j}"] for j in ids]
        if self.fomo_include_self and rng.client not in ids:
            models.append(state["w"])
        start: Tensor = state["w"]
        trained, held_out = data.cut(self.trained)
        weights = [0.0] * len(models)
        if ids and len(held_out):
            weights = self.weigh(task, state.get("anchor", start), models, held_out)
        if any(weights):
            start = torch.zeros_like(start)
            for weight, model in zip(weights, models, strict=True):
                start.add_(model, alpha=weight)
        w, kept = sgd(task, start, trained, rng, self.steps, state)
        row = torch.tensor(weights[: len(ids)], device=task.device)
        new = {"w": w, "anchor": start, **self.keep(**kept)}
        return new, {"w": w, "weights": row, "n": len(data)}

    def weigh(self, task: Task, anchor: Tensor, models: list[Tensor], data: Shard) -> list[float]:
        """The decrease of the loss from the anchor per distance, cut at 0: sum 1, or all 0."""
        trial = torch.empty_like(anchor)  # one aligned place for all: equal bits on all engines
        gains = []
        for model, decrease in zip(models, task.decreases(anchor, models, data), strict=True):
            distance = float(torch.dist(trial.copy_(model)[: task.d], anchor[: task.d]))
            gains.append(max(0.0, decrease / (distance + 1e-5)))
        total = sum(gains)
        return [gain / total for gain in gains] if total else gains

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return {**server, "ids": server["ids"][:0], "models": server["models"][:0]}
        known, p, last = server["pairs"], server["preference"], server["ids"]
        sent = [i * server["clients"] + last[self.chosen(server, i, rng)] for i in updates]
        met = torch.cat(sent)
        gained = torch.cat([update["weights"] for update in updates.values()])
        met, gained = met[gained > 0], gained[gained > 0]
        known, p = alphas.merge(known, met, (p, alphas.find(known, p, met, 0.0) + gained))
        ids, models = mean.each(updates, "w")
        new = {"ids": last.new_tensor(ids), "models": models, "pairs": known, "preference": p}
        return {**server, **new}

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]  # as left by the client's last participation
        return w

    def share(self, state: State, client: ClientInfo) -> Update:
        return {"w": state["w"], "n": client.n}

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        w0: Tensor = server["w0"]
        return Mean()(shares, "w") if shares else w0
