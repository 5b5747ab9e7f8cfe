"""FedDyn against its paper's formulae in float64, and METHODS' invariant Q2."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from numerics.reference import Net, problem
from numerics.setup import batch_orders, cohorts, finish, float64, held, make_run, normed_network
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.feddyn import FedDyn
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import TrainConfig

N, M, ROUNDS = 5, 3, 4
NET = Net(4, 5, 3)


def by_hand(w0, data, train, a, clip):
    """Yields (theta, h, lambda) after each round."""
    theta, h = w0.copy(), np.zeros(NET.d)
    lam, v = np.zeros((N, NET.d)), np.zeros((N, NET.d))
    for t, cohort in enumerate(cohorts(0, ROUNDS, N, M), start=1):
        local = {}
        for i in cohort:
            x, y = data[i]
            local[i] = theta.copy()
            for k in batch_orders(len(y), train.batch_size, client=i, round=t, epochs=train.epochs):
                g = NET.gradient(local[i], x[k], y[k]) - lam[i] + a * (local[i] - theta)
                if clip:
                    g *= min(1, clip / np.linalg.norm(g))
                v[i] = train.momentum * v[i] + g
                local[i] = local[i] - train.lr * v[i]
            lam[i] -= a * (local[i] - theta)
        h = h - a / N * sum(w - theta for w in local.values())
        theta = sum(local.values()) / M - h / a
        yield theta, h, lam.copy()


@pytest.mark.parametrize("a", [0.1, 0.5])
@pytest.mark.parametrize("clip", [0.0, 0.2])
@pytest.mark.parametrize("batch_size", [0, 3])
def test_follows_the_paper(a, clip, batch_size):
    train = TrainConfig(epochs=2, batch_size=batch_size, lr=0.05, clip=clip)
    run = make_run(FedDyn(train=train, a=a), problem(N), cohort=M, rounds=ROUNDS)
    w0 = float64(run.task.initial())
    for theta, h, lam in by_hand(w0, held(run), train, a, clip):
        run.step()
        np.testing.assert_allclose(float64(run.server["w"]), theta, atol=1e-5)
        np.testing.assert_allclose(float64(run.server["h"]), h, atol=1e-5)
        for i in filter(run.touched, range(N)):
            np.testing.assert_allclose(float64(run.state(i)["lambda"]), lam[i], atol=1e-5)
            assert torch.equal(run.personal_model(i), run.server["w"])
    assert torch.equal(run.global_model(), run.server["w"])
    assert np.abs(theta - w0).max() > 0.05  # it went somewhere


def test_clipping_bounds_the_step():
    train = TrainConfig(epochs=1, batch_size=0, lr=1.0, momentum=0.0, clip=0.01)
    run = make_run(FedDyn(train=train), problem(1), cohort=1, rounds=1)
    w0 = run.task.initial()
    _, update = run.algorithm.local_update(
        run.task, {}, {"w": w0}, run.federation.train(0), Rng(0, 0, 1)
    )
    assert float((update["w"] - w0).norm()) == pytest.approx(0.01, rel=1e-4)


def test_h_is_the_mean_of_all_lambdas():
    train = TrainConfig(epochs=2, batch_size=4, lr=0.05)
    run = make_run(
        FedDyn(train=train, a=0.1),
        problem(N),
        cohort=M,
        rounds=6,
        lose=lambda t, i: (t + i) % 3 == 0 or t == 2,  # nobody answers in round 2
    )
    while not run.finished:
        before = run.server
        run.step()
        if run.round == 2:
            assert run.server is before
        zero = torch.zeros(NET.d)
        mean = sum(float64(run.state(i).get("lambda", zero)) for i in range(N)) / N
        np.testing.assert_allclose(float64(run.server["h"]), mean, atol=1e-6)
    assert run.server["h"].abs().max() > 1e-3


def test_small_a_is_not_fedavg():
    """As a -> 0 clients train as in FedAvg, but round 1 goes 1 + M/N times as far."""
    train = TrainConfig(epochs=2, batch_size=4, lr=0.05)
    run = make_run(FedDyn(train=train, a=1e-6), problem(N), cohort=M, rounds=1)
    w0 = run.task.initial()
    moves = []
    for i in cohorts(0, 1, N, M)[0]:
        _, update = FedAvg(train=train).local_update(
            run.task, {}, {"w": w0}, run.federation.train(i), Rng(0, i, 1)
        )
        moves.append(float64(update["w"] - w0))
    run.step()
    expected = float64(w0) + (1 + M / N) * np.mean(moves, axis=0)
    np.testing.assert_allclose(float64(run.server["w"]), expected, atol=1e-5)


def test_without_its_corrections_it_is_fedavg():
    """a below what float32 can add, lambda = 0: the same bits at the client; h = 0: their mean."""
    train = TrainConfig(epochs=2, batch_size=4, lr=0.05)
    tiny, plain = FedDyn(train=train, a=1e-30), FedAvg(train=train)
    run = make_run(tiny, problem(N), cohort=N, rounds=1)
    w0, updates = run.task.initial(), {}
    for i in range(N):
        args = ({"w": w0}, run.federation.train(i), Rng(0, i, 1))
        _, updates[i] = tiny.local_update(run.task, {}, *args)
        assert torch.equal(updates[i]["w"], plain.local_update(run.task, {}, *args)[1]["w"])
    mean = Mean()(updates, "w", uniform=True)
    # An h that the round brings to 0: a/N times the sum of the displacements.
    server = {"w": w0, "h": tiny.a * (mean - w0), "clients": N}
    torch.testing.assert_close(tiny.aggregate(server, updates, Mean(), ServerRng(0, 1))["w"], mean)


def test_reset_momentum_forgets_only_the_buffer():
    train = TrainConfig(epochs=1, batch_size=4, reset_momentum=True)
    run = finish(make_run(FedDyn(train=train), problem(N), cohort=M, rounds=2))
    assert {frozenset(run.state(i)) for i in range(N) if run.touched(i)} == {frozenset({"lambda"})}


def test_buffers_are_averaged_and_nothing_else():
    train = TrainConfig(epochs=1, batch_size=4)
    data = problem(N)
    run = make_run(FedDyn(train=train, a=0.1), data, cohort=N, rounds=2, model=normed_network)
    run.step()
    d = run.task.d
    w, updates = run.server["w"], {}
    for i in range(N):
        args = (run.state(i), {"w": w}, run.federation.train(i), Rng(0, i, 2))
        _, updates[i] = run.algorithm.local_update(run.task, *args)
    run.step()
    assert len(run.server["h"]) == len(run.state(0)["lambda"]) == d < len(w)
    stats = Mean()(updates, "w", uniform=True)[d:]
    torch.testing.assert_close(run.server["w"][d:], stats)
    assert not torch.allclose(stats, w[d:], rtol=0.01)


def test_bytes():
    run = finish(make_run(FedDyn(), problem(N), cohort=M, rounds=2))
    for record in run.history:
        assert record["bytes_down"] == record["bytes_up"] == 4 * M * NET.d
        assert record["overhead_down"] == record["overhead_up"] == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"a": 0.0}, "method.feddyn.a: must be > 0, found 0"),
        ({"a": float("nan")}, "method.feddyn.a: must be > 0, found nan"),
    ],
)
def test_impossible_values(options, line):
    with pytest.raises(UserError) as caught:
        FedDyn(**options)
    assert str(caught.value) == line
