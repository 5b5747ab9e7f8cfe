"""SCAFFOLD against its paper's formulae in float64, with and without momentum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.setup import float64, make_run, quadratic
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    DRAWN,
    NET,
    PROBLEM,
    TRAIN,
    assert_close,
    assert_scoring_has_no_effect,
    minibatches,
    start,
)
from pgfed.methods.randomness import Rng
from pgfed.methods.scaffold import Scaffold
from pgfed.methods.settings import TrainConfig


@pytest.mark.parametrize(
    ("momentum", "policy", "used"), [(0.0, "paper", 0.0), (0.9, "paper", 0.9), (0.9, "official", 0)]
)
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_rounds(momentum: float, policy: str, used: float, server_lr: float) -> None:
    """c_i is computed from the gradients that were met, not from how far the model moved."""
    train = replace(TRAIN, momentum=momentum, momentum_policy=policy)
    run, theta = start(Scaffold(train=train, server_lr=server_lr))
    c, own = np.zeros(NET.d), np.zeros((CLIENTS, NET.d))
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        models, change = [], np.zeros(NET.d)
        for i in answered:
            y, speed, met = theta.copy(), np.zeros(NET.d), []
            for x, labels in minibatches(run, t, i):
                met.append(NET.gradient(y, x, labels))
                speed = used * speed + met[-1] - own[i] + c
                y -= TRAIN.lr * speed
            # A gradient of step k acts in all later ones: 1 + rho + ... + rho^(K - 1 - k) times.
            weight = np.array([(used ** np.arange(len(met) - k)).sum() for k in range(len(met))])
            new = weight @ np.array(met) / weight.sum()
            change += new - own[i]
            own[i] = new
            models.append(y)
        theta = theta + server_lr * (np.mean(models, axis=0) - theta)
        c = c + change / CLIENTS
        assert_close(run.server["w"], theta)
        np.testing.assert_allclose(float64(run.server["c"]), c, rtol=0, atol=1e-5)
        np.testing.assert_allclose(c, own.mean(0), rtol=0, atol=1e-12)
        for i in answered:
            np.testing.assert_allclose(float64(run.state(i)["c"]), own[i], rtol=0, atol=1e-4)


def test_the_common_variate_is_the_mean_of_all() -> None:
    run, _ = start(Scaffold(train=TRAIN))
    for _ in ANSWERED:
        run.step()
        zero = torch.zeros(NET.d)
        mean = sum(run.state(i).get("c", zero) for i in range(CLIENTS)) / CLIENTS
        torch.testing.assert_close(run.server["c"], mean, rtol=0, atol=1e-5)


def test_seven_steps_with_momentum_reach_as_far_as_twenty_three() -> None:
    method = Scaffold(train=TrainConfig(lr=1.0, momentum=0.9))
    by_hand = sum(0.9**j for k in range(7) for j in range(7 - k))
    assert method.reach(7.0) == pytest.approx(by_hand)
    assert round(method.reach(7.0), 2) == 23.05
    assert Scaffold(train=TrainConfig(lr=0.1, momentum=0.0)).reach(7.0) == pytest.approx(0.7)


def test_one_step_over_all_samples_gives_the_gradient_at_the_start() -> None:
    task, data, H, b = quadratic(12, seed=4)
    train = TrainConfig(epochs=1, batch_size=0, lr=0.05, momentum=0.9)
    c = torch.linspace(-1, 1, task.d)
    message = {"w": task.initial(), "c": c}
    state, update = Scaffold(train=train).local_update(
        task, {"c": 0.5 * c}, message, data, Rng(0, 0, 1)
    )
    gradient = H @ float64(task.initial()) + b
    np.testing.assert_allclose(float64(state["c"]), gradient, rtol=0, atol=1e-5)
    assert update["steps"] == 1.0


def test_the_first_round_and_identical_clients_are_fedavg_with_a_plain_mean() -> None:
    (found, _), (control, _) = (start(Scaffold(train=TRAIN, variates=on)) for on in (True, False))
    found.step()
    control.step()
    assert torch.equal(found.server["w"], control.server["w"])
    found.step()
    control.step()
    assert not torch.equal(found.server["w"], control.server["w"])
    # The same samples everywhere, all of them in each step: c_i = c up to rounding.
    same = [PROBLEM[0]] * CLIENTS
    whole = replace(TRAIN, batch_size=0, momentum=0.0)
    (one, _), (two, _) = (
        start(Scaffold(train=whole, variates=on), clients=same) for on in (True, False)
    )
    one._lose = two._lose = lambda t, i: False
    for _ in range(3):
        one.info = replace(one.info, cohort=CLIENTS)
        two.info = replace(two.info, cohort=CLIENTS)
        one.step()
        two.step()
        torch.testing.assert_close(one.server["w"], two.server["w"], rtol=0, atol=1e-5)


def test_bytes() -> None:
    """Two vectors down; one and a number up."""
    run, _ = start(Scaffold(train=TRAIN))
    for drawn, answered in zip(DRAWN, ANSWERED, strict=True):
        record = run.step()
        assert record["bytes_down"] == 8 * NET.d * len(drawn)
        assert record["bytes_up"] == (4 * NET.d + 4) * len(answered)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(Scaffold(train=TRAIN))


def test_alone_in_the_federation_it_is_fedavg() -> None:
    """N = 1: the common variate is the client's own."""
    plain = replace(TRAIN, momentum=0.0)
    one, two = (
        make_run(Scaffold(train=plain, variates=on), PROBLEM[:1], cohort=1, rounds=3, seed=3)
        for on in (True, False)
    )
    for _ in range(3):
        one.step()
        two.step()
        torch.testing.assert_close(one.server["w"], two.server["w"], rtol=0, atol=1e-6)
    assert float(one.server["c"].norm()) > 0.01
