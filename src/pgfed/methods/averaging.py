"""The mean of what clients send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pgfed.methods.values import State, Update


class Mean:
    """The mean that the engine hands to `aggregate`: weighted by n, in the order of client ids."""

    def __call__(
        self,
        updates: Mapping[int, Update],
        key: str,
        *,
        around: Tensor | None = None,
        uniform: bool = False,
    ) -> Tensor:
        """The mean of ``key`` over the updates; ``around`` is the vector they started from."""
        weights = self.weights(updates, uniform)
        ids = sorted(updates)
        total = torch.zeros_like(updates[ids[0]][key])
        for i in ids:
            total.add_(updates[i][key], alpha=weights[i])
        return total

    def each(self, updates: Mapping[int, Update], key: str) -> tuple[list[int], Tensor]:
        """The ids that count, and their vectors (or numbers) ``key`` as the rows of one tensor."""
        ids = sorted(updates)
        return ids, torch.stack([torch.as_tensor(updates[i][key]) for i in ids])

    def left_out(self, updates: Mapping[int, Update]) -> list[int]:
        """The clients of whose updates nothing counts."""
        return []

    @staticmethod
    def weights(updates: Mapping[int, Update], uniform: bool = False) -> dict[int, float]:
        """p_i = n_i / sum of n over those who answered; ``uniform``: all equal."""
        n = {i: 1 if uniform else int(u["n"]) for i, u in updates.items()}
        total = sum(n.values())
        return {i: n[i] / total for i in n}


@dataclass(frozen=True)
class ServerOptimizer:
    """How the server's model follows the mean: the way that a round's mean lies from the model, D,
    is what an optimizer takes for its (negative) gradient.

    momentum (FedAvgM: Hsu, Qi, Brown, arXiv:1909.06335, 2019): m <- beta m + D, w <- w + lr m.
    adam (FedAdam: Reddi et al., Adaptive federated optimization, ICLR 2021): m <- beta m +
    (1 - beta) D, v <- beta_2 v + (1 - beta_2) D^2 from tau^2, w <- w + lr m/(sqrt(v) + tau).
    Buffers are averaged as ever. m and v are two entries of the server's state.
    """

    kind: Literal["momentum", "adam"]
    lr: float
    beta: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def begun(self, server: State, trained: int) -> State:
        """The server's state with the optimizer's; the first ``trained`` entries of w are."""
        zero = torch.zeros_like(server["w"][:trained])
        more = {"server_v": torch.full_like(zero, self.tau**2)} if self.kind == "adam" else {}
        return {**server, "server_m": zero, **more}

    def stepped(self, old: State, new: State) -> State:
        """What a round's aggregation comes to: ``new`` is what it gave."""
        if new["w"] is old["w"]:  # nobody answered
            return new
        m, n = old["server_m"], len(old["server_m"])
        towards = new["w"][:n] - old["w"][:n]
        w = new["w"].clone()
        if self.kind == "momentum":
            m = self.beta * m + towards
            w[:n] = old["w"][:n] + self.lr * m
            return {**new, "w": w, "server_m": m}
        m = torch.lerp(towards, m, self.beta)
        v = torch.lerp(towards.square(), old["server_v"], self.beta_2)
        w[:n] = old["w"][:n] + self.lr * m / (v.sqrt() + self.tau)
        return {**new, "w": w, "server_m": m, "server_v": v}
