"""A federation over the problems of `reference`, and runs of a method on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from numerics.reference import Array, TorchNet
from pgfed.core import Algorithm, draw_cohort
from pgfed.data.federation import Federation
from pgfed.engine import Run, Serial

Problem = Sequence[tuple[Array, NDArray[np.int64]]]


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


def make_run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    cohort: int,
    rounds: int,
    hidden: int = 5,
    seed: int = 0,
    evaluate_every: int = 1,
    lose: Callable[[int, int], bool] | None = None,
) -> Run:
    """A run on the twin of ``reference.Net``; ``run.task.initial()`` is where it starts."""
    data = federation(problem)
    backend = Serial(data, partial(network, hidden=hidden))
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


def cohorts(seed: int, rounds: int, clients: int, cohort: int) -> list[list[int]]:
    """The cohorts of rounds 1, 2, ..."""
    return [draw_cohort(seed, t, clients, cohort) for t in range(1, rounds + 1)]
