"""FedALA against its paper's formulae in float64, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.setup import held
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    SEED,
    TRAIN,
    N,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.engine.rounds import Run
from pgfed.methods.fedala import FedALA
from pgfed.methods.fedavg_local import FedAvgLocal
from pgfed.methods.randomness import Rng

B = NET.b


def mixed(
    run: Run, t: int, i: int, theta: Array, own: Array, w: Array | None, lr: float
) -> tuple[Array, Array]:
    """(theta_hat, W) after the passes over W; None: for the first time."""
    x, y = held(run)[i]
    size = min(TRAIN.batch_size, len(y))
    weights = np.ones(NET.d - B) if w is None else w
    losses: list[float] = []
    hat = theta.copy()
    hat[B:] = own[B:] + (theta - own)[B:] * weights
    for epoch in range(20 if w is None else 1):
        order = Rng(SEED, i, t).permutation(len(y), f"mix {epoch}", 0).numpy()
        seen = []
        for k in range(min(max(1, round(0.8 * N[i] / size)), len(y) // size)):
            index = order[k * size : (k + 1) * size]
            loss, g = NET.loss_gradient(hat, x[index], y[index])
            weights = np.clip(weights - lr * g[B:] * (theta - own)[B:], 0, 1)
            hat[B:] = own[B:] + (theta - own)[B:] * weights
            seen.append(loss)
        losses.append(float(np.mean(seen)))
        if len(losses) > 10 and np.std(losses[-10:]) < 0.1:
            break
    return hat, weights


@pytest.mark.parametrize("lr", [1.0, 20.0])
def test_rounds(lr: float) -> None:
    run, w0 = start(FedALA(train=TRAIN, weight_lr=lr))
    theta, own = w0, dict.fromkeys(range(CLIENTS), w0)
    speed: dict[int, Array | None] = {}
    learned: dict[int, Array] = {}
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        models = {}
        for i in answered:
            hat = theta
            if i in speed:
                hat, learned[i] = mixed(run, t, i, theta, own[i], learned.get(i), lr)
            models[i], speed[i] = descend(hat, speed.get(i), minibatches(run, t, i))
            own[i] = models[i]
        theta = average(models)
        assert_close(run.server["w"], theta)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), own[i])
        for i, weights in learned.items():
            assert_close(run.state(i)["weights"], weights)
    assert learned
    assert any((weights < 1).any() for weights in learned.values())


def test_without_steps_of_the_weights_it_is_fedavg_local() -> None:
    (ala, _), (control, _) = (
        start(FedALA(train=TRAIN, weight_lr=0.0)),
        start(FedAvgLocal(train=TRAIN)),
    )
    for _ in ANSWERED:
        ala.step()
        control.step()
    assert torch.equal(ala.server["w"], control.server["w"])
    for i in range(CLIENTS):
        assert torch.equal(ala.personal_model(i), control.personal_model(i))


def test_the_weights_slope_is_that_of_the_loss() -> None:
    """d loss / dW = d loss / d theta_hat * (theta - theta_i), by differences."""
    rng = np.random.default_rng(0)
    theta, own = rng.normal(size=(2, NET.d))
    weights, e = rng.random(NET.d - B), rng.normal(size=NET.d - B)
    x, y = rng.normal(size=(6, 4)), rng.integers(0, 3, 6)

    def at(w: Array) -> Array:
        hat = theta.copy()
        hat[B:] = own[B:] + (theta - own)[B:] * w
        return hat

    h = 1e-6
    up, down = (NET.loss_gradient(at(weights + s * h * e), x, y)[0] for s in (1, -1))
    slope = NET.gradient(at(weights), x, y)[B:] * (theta - own)[B:]
    assert (up - down) / (2 * h) == pytest.approx(slope @ e, rel=1e-6)


def test_where_both_heads_agree_the_weights_stay() -> None:
    run, _ = start(FedALA(train=TRAIN))
    method, theta = run.algorithm, run.task.initial()
    state = {"personal": theta, "trained": 1, "weights": torch.rand(NET.d - B)}
    assert isinstance(method, FedALA)
    hat, weights = method.mixed(run.task, state, theta, run.federation.train(0), Rng(0, 0, 1))
    assert torch.equal(weights, state["weights"])
    torch.testing.assert_close(hat, theta, rtol=0, atol=1e-6)


def test_with_weights_of_zero_the_head_stays_at_home() -> None:
    """As in FedPer: the received body under the own head."""
    run, _ = start(FedALA(train=TRAIN))
    method, task = run.algorithm, run.task
    own, theta = task.initial(), task.initial() + 1
    assert isinstance(method, FedALA)
    frozen = FedALA(train=TRAIN, weight_lr=1e-12)
    state = {"personal": own, "trained": 1, "weights": torch.zeros(NET.d - B)}
    hat, _ = frozen.mixed(task, state, theta, run.federation.train(0), Rng(0, 0, 1))
    torch.testing.assert_close(hat[B:], own[B:], rtol=0, atol=1e-6)
    assert torch.equal(hat[:B], theta[:B])


def test_bytes() -> None:
    assert_bytes(FedALA(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedALA(train=TRAIN))
