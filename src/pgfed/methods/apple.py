"""APPLE: each client learns how much of every other client's core model its own model holds.

Luo, Wu. Adapt to adaptation: learning personalization for cross-silo federated learning. IJCAI
2022.

Client i uploads a core w_i and uses w_i^p = sum_j p_ij w_j. Each batch gives one gradient g of the
loss at w_i^p, and both steps are taken from the old values: w_i <- w_i - eta_1 p_ii g, and p_ij <-
p_ij - eta_2 (g . w_j + lambda(r) mu (p_ij - p_0j)), p_0j = n_j/n. lambda(r) fades with the rounds,
so that clients first learn what all have in common.

Symbols: w_j -> server["cores"], rows; w_i and the cached w_j -> state["cores"]; p_i -> state["p"];
p_0 -> state["p0"]; eta_1 -> core_lr_scale times train.lr; eta_2 -> weight_lr; lambda(r) -> fade,
fade_share (L = fade_share T); M_a -> downloads; momentum of both -> state["v"], state["v_p"].

The core moves by eta_1 p_ii g and the personal model by p_ii of that: with p_ii about 1/N little
comes of train.lr, so eta_1 is by default N times as large. Every client holds every core: N^2 d
values, and beyond LIMIT the method refuses.

Differs from the released code in: all cores start alike (there N random starts); mu is twice as
large for the same pull (there the penalty lacks its half); buffers are those of the client's own
training; momentum is kept between participations (there not: train.reset_momentum). With a limit on
downloads cores are drawn with probability ~ base^|p_ij|, as in the paper (there the record of
downloads is never written, and the draw is uniform); for that p_ij leaves the client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import Descent
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task

LIMIT = 10**9  # values that all clients together may hold: 4 GB


@dataclass(frozen=True, kw_only=True)
class Apple(Algorithm):
    name = "apple"
    leaves = {"w": "model", "weights": "row", "n": "count"}
    averages = False
    personal_from = "own"
    frames = False
    covered = True
    plain_sgd = "a core steps along p_ii times the gradient, which adaptive steps would cancel"
    control = {"weight_lr": 0.0}
    new_client_start = (
        "no global model: the mean of the clients' cores, weighted by their training samples"
    )
    grid = {"weight_lr": [1e-4, 1e-3, 1e-2], "core_lr_scale": [1.0, 0.0]}

    weight_lr: Annotated[float, Ge(0), "eta_2, step of the weights p"] = 0.001
    core_lr_scale: Annotated[
        float, Ge(0), "the core's step over train.lr; 0: as many as there are clients"
    ] = 0.0
    mu: Annotated[float, Ge(0), "mu, pull of the weights towards n_j/n"] = 0.2
    fade: Annotated[Literal["exponential", "cosine"], "lambda, how that pull ends"] = "exponential"
    fade_share: Annotated[float, Ge(0), Le(1), "of the rounds, after which it has ended"] = 0.1
    downloads: Annotated[
        int, Ge(0), "M_a, most cores a client receives after its first round; 0: all"
    ] = 0

    def at(self, round: int, rounds: int) -> Self:
        """mu as of the round: lambda(r) mu, r counted from 0."""
        r, last = round - 1, math.floor(self.fade_share * rounds + 1e-9)
        if r >= last:
            left = 0.0
        elif self.fade == "cosine":
            left = (1 + math.cos(math.pi * r / last)) / 2
        else:
            left = 0.001 ** (r / last)
        return replace(super().at(round, rounds), mu=left * self.mu)

    # -- the server --------------------------------------------------------------------------------

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        n, d = federation.clients, federation.layout.d
        if n * n * d > LIMIT:
            raise UserError(
                f"methods: 'apple' keeps every client's core at every client: {n}^2 x {d:,} = "
                f"{n * n * d:,} values; allowed: at most {LIMIT:,}, so at most "
                f"{math.isqrt(LIMIT // d)} clients with this model"
            )
        return {
            "cores": w0.repeat(n, 1),
            "d": d,
            "samples": torch.tensor(federation.samples, device=w0.device),
            "p": torch.zeros(n, n, device=w0.device),  # as the clients have told, their own aside
            "met": torch.zeros(n, dtype=torch.int64, device=w0.device),  # 1: has taken part
        }

    def chosen(self, server: State, client: int, rng: ServerRng) -> list[int]:
        """Whose cores the client receives: all at first, then at most M_a."""
        others = [j for j in range(len(server["cores"])) if j != client]
        if not 0 < self.downloads < len(others) or not server["met"][client]:
            return others
        p = server["p"][client][others].abs().double().cpu()
        base = max(1.5, (rng.round - 1) * self.downloads / len(server["cores"]))
        share = torch.exp((p - p.max()) * math.log(base))
        lot = rng.generator("downloads", client)
        drawn = lot.choice(others, self.downloads, replace=False, p=(share / share.sum()).numpy())
        return sorted(int(j) for j in drawn)

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        cores = [core[: server["d"]] for core in server["cores"]]
        samples = server["samples"].double()
        total = float(samples.sum())
        start = (samples / total if total else torch.full_like(samples, 1 / len(cores))).float()
        out: dict[int, Message] = {}
        for i in cohort:
            ids = self.chosen(server, i, rng)
            sent = {f"core_{j}": cores[j] for j in ids}
            out[i] = {"ids": server["samples"].new_tensor(ids), "start": start, **sent}
        return out

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        ids, rows = mean.each(updates, "w")
        kept = ("cores", "samples", "p", "met")
        cores, samples, p, met = (server[key].clone() for key in kept)
        cores[ids], met[ids] = rows, 1
        for i in ids:
            samples[i] = updates[i]["n"]
            p[i, self.chosen(server, i, rng)] = updates[i]["weights"]
        return {**server, "cores": cores, "samples": samples, "p": p, "met": met}

    # -- a client ----------------------------------------------------------------------------------

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        i, d, ids = rng.client, task.d, message["ids"].tolist()
        p0: Tensor = state["p0"] if "p0" in state else message["start"]
        p = state["p"].clone() if "p" in state else p0.clone()
        cores = state["cores"].clone() if "cores" in state else state["w"][:d].repeat(len(p), 1)
        for j in ids:
            cores[j] = message[f"core_{j}"]
        theta = state["w"].clone()
        scale = self.core_lr_scale or len(p)
        core = Descent(cores[i], replace(self.train, lr=scale * self.train.lr), state, "v")
        slow = replace(self.train, lr=self.weight_lr, weight_decay=0.0, clip=0.0)
        weights = Descent(p, slow, state, "v_p")
        gradient = torch.empty_like(cores[i])
        for x, y in task.batches(data, self.train.batch_size, rng, epochs=self.train.epochs):
            theta[:d] = p @ cores
            task.add_gradient(theta, x, y, gradient.zero_())
            slope = cores @ gradient + self.mu * (p - p0)
            core.begin()
            core.g.add_(gradient, alpha=float(p[i]))
            weights.begin()
            weights.g.add_(slope)
            core.go()
            weights.go()
        theta[:d] = p @ cores
        new = {"w": theta, "cores": cores, "p": p, "p0": p0}
        kept = self.keep(**core.kept, **weights.kept)
        sent = torch.cat([cores[i], theta[d:]])
        return {**new, **kept}, {"w": sent, "weights": p[ids], "n": len(data)}

    # -- what comes of it --------------------------------------------------------------------------

    def public(self, server: State) -> Message:
        return {}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = state["w"]  # as left by the client's last participation
        return w

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        samples = server["samples"].double()
        share = samples / samples.sum() if samples.any() else torch.ones_like(samples)
        mean: Tensor = (share / share.sum()).float() @ server["cores"]
        return mean

    def export(self, server: State) -> dict[str, Any]:
        """The weights p_ij that clients have told of; the others are no numbers."""
        weights = server["p"].cpu().numpy().copy()
        weights[server["met"].cpu().numpy() == 0] = np.nan
        np.fill_diagonal(weights, np.nan)
        return {"weights": weights}
