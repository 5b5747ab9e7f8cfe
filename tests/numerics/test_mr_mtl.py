"""MR-MTL against its paper's formulae in float64, its fixed point, and the mean that it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from numerics.setup import Risk, float64, quadratic
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    DRAWN,
    NET,
    NEVER,
    TRAIN,
    N,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    minibatches,
    start,
)
from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.methods.local import Local
from pgfed.methods.mr_mtl import MRMTL
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig


@pytest.mark.parametrize("lam", [0.3, 2.0])
@pytest.mark.parametrize(
    ("policy", "reset", "momentum"),
    [("paper", False, 0.9), ("official", False, 0.0), ("paper", True, 0.9)],
)
def test_rounds(lam: float, policy: str, reset: bool, momentum: float) -> None:
    train = replace(TRAIN, momentum_policy=policy, reset_momentum=reset)
    run, w0 = start(MRMTL(train=train, lam=lam))
    mean, own = w0, {i: w0.copy() for i in range(CLIENTS)}
    speed = {i: np.zeros(NET.d) for i in range(CLIENTS)}
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        for i in answered:
            if reset:
                speed[i][:] = 0
            for x, y in minibatches(run, t, i):
                g = NET.gradient(own[i], x, y) + lam * (own[i] - mean)
                speed[i] = momentum * speed[i] + g
                own[i] = own[i] - TRAIN.lr * speed[i]
        # The mean of what all clients hold, those included that rest or were never drawn.
        mean = average(own)
        assert_close(run.server["w"], mean)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), own[i])
    for i in NEVER:
        np.testing.assert_array_equal(float64(run.personal_model(i)), w0)
    assert_close(run.global_model(), mean)


def test_without_the_pull_it_is_local() -> None:
    (found, _), (local, _) = start(MRMTL(train=TRAIN, lam=0.0)), start(Local(train=TRAIN))
    for _ in ANSWERED:
        found.step()
        local.step()
    for i in range(CLIENTS):
        assert torch.equal(found.personal_model(i), local.personal_model(i))
    official = replace(TRAIN, momentum_policy="official")
    assert MRMTL(train=TRAIN).twin() == "local"
    assert MRMTL(train=official).twin() is None


def squares(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """a (w - m)^2 / 2: the input is sqrt(a), the target sqrt(a) m."""
    return ((out - target) ** 2).mean() / 2


@pytest.mark.parametrize("lam", [0.3, 3.0])
def test_fixed_point_of_one_number_per_client(lam: float) -> None:
    """With c = a/(a + lambda) the mean is sum n c m / sum n c, and w_i = c m + (1 - c) mean.

    Six clients, half of them in each round: who rests still counts in the mean.
    """
    rng = np.random.default_rng(5)
    n, a, m = rng.integers(1, 5, 6), rng.uniform(0.5, 2, 6), rng.normal(size=6)
    client = np.repeat(np.arange(6), n)
    x, y = np.sqrt(a)[client, None], (np.sqrt(a) * m)[client, None]
    data = Federation.from_arrays(
        np.concatenate([x, x]).astype(np.float32),
        np.concatenate([y, y]).astype(np.float32),
        client=np.concatenate([client, client]),
        split=np.repeat([0, 1], len(client)),
        targets="values",
    )
    risk = Risk(squares)
    risk.targets = "values"  # type: ignore[misc]
    backend = Serial(data, lambda shape, outputs: nn.Linear(1, outputs, bias=False), objective=risk)
    train = TrainConfig(epochs=4, batch_size=0, lr=0.2, momentum=0.0)
    run = Run(
        MRMTL(train=train, lam=lam),
        data,
        backend,
        seed=0,
        rounds=400,
        cohort=3,
        evaluate_every=1_000,
    )
    while run.round != 390:
        run.step()
    mean = (n * a * m / (a + lam)).sum() / (n * a / (a + lam)).sum()
    assert float(run.server["w"]) == pytest.approx(mean, abs=1e-4)
    for i in range(6):
        expected = (a[i] * m[i] + lam * mean) / (a[i] + lam)
        assert float(run.state(i)["personal"]) == pytest.approx(expected, abs=1e-4)


def test_a_strong_pull_is_not_fedavg_in_its_steps() -> None:
    """eta lambda = 1 gives mean - eta grad f(w): one step, however many are taken."""
    task, data, H, b = quadratic(12, seed=2)
    eta, mean = 0.1, task.initial() + 0.3
    train = TrainConfig(epochs=1, batch_size=0, lr=eta, momentum=0.0)
    state, update = MRMTL(train=train, lam=1 / eta).local_update(
        task, {"personal": task.initial()}, {"w": mean}, data, Rng(0, 0, 1)
    )
    expected = float64(mean) - eta * (H @ float64(task.initial()) + b)
    np.testing.assert_allclose(float64(state["personal"]), expected, rtol=0, atol=1e-6)
    moved = expected - float64(task.initial())
    np.testing.assert_allclose(float64(update["step"]), moved, rtol=0, atol=1e-6)


def test_a_site_that_was_not_known_counts_from_its_first_answer() -> None:
    run, _ = start(MRMTL(train=TRAIN))
    server = {**run.server, "samples": run.server["samples"].clone()}
    server["samples"][0] = 0
    one = torch.ones(NET.d)
    new = run.algorithm.aggregate(server, {0: {"step": one, "n": 5}}, run._mean, None)  # type: ignore[arg-type]
    assert int(new["samples"][0]) == 5
    share = 5 / (5 + sum(N[1:]))
    torch.testing.assert_close(new["w"] - server["w"], share * one, rtol=0, atol=1e-6)


def test_bytes() -> None:
    run, _ = start(MRMTL(train=TRAIN))
    for drawn, answered in zip(DRAWN, ANSWERED, strict=True):
        record = run.step()
        assert record["bytes_by_key"] == {
            "down": {"w": 4 * NET.d * len(drawn)},
            "up": {"step": 4 * NET.d * len(answered)},
        }


def test_a_step_that_is_too_long_is_refused() -> None:
    run, _ = start(MRMTL(train=TRAIN))
    run._max_update_norm = 1e-3
    reasons = [drop["reason"] for drop in run.step()["dropped"]]
    assert len(reasons) == len(DRAWN[0])
    assert all("step: norm" in reason for reason in reasons)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(MRMTL(train=TRAIN))
