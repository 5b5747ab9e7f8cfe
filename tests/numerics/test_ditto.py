"""Ditto against its paper's formulae in float64: theta as FedAvg's, v_i on its leash."""

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
    NEVER,
    TRAIN,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.ditto import Ditto
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.local import Local
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig


@pytest.mark.parametrize("reset", [False, True], ids=["kept", "reset"])
@pytest.mark.parametrize("lam", [0.3, 2.0])
def test_rounds(lam: float, reset: bool) -> None:
    run, w0 = start(Ditto(train=replace(TRAIN, reset_momentum=reset), lam=lam))
    theta, personal = w0, dict.fromkeys(range(CLIENTS), w0)
    speed = {i: np.zeros((2, NET.d)) for i in range(CLIENTS)}
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        models = {}
        for i in answered:
            w, v = theta.copy(), personal[i].copy()
            if reset:
                speed[i][:] = 0
            for x, y in minibatches(run, t, i):
                # The authors' order: first the personal model, on the same batch.
                speed[i][1] = TRAIN.momentum * speed[i][1] + NET.gradient(v, x, y)
                speed[i][1] += lam * (v - theta)
                v -= TRAIN.lr * speed[i][1]
                speed[i][0] = TRAIN.momentum * speed[i][0] + NET.gradient(w, x, y)
                w -= TRAIN.lr * speed[i][0]
            models[i], personal[i] = w, v
        theta = average(models)
        assert_close(run.server["w"], theta)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), personal[i])
    for i in NEVER:
        np.testing.assert_array_equal(float64(run.personal_model(i)), w0)
    assert_close(run.global_model(), theta)


@pytest.mark.parametrize("lam", [0.0, 1.0, 5.0])
def test_the_common_model_is_fedavgs_whatever_the_leash(lam: float) -> None:
    (ditto, _), (fedavg, _) = start(Ditto(train=TRAIN, lam=lam)), start(FedAvg(train=TRAIN))
    for _ in ANSWERED:
        ditto.step()
        fedavg.step()
        assert torch.equal(ditto.server["w"], fedavg.server["w"])


def test_without_a_leash_it_is_local() -> None:
    (ditto, _), (local, _) = start(Ditto(train=TRAIN, lam=0.0)), start(Local(train=TRAIN))
    for _ in ANSWERED:
        ditto.step()
        local.step()
    for i in range(CLIENTS):
        assert torch.equal(ditto.personal_model(i), local.personal_model(i))


@pytest.mark.parametrize("lam", [0.0, 1.5])
def test_two_steps_from_the_same_start_differ_by_the_leash_alone(lam: float) -> None:
    """v_i - theta_i = eta^2 lambda g_1 after two plain steps; after one they are equal."""
    eta = 0.05
    task, data, H, b = quadratic(12, seed=4)
    w0 = float64(task.initial())
    g1 = H @ w0 + b
    for epochs, expected in ((1, 0 * g1), (2, eta**2 * lam * g1)):
        train = TrainConfig(epochs=epochs, batch_size=0, lr=eta, momentum=0.0)
        method = Ditto(train=train, lam=lam)
        state, update = method.local_update(
            task, {"personal": task.initial()}, {"w": task.initial()}, data, Rng(0, 0, 1)
        )
        np.testing.assert_allclose(
            float64(state["personal"]) - float64(update["w"]), expected, rtol=0, atol=1e-6
        )


def test_the_leash_holds_to_the_model_that_was_received_not_to_the_moving_one() -> None:
    """On a quadratic the personal model ends at (H + lambda I)^-1 (H x* + lambda theta)."""
    lam = 0.7
    task, data, H, b = quadratic(15, seed=1)
    theta = task.initial() + 0.5
    train = TrainConfig(epochs=3_000, batch_size=0, lr=0.2, momentum=0.5)
    state, update = Ditto(train=train, lam=lam).local_update(
        task, {"personal": task.initial()}, {"w": theta}, data, Rng(0, 0, 1)
    )
    goal = np.linalg.solve(H + lam * np.eye(len(b)), lam * float64(theta) - b)
    np.testing.assert_allclose(float64(state["personal"]), goal, rtol=0, atol=1e-5)
    assert float(torch.dist(update["w"], theta)) > 0.1


def test_a_leash_beyond_the_stable_range_is_refused() -> None:
    with pytest.raises(UserError, match=r"method.ditto.lam: must be < 760, which is 2 \(1 \+ mom"):
        Ditto(lam=760.0)
    Ditto(lam=759.0)
    Ditto(lam=760.0, train=TrainConfig(optimizer="adamw"))


def test_bytes() -> None:
    assert_bytes(Ditto(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(Ditto(train=TRAIN))
