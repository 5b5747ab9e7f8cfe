"""What the tests of several methods share: one small federation, and its SGD in float64 numpy.

Eight clients, three of them per round, four rounds, mini-batches; one reply of round 2 is lost. Of
pgfed only the keyed random numbers are used: who takes part, and the order of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from numerics.reference import Array, Net, problem
from numerics.setup import cohorts, held, make_run
from pgfed.engine.rounds import Run
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig

SEED, CLIENTS, COHORT, ROUNDS = 3, 8, 3, 4
NET = Net(features=4, hidden=5, classes=3)
PROBLEM = problem(CLIENTS, seed=SEED)
TRAIN = TrainConfig(epochs=2, batch_size=4, lr=0.1, momentum=0.9)
N = [len(y) for _, y in PROBLEM]
DRAWN = cohorts(SEED, ROUNDS, CLIENTS, COHORT)
LOST = (2, DRAWN[1][0])
ANSWERED = [[i for i in drawn if (t, i) != LOST] for t, drawn in enumerate(DRAWN, 1)]
NEVER = set(range(CLIENTS)) - {i for drawn in DRAWN for i in drawn}
assert NEVER
assert len([i for answered in ANSWERED for i in answered]) > len(set().union(*ANSWERED))

Batch = tuple[Array, NDArray[np.int64]]


def start(
    algorithm: Algorithm, *, clients: list[Batch] = PROBLEM, evaluate_every: int = 1
) -> tuple[Run, Array]:
    """A run on the federation above, and the float64 vector it starts from."""
    run = make_run(
        algorithm,
        clients,
        cohort=COHORT,
        rounds=ROUNDS if evaluate_every == 1 else 10_000,
        hidden=NET.h,
        seed=SEED,
        evaluate_every=evaluate_every,
        lose=lambda t, i: (t, i) == LOST,
    )
    return run, run.task.initial().double().numpy()


def minibatches(
    run: Run, t: int, i: int, *, epochs: int = TRAIN.epochs, purpose: str = "train"
) -> Iterator[Batch]:
    """Client i's mini-batches of round t."""
    x, y = held(run)[i]
    size = min(TRAIN.batch_size, len(y))
    for epoch in range(epochs):
        order = Rng(SEED, i, t).permutation(len(y), purpose, epoch).numpy()
        for k in range(len(y) // size):
            index = order[k * size : (k + 1) * size]
            yield x[index], y[index]


def descend(
    w: Array,
    v: Array | None,
    batches: Iterable[Batch],
    *,
    part: slice = slice(None),
    lr: float = TRAIN.lr,
    momentum: float = TRAIN.momentum,
) -> tuple[Array, Array | None]:
    """SGD on the entries ``part`` of w; v is their momentum buffer, None before the first step."""
    w = w.copy()
    for x, y in batches:
        g = NET.gradient(w, x, y)[part]
        v = g if v is None else momentum * v + g
        w[part] -= lr * v
    return w, v


def average(values: Mapping[int, Array]) -> Array:
    """The mean weighted by the numbers of training samples."""
    total = sum(N[i] for i in values)
    return np.sum([N[i] / total * values[i] for i in values], axis=0)


def assert_close(found: Tensor, expected: Array) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=0, atol=1e-5)


def assert_scoring_has_no_effect(algorithm: Algorithm) -> None:
    """Q12: with and without evaluation, server and clients end in the same bits."""
    scored, _ = start(algorithm)
    unscored, _ = start(algorithm, evaluate_every=9_999)
    for _ in range(ROUNDS):
        assert scored.step()["mean_score"] is not None
        assert unscored.step()["mean_score"] is None
    _assert_same(scored.server, unscored.server)
    for i in range(CLIENTS):
        _assert_same(scored.state(i), unscored.state(i))


def _assert_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(np.asarray(a[key]), np.asarray(b[key]), strict=True)


def assert_bytes(algorithm: Algorithm, floats: int) -> None:
    """Q11: each client drawn receives ``floats`` numbers; each one that answers sends as many."""
    run, _ = start(algorithm)
    for drawn, answered in zip(DRAWN, ANSWERED, strict=True):
        record = run.step()
        assert record["bytes_down"] == 4 * floats * len(drawn)
        assert record["bytes_up"] == 4 * floats * len(answered)
