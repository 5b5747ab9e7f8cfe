"""APFL against its paper's formulae in float64, and METHODS' invariant Q3."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from numerics.reference import Net, problem
from numerics.setup import batch_orders, cohorts, finish, float64, held, make_run, normed_network
from pgfed.errors import UserError
from pgfed.methods.apfl import APFL
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.local import Local
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig

N, M, ROUNDS = 5, 3, 4
NET = Net(4, 5, 3)
TRAIN = TrainConfig(epochs=2, batch_size=3, lr=0.05)


def by_hand(w0, data, train, alpha, momentum):
    """Yields (w, {i: v_i}) after each round."""
    w, v = w0.copy(), {}
    speed_w, speed_v = np.zeros((N, NET.d)), np.zeros((N, NET.d))
    for t, cohort in enumerate(cohorts(0, ROUNDS, N, M), start=1):
        local = {}
        for i in cohort:
            x, y = data[i]
            if train.reset_momentum:
                speed_w[i] = speed_v[i] = 0
            wi, vi = w.copy(), v.get(i, w0)
            mixed = alpha * vi + (1 - alpha) * wi
            for k in batch_orders(len(y), train.batch_size, client=i, round=t, epochs=train.epochs):
                speed_w[i] = momentum * speed_w[i] + NET.gradient(wi, x[k], y[k])
                wi = wi - train.lr * speed_w[i]
                speed_v[i] = momentum * speed_v[i] + alpha * NET.gradient(mixed, x[k], y[k])
                vi = vi - train.lr * speed_v[i]
                mixed = alpha * vi + (1 - alpha) * wi
            local[i], v[i] = wi, vi
        n = {i: len(data[i][1]) for i in cohort}
        w = sum(n[i] * local[i] for i in cohort) / sum(n.values())
        yield w, v


@pytest.mark.parametrize("alpha", [0.25, 0.75])
@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize(
    ("policy", "reset", "momentum"),
    [("paper", False, 0.9), ("official", False, 0.0), ("paper", True, 0.9)],
)
def test_follows_the_paper(alpha, batch_size, policy, reset, momentum):
    train = TrainConfig(
        epochs=2, batch_size=batch_size, lr=0.05, momentum_policy=policy, reset_momentum=reset
    )
    run = make_run(APFL(train=train, alpha=alpha), problem(N), cohort=M, rounds=ROUNDS)
    w0 = float64(run.task.initial())
    for w, v in by_hand(w0, held(run), train, alpha, momentum):
        run.step()
        np.testing.assert_allclose(float64(run.server["w"]), w, atol=1e-5)
        for i in range(N):
            vi = v.get(i, w0)
            np.testing.assert_allclose(float64(run.state(i)["personal"]), vi, atol=1e-5)
            mixed = alpha * vi + (1 - alpha) * w  # with the new w
            np.testing.assert_allclose(float64(run.personal_model(i)), mixed, atol=1e-5)
    assert torch.equal(run.global_model(), run.server["w"])
    assert np.abs(v[0] - w0).max() > 0.005


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("model", [None, normed_network])
def test_the_common_model_is_fedavgs(alpha, model):
    data = problem(N)
    a = make_run(APFL(train=TRAIN, alpha=alpha), data, cohort=M, rounds=ROUNDS, model=model)
    b = make_run(FedAvg(train=TRAIN), data, cohort=M, rounds=ROUNDS, model=model)
    while not a.finished:
        a.step()
        b.step()
        assert torch.equal(a.server["w"], b.server["w"])


@pytest.mark.parametrize("model", [None, normed_network])
def test_alpha_1_is_local(model):
    data = problem(N)
    a = make_run(APFL(train=TRAIN, alpha=1.0), data, cohort=M, rounds=ROUNDS, model=model)
    b = make_run(Local(train=TRAIN), data, cohort=M, rounds=ROUNDS, model=model)
    finish(a), finish(b)
    for i in range(N):
        assert torch.equal(a.state(i)["personal"], b.state(i)["w"])
        assert torch.equal(a.personal_model(i), b.personal_model(i))
    assert [r["mean_loss"] for r in a.history] == [r["mean_loss"] for r in b.history]


@pytest.mark.parametrize("model", [None, normed_network])
def test_alpha_0_is_fedavg(model):
    data = problem(N)
    a = make_run(APFL(train=TRAIN, alpha=0.0), data, cohort=M, rounds=ROUNDS, model=model)
    b = make_run(FedAvg(train=TRAIN), data, cohort=M, rounds=ROUNDS, model=model)
    finish(a), finish(b)
    d, w0 = a.task.d, a.task.initial()
    for i in range(N):
        assert torch.equal(a.state(i)["personal"][:d], w0[:d])
        assert torch.equal(a.personal_model(i), b.personal_model(i))
    assert [r["mean_loss"] for r in a.history] == [r["mean_loss"] for r in b.history]


def test_the_own_models_statistics_are_those_of_the_mixture():
    run = make_run(APFL(train=TRAIN), problem(N), cohort=N, rounds=1, model=normed_network)
    w0, d = run.task.initial(), run.task.d
    data, rng = run.federation.train(0), Rng(0, 0, 1)
    state, update = run.algorithm.local_update(run.task, {"personal": w0}, {"w": w0}, data, rng)
    assert not torch.allclose(state["personal"][d:], w0[d:], atol=1e-3)
    assert not torch.allclose(state["personal"][d:], update["w"][d:], atol=1e-5)


def test_bytes_and_an_unanswered_round():
    run = make_run(APFL(train=TRAIN), problem(N), cohort=M, rounds=2, lose=lambda t, i: t == 2)
    record = run.step()
    assert record["bytes_down"] == record["bytes_up"] == 4 * M * NET.d
    before = run.server["w"]
    record = run.step()
    assert (record["bytes_down"], record["bytes_up"]) == (4 * M * NET.d, 0)
    assert torch.equal(run.server["w"], before)


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan")])
def test_impossible_values(alpha):
    with pytest.raises(UserError) as caught:
        APFL(alpha=alpha)
    assert str(caught.value) == f"method.apfl.alpha: must be between 0 and 1, found {alpha:g}"
