"""FedProx against its paper's formulae in float64, and its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.setup import float64, quadratic
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    TRAIN,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedprox import FedProx
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig


@pytest.mark.parametrize("reset", [False, True], ids=["kept", "reset"])
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_rounds(mu: float, reset: bool) -> None:
    run, theta = start(FedProx(train=replace(TRAIN, reset_momentum=reset), mu=mu))
    speed = np.zeros((CLIENTS, NET.d))
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        models = {}
        for i in answered:
            w = theta.copy()
            if reset:
                speed[i] = 0
            for x, y in minibatches(run, t, i):
                speed[i] = TRAIN.momentum * speed[i] + NET.gradient(w, x, y) + mu * (w - theta)
                w -= TRAIN.lr * speed[i]
            models[i] = w
        theta = average(models)
        assert_close(run.server["w"], theta)
        assert_close(run.personal_model(0), theta)


def test_without_the_term_it_is_fedavg() -> None:
    (prox, _), (fedavg, _) = start(FedProx(train=TRAIN, mu=0.0)), start(FedAvg(train=TRAIN))
    for _ in ANSWERED:
        prox.step()
        fedavg.step()
        assert torch.equal(prox.server["w"], fedavg.server["w"])


def test_the_first_step_is_fedavgs_and_the_second_differs_by_the_term() -> None:
    """theta_i(prox) - theta_i(FedAvg) = eta^2 mu (theta - theta_1)/eta = eta^2 mu g_1."""
    eta, mu = 0.05, 1.5
    task, data, H, b = quadratic(12, seed=4)
    g1 = H @ float64(task.initial()) + b
    for epochs, expected in ((1, 0 * g1), (2, eta**2 * mu * g1)):
        train = TrainConfig(epochs=epochs, batch_size=0, lr=eta, momentum=0.0)
        found = [
            method.local_update(task, {}, {"w": task.initial()}, data, Rng(0, 0, 1))[1]["w"]
            for method in (FedProx(train=train, mu=mu), FedAvg(train=train))
        ]
        difference = float64(found[0]) - float64(found[1])
        np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-6)


def test_a_client_ends_where_loss_and_term_balance() -> None:
    """On a quadratic: (H + mu I)^-1 (H x* + mu theta)."""
    mu = 0.7
    task, data, H, b = quadratic(15, seed=1)
    theta = task.initial() + 0.5
    train = TrainConfig(epochs=3_000, batch_size=0, lr=0.2, momentum=0.5)
    _, update = FedProx(train=train, mu=mu).local_update(task, {}, {"w": theta}, data, Rng(0, 0, 1))
    goal = np.linalg.solve(H + mu * np.eye(len(b)), mu * float64(theta) - b)
    np.testing.assert_allclose(float64(update["w"]), goal, rtol=0, atol=1e-5)


def test_a_term_beyond_the_stable_range_is_refused() -> None:
    with pytest.raises(UserError, match=r"method.fedprox.mu: must be < 40, which is 2 \(1 \+ mom"):
        FedProx(mu=40.0, train=TrainConfig(lr=0.05, momentum=0.0))


def test_bytes() -> None:
    assert_bytes(FedProx(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedProx(train=TRAIN))
