"""IFCA: several common models; each client trains the one that fits its training data best.

Ghosh, Chung, Yin, Ramchandran. An efficient framework for clustered federated learning. NeurIPS
2020.

A client receives k models, takes the one with the least loss on its training data (of equal ones
the first), and trains it; the server averages what comes back by the model that was chosen. A model
that nobody chose stays as it is.

Symbols: theta^1..theta^k -> server["model_0"], ...; client i's choice -> update["cluster"], and
server["chosen"], by client (-1: it has not answered yet); n_i -> server["samples"]; v_i ->
state["v"], kept while the client stays with its model (state["cluster"], state["draw"]).

Starts that are alike collapse: everybody takes the same one. While only one model was ever chosen,
the server gives such a round up and goes on with k - 1 new starts (server["starts"]; how often ->
server["draw"]), at most `redraws` times; then it says so and goes on.

Differs from the released code in: a client that is scored takes the model of the least *training*
loss, there of the least test loss; the mean is weighted by n (there for FEMNIST alone). There new
starts cost no round, and are drawn until each model has its share of the clients. The variant in
which the models differ in their heads alone is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import NOTES
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class IFCA(Algorithm):
    name = "ifca"
    leaves = {"w": "model", "cluster": "index", "n": "count"}
    averages = False
    personal_from = "both"  # one of several global models, by its own data
    control = {"clusters": 1}
    control_twin = "fedavg"
    new_client_start = "the model that most clients have chosen, counted by training samples"
    grid = {"clusters": [2, 3, 4]}

    clusters: Annotated[int, Ge(1), Le(64), "k, how many common models there are"] = 3
    redraws: Annotated[
        int, Ge(0), Le(100), "rounds given up to new starts while everybody takes the same model"
    ] = 5

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        # All starts that may be needed: later there is nothing to draw them from.
        further = (self.clusters - 1) * (1 + self.redraws)
        starts = [federation.start(k) for k in range(1, 1 + further)]
        models = [w0, *starts[: self.clusters - 1]]
        server: State = {f"model_{k}": model for k, model in enumerate(models)}
        left = starts[self.clusters - 1 :]
        server["starts"] = torch.stack(left) if left else w0.new_empty(0, len(w0))
        chosen = torch.full((federation.clients,), -1, device=w0.device)
        samples = torch.tensor(federation.samples, device=w0.device)
        return {**server, "chosen": chosen, "samples": samples, "draw": 0}

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        return {i: {**self.public(server), "draw": server["draw"]} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        cluster = self.best(task, message, data)
        place = {"cluster": cluster, "draw": message["draw"]}
        same = all(state.get(key) == value for key, value in place.items())
        w, kept = sgd(
            task, message[f"model_{cluster}"], data, rng, self.train, state if same else None
        )
        return {**place, **self.keep(**kept)}, {"w": w, "cluster": cluster, "n": len(data)}

    def best(self, task: Task, models: Message, data: Shard) -> int:
        """The model with the least loss on the client's training data."""
        if self.clusters == 1:
            return 0
        losses = task.losses([models[f"model_{k}"] for k in range(self.clusters)], data)
        return losses.index(min(losses))

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        if not updates:
            return server
        chosen, samples = server["chosen"].clone(), server["samples"].clone()
        for i, update in updates.items():
            chosen[i], samples[i] = min(update["cluster"], self.clusters - 1), update["n"]
        alike = len(chosen[chosen >= 0].unique()) == 1
        if len(server["starts"]) and len(updates) > 1 and alike:
            return self.redrawn(server)
        starts = server["starts"] if alike else server["starts"][:0]
        new = {**server, "starts": starts, "chosen": chosen, "samples": samples}
        for k in range(self.clusters):
            own = {i: update for i, update in updates.items() if int(chosen[i]) == k}
            if own:
                new[f"model_{k}"] = mean(own, "w", around=server[f"model_{k}"])
        return new

    def redrawn(self, server: State) -> State:
        """Everybody took the same model: k - 1 new ones beside the first start."""
        more, draw = self.clusters - 1, server["draw"] + 1
        if draw == self.redraws:
            NOTES.warning(
                f"ifca: all clients took the same of {self.clusters} models in {draw} draws of "
                "their starts; the last ones stay (method.ifca.redraws allows more)"
            )
        fresh = {f"model_{k + 1}": server["starts"][k].clone() for k in range(more)}
        nobody = torch.full_like(server["chosen"], -1)
        rest = server["starts"][more:]
        return {**server, **fresh, "starts": rest, "draw": draw, "chosen": nobody}

    def public(self, server: State) -> Message:
        return {f"model_{k}": server[f"model_{k}"] for k in range(self.clusters)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public[f"model_{self.best(task, public, data)}"]
        return w

    def sizes(self, server: State) -> Tensor:
        """Training samples of the clients that chose each model last."""
        known = server["chosen"] >= 0
        return torch.bincount(
            server["chosen"][known], server["samples"][known].double(), self.clusters
        )

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        w: Tensor = server[f"model_{int(self.sizes(server).argmax())}"]
        return w

    def export(self, server: State) -> dict[str, Any]:
        clusters = torch.bincount(server["chosen"][server["chosen"] >= 0], minlength=self.clusters)
        return {"cluster": server["chosen"].cpu().numpy(), "cluster_clients": clusters.numpy()}
