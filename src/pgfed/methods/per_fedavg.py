"""Per-FedAvg: one model for all, made to be good after a single gradient step at each client.

Fallah, Mokhtari, Ozdaglar. Personalized federated learning with theoretical guarantees: a
model-agnostic meta-learning approach. NeurIPS 2020.

Minimises the mean of f_i(w - alpha grad f_i(w)). Its gradient is (I - alpha H) g with g the
gradient at the adapted model and H the Hessian at w, each on a mini-batch of its own; the
first-order variant takes I for the factor.

Symbols: w -> server["w"]; the outer step's momentum buffer -> state["v"]; alpha -> alpha; beta ->
train.lr; delta -> delta.

Differs from the released code in: a client is scored after a step of length alpha, for which the
model was trained; there of beta (adapt_lr = "beta"). A client with fewer than 2B samples halves
what it has; there the second half is what is left after B, and one with at most B does not move.
That trains without momentum (momentum_policy = "official"),
and has the first-order variant only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import Step
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm):
    name = "per-fedavg"
    leaves = {"w": "model", "n": "count"}
    official_momentum = False
    grid = {"alpha": [0.1, 0.01, 0.001, 0.0001]}

    alpha: Annotated[float, Ge(0), "alpha, the adaptation's step"] = 0.01
    adapt_lr: Annotated[Literal["alpha", "beta"], "its length when a client is scored"] = "alpha"
    variant: Annotated[
        Literal["fo", "hf", "hvp"],
        "H dropped, by the difference of two gradients, or by an exact Hessian-vector product",
    ] = "fo"
    delta: Annotated[float, Gt(0), "delta, half the width of hf's difference"] = 0.001

    def portion(self, n: int) -> tuple[int, int]:
        """(size of each mini-batch, how many of them a meta-step takes) with n samples."""
        parts = 2 if self.variant == "fo" else 3
        size = min(self.train.batch_size or n, n // parts)
        return (size, parts) if size else (n, 1)  # too few to divide: all for everything

    def no_privacy(self) -> str | None:
        if self.variant == "fo":
            return None
        return (
            f"variant = {self.variant!r} takes a Hessian product, which is no bounded sum over "
            "records (by a difference of gradients the noise grows by 1 / (1.4 delta)); use 'fo'"
        )

    def images(self, n: int) -> int:
        size, parts = self.portion(n)
        return self.train.epochs * (n // (size * parts)) * size * parts

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        step, d = Step(task, message["w"], self.steps, state), task.d
        w = step.theta
        u = torch.empty_like(w)  # where gradients are taken: at w, adapted, near w again
        inner = torch.empty_like(w[:d])
        size, parts = self.portion(len(data))
        for portion in task.portions(data, size, parts, rng, epochs=self.train.epochs):
            batch = portion * 3  # where there are too few to divide, one is all
            u.copy_(w)
            task.add_gradient(u, *batch[0], inner.zero_())
            u[:d].sub_(inner, alpha=self.alpha)
            v = step.collect()
            outer = v if self.variant == "fo" else inner.zero_()
            task.add_gradient(u, *batch[1], outer)
            w[d:] = u[d:]
            if self.variant != "fo":
                bent = self.hessian_product(task, w, u, *batch[2], outer)
                v.add_(outer).sub_(bent, alpha=self.alpha)
            step.take()
        return self.keep(**step.kept), {"w": w, "n": len(data)}

    def hessian_product(
        self, task: Task, w: Tensor, u: Tensor, x: Tensor, y: Tensor, g: Tensor
    ) -> Tensor:
        """H g at w; u is scratch, so that batch norm leaves w alone."""
        here, near = w[: task.d], u[: task.d]
        if self.variant == "hvp":
            near.copy_(here)
            return task.hessian_product(u, x, y, g)
        torch.add(here, g, alpha=self.delta, out=near)
        ahead = task.gradient(u, x, y)
        torch.sub(here, g, alpha=self.delta, out=near)
        return ahead.sub_(task.gradient(u, x, y)).div_(2 * self.delta)

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        u: Tensor = public["w"].clone()
        x, y = next(task.batches(data, self.train.batch_size, rng, purpose="adapt"))
        gradient = task.gradient(u, x, y)
        u[: task.d].sub_(gradient, alpha=self.alpha if self.adapt_lr == "alpha" else self.train.lr)
        return u
