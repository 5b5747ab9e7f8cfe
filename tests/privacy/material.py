"""A private view of a small task, for the tests of the mechanism."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng
from pgfed.model.kinds import Classes
from pgfed.model.objectives import Objective
from pgfed.model.private.noise import Keyed, Source
from pgfed.model.private.policy import Meter, Policy
from pgfed.model.private.units import PrivateShard, Units
from pgfed.model.private.view import PrivateTask
from pgfed.model.task import Task

KINDS = ("gradient", "pass", "losses", "counts", "scores")


def mlp(features: int = 5, classes: int = 3, hidden: int = 7) -> Task:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))
    return Task(module, (features,), objective=Classes([str(k) for k in range(classes)]))


class Inner(Objective):
    """The loss -<w, x>: a sample's gradient is -x, whatever the model."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs[:, 0]


def linear(d: int) -> Task:
    return Task(nn.Linear(d, 1, bias=False), (d,), objective=Inner())


def samples(n: int, features: int = 5, classes: int = 3, seed: int = 0) -> Shard:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, features)).astype(np.float32))
    return Shard(x, torch.from_numpy(rng.integers(0, classes, n)))


def policy(size: int, sigma: float = 0.0, clip: float = 0.7, **more: Any) -> Policy:
    return Policy(size, clip, dict.fromkeys(KINDS, sigma), more.pop("loss_scale", 1.5), **more)


def private(task: Task, rules: Policy, source: Source | None = None) -> PrivateTask:
    return PrivateTask(task, rules, source or Keyed("test"), Meter(), who="test")


def hidden(shard: Shard, rules: Policy, group: Any = None) -> PrivateShard:
    return PrivateShard(Units.of(shard, group), rules.size, "test")


def ticket(view: PrivateTask, data: PrivateShard, batch: int = 0) -> Tensor:
    return next(view.batches(data, batch, Rng(0, 0, 1)))[0]


def noisy_gradient(
    task: Task,
    shard: Shard,
    rules: Policy,
    *,
    batch: int = 0,
    part: Any = "all",
    group: Any = None,
    source: Source | None = None,
    theta: Tensor | None = None,
) -> Tensor:
    """One A, as the method gets it."""
    view, data = private(task, rules, source), hidden(shard, rules, group)
    out = torch.zeros(task.d)
    one = ticket(view, data, batch)
    view.add_gradient(task.initial() if theta is None else theta, one, one, out, part=part)
    return out
