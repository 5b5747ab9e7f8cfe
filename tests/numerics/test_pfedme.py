"""pFedMe against its paper's formulae in float64, and METHODS' invariant Q6."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from numerics.reference import Net, problem
from numerics.setup import (
    batch_orders,
    cohorts,
    finish,
    float64,
    held,
    make_run,
    normed_network,
    quadratic,
)
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.pfedme import PFedMe
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig

N, M, ROUNDS = 5, 3, 4
NET = Net(4, 5, 3)
TRAIN = TrainConfig(epochs=2, batch_size=3, lr=0.05)


def by_hand(w0, data, batch_size, lam, K, eta_p, beta, kappa):
    """Yields (w, {i: theta_i}, {i: w_i}) after each round; the dictionaries hold the last ones."""
    w, thetas, locals_ = w0.copy(), {}, {}
    for t, cohort in enumerate(cohorts(0, ROUNDS, N, M), start=1):
        for i in cohort:
            x, y = data[i]
            theta, wi = w.copy(), w.copy()
            for k in batch_orders(len(y), batch_size, client=i, round=t, epochs=TRAIN.epochs):
                for _ in range(K):
                    g = NET.gradient(theta, x[k], y[k])
                    theta = theta - eta_p * (g + lam * (theta - wi) + kappa * theta)
                wi = wi - TRAIN.lr * lam * (wi - theta)
            thetas[i], locals_[i] = theta, wi
        n = {i: len(data[i][1]) for i in cohort}
        mean = sum(n[i] * locals_[i] for i in cohort) / sum(n.values())
        w = (1 - beta) * w + beta * mean
        yield w, thetas, locals_


@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("scored", ["theta", "w"])
@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_follows_the_paper(batch_size, scored, beta):
    train = TrainConfig(epochs=TRAIN.epochs, batch_size=batch_size, lr=TRAIN.lr)
    own = {"lam": 4.0, "personal_lr": 0.06, "beta": beta, "kappa": 0.01}
    method = PFedMe(train=train, inner_steps=3, pfedme_eval=scored, **own)
    run = make_run(method, problem(N), cohort=M, rounds=ROUNDS)
    w0 = run.task.initial()
    for w, thetas, locals_ in by_hand(
        float64(w0), held(run), batch_size, own["lam"], 3, own["personal_lr"], beta, own["kappa"]
    ):
        run.step()
        np.testing.assert_allclose(float64(run.server["w"]), w, atol=1e-5)
        for i in range(N):
            expected = (thetas if scored == "theta" else locals_).get(i, float64(w0))
            np.testing.assert_allclose(float64(run.personal_model(i)), expected, atol=1e-5)
    assert torch.equal(run.global_model(), run.server["w"])
    assert np.abs(thetas[0] - locals_[0]).max() > 1e-3  # the switch makes a difference


def test_beta_0_freezes_w():
    run = finish(make_run(PFedMe(beta=0.0, train=TRAIN), problem(N), cohort=M, rounds=3))
    assert torch.equal(run.server["w"], run.task.initial())


@pytest.mark.parametrize("options", [{"lam": 0.0}, {"inner_steps": 0}])
def test_without_leash_or_inner_steps_w_is_frozen(options):
    run = finish(make_run(PFedMe(train=TRAIN, **options), problem(N), cohort=M, rounds=3))
    torch.testing.assert_close(run.server["w"], run.task.initial(), rtol=1e-6, atol=1e-7)


def test_without_leash_theta_descends_freely():
    K, eta_p, kappa = 4, 0.1, 0.01
    method = PFedMe(train=TRAIN, lam=0.0, inner_steps=K, personal_lr=eta_p, kappa=kappa)
    run = finish(make_run(method, problem(N), cohort=N, rounds=1))
    for i, (x, y) in enumerate(held(run)):
        theta = float64(run.task.initial())
        for k in batch_orders(len(y), TRAIN.batch_size, client=i, round=1, epochs=TRAIN.epochs):
            for _ in range(K):
                theta = theta - eta_p * (NET.gradient(theta, x[k], y[k]) + kappa * theta)
        np.testing.assert_allclose(float64(run.personal_model(i)), theta, atol=1e-5)


def test_eta_lambda_1_makes_w_i_equal_to_theta_i():
    train = TrainConfig(epochs=2, batch_size=3, lr=0.25)
    run = make_run(PFedMe(train=train, lam=4.0), problem(N), cohort=M, rounds=1)
    message, data = {"w": run.task.initial()}, run.federation.train(0)
    state, update = run.algorithm.local_update(run.task, {}, message, data, Rng(0, 0, 1))
    assert torch.equal(state["personal"], update["w"])
    assert not torch.equal(update["w"], message["w"])


def test_many_inner_steps_solve_the_quadratic():
    """theta_i -> (H + (lambda + kappa) I)^-1 (lambda w_i - b), with w_i before its step."""
    task, data, H, b = quadratic(n=12)
    lam, kappa = 2.0, 0.1
    train = TrainConfig(epochs=1, batch_size=0, lr=0.1)
    method = PFedMe(train=train, lam=lam, kappa=kappa, personal_lr=0.1, inner_steps=400)
    w = task.initial()
    state, update = method.local_update(task, {}, {"w": w}, data, Rng(0, 0, 1))
    theta = np.linalg.solve(H + (lam + kappa) * np.eye(task.d), lam * float64(w) - b)
    np.testing.assert_allclose(float64(state["personal"]), theta, atol=1e-5)
    expected = float64(w) - train.lr * lam * (float64(w) - theta)
    np.testing.assert_allclose(float64(update["w"]), expected, atol=1e-5)


def test_buffers_come_from_the_personal_model_and_are_averaged():
    data = problem(N)
    method = PFedMe(train=TRAIN, beta=0.0)
    run = make_run(method, data, cohort=N, rounds=1, model=normed_network)
    d, w0, updates = run.task.d, run.task.initial(), {}
    for i in range(N):
        shard, rng = run.federation.train(i), Rng(0, i, 1)
        state, updates[i] = method.local_update(run.task, {}, {"w": w0}, shard, rng)
        assert torch.equal(state["personal"][d:], updates[i]["w"][d:])
    run.step()
    # beta extrapolates parameters; of a variance it could make a negative one.
    torch.testing.assert_close(run.server["w"][d:], Mean()(updates, "w")[d:])
    assert torch.equal(run.server["w"][:d], w0[:d])


def test_bytes_and_an_unanswered_round():
    run = make_run(PFedMe(train=TRAIN), problem(N), cohort=M, rounds=2, lose=lambda t, i: t == 2)
    record = run.step()
    assert record["bytes_down"] == record["bytes_up"] == 4 * M * NET.d
    before = run.server["w"]
    record = run.step()
    assert (record["bytes_down"], record["bytes_up"]) == (4 * M * NET.d, 0)
    assert torch.equal(run.server["w"], before)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"inner_steps": -1}, "method.pfedme.inner_steps: must be >= 0, found -1"),
        ({"lam": -0.5}, "method.pfedme.lam: must be >= 0, found -0.5"),
        ({"beta": float("nan")}, "method.pfedme.beta: must be >= 0, found nan"),
        ({"kappa": -1.0}, "method.pfedme.kappa: must be >= 0, found -1"),
        ({"personal_lr": 0.0}, "method.pfedme.personal_lr: must be > 0, found 0"),
        (
            {"lam": 30.0, "train": TrainConfig(lr=0.1)},
            "method.pfedme.lam: lr * lam must be <= 1 (w_i would step beyond theta_i), "
            "found 0.1 * 30",
        ),
    ],
)
def test_impossible_values(options, line):
    with pytest.raises(UserError) as caught:
        PFedMe(**options)
    assert str(caught.value) == line
