"""A federation over the problems of `reference`, runs of a method on it, and small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from numerics.reference import Array, TorchNet
from pgfed.data.federation import Federation, Shard
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng, draw_cohort
from pgfed.model.networks import Factory
from pgfed.model.objectives import Objective
from pgfed.model.task import Task


class Risk(Objective):
    """A risk that is some function of outputs and labels."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss = function  # type: ignore[method-assign]


Problem = Sequence[tuple[Array, NDArray[np.int64]]]

torch.set_num_threads(1)  # as the engines do: direct calls must give the bits of a run


def federation(problem: Problem) -> Federation:
    """Client i trains on all samples of ``problem[i]``, and is tested on the same ones."""
    x = np.concatenate([x for x, _ in problem]).astype(np.float32)
    y = np.concatenate([y for _, y in problem])
    client = np.repeat(np.arange(len(problem)), [len(y) for _, y in problem])
    return Federation.from_arrays(
        np.concatenate([x, x]),
        np.concatenate([y, y]),
        client=np.concatenate([client, client]),
        split=np.repeat([0, 1], len(y)),
        partition="given",
    )


def held(run: Run) -> Problem:
    """Each client's training samples in the order in which it holds them (not the problem's)."""
    shards = [run.federation.train(i) for i in range(len(run.federation))]
    return [(shard.x.double().numpy(), shard.y.numpy()) for shard in shards]


def network(input_shape: tuple[int, ...], classes: int, *, hidden: int) -> TorchNet:
    return TorchNet(input_shape[0], hidden, classes)


def normed_network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Has buffers: the running mean and variance of its batch norm, 2 x 5."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, classes)
    )


def make_run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    cohort: int,
    rounds: int,
    hidden: int = 5,
    model: Factory | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    lose: Callable[[int, int], bool] = lambda round, client: False,
) -> Run:
    """A run on the twin of ``reference.Net``; ``run.task.initial()`` is where it starts."""
    data = federation(problem)
    backend = Serial(data, model or partial(network, hidden=hidden))
    return Run(
        algorithm,
        data,
        backend,
        seed=seed,
        rounds=rounds,
        cohort=cohort,
        evaluate_every=evaluate_every,
        lose=lose,
    )


def finish(run: Run) -> Run:
    while not run.finished:
        record = run.step()
        refused = [drop for drop in record["dropped"] if drop["reason"] != "lost"]
        assert not refused, refused
    return run


def cohorts(seed: int, rounds: int, clients: int, cohort: int) -> list[list[int]]:
    """The cohorts of rounds 1, 2, ..."""
    return [draw_cohort(seed, t, clients, cohort) for t in range(1, rounds + 1)]


def batch_orders(
    n: int,
    size: int,
    *,
    client: int,
    round: int,
    epochs: int = 1,
    seed: int = 0,
    purpose: str = "train",
) -> Iterator[NDArray[np.int64]]:
    """The samples of each mini-batch: ``size`` (0: all) at a time, an incomplete rest dropped."""
    size = min(size or n, n)
    for epoch in range(epochs):
        order = Rng(seed, client, round).permutation(n, purpose, epoch).numpy()
        for k in range(n // size):
            yield order[k * size : (k + 1) * size]


def float64(theta: Tensor) -> Array:
    out: Array = theta.detach().double().numpy()
    return out


def quadratic(
    n: int, seed: int = 0, features: int = 3, classes: int = 2, same: bool = False
) -> tuple[Task, Shard, Array, Array]:
    """(task, data, H, b) of a risk with gradient H w + b: linear regression on one-hot labels.

    With ``same`` all samples are one and the same, so that each mini-batch has that gradient.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    y = rng.integers(0, classes, size=n)
    if same:
        x[:], y[:] = x[0], y[0]

    def squares(out: Tensor, labels: Tensor) -> Tensor:
        target = nn.functional.one_hot(labels, classes)
        return ((out - target) ** 2).sum(1).mean() / 2

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(features, classes))
    task = Task(module, (features,), objective=Risk(squares))
    z = x.astype(np.float64)
    one = np.eye(classes)
    # Flat order: the weight's rows, then the bias.
    H = np.block(
        [
            [np.kron(one, z.T @ z / n), np.kron(one, z.mean(0)[:, None])],
            [np.kron(one, z.mean(0)[None, :]), one],
        ]
    )
    b = -np.concatenate([(one[y].T @ z / n).ravel(), one[y].mean(0)])
    return task, Shard(torch.from_numpy(x), torch.from_numpy(y)), H, b
