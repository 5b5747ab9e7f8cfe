"""FedAMP against its formulae in float64, its limits, and the rows of its attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.setup import Risk, float64, make_run, quadratic
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    PROBLEM,
    SEED,
    TRAIN,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.fedamp import FedAMP
from pgfed.methods.local import Local
from pgfed.methods.randomness import Rng
from pgfed.methods.steps import pull, sgd
from pgfed.model.task import Task
from pgfed.results.runs import exported


def attention(models: Array, method: FedAMP) -> Array:
    """The matrix xi over all clients' last models."""
    n = len(models)
    xi = np.zeros((n, n))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        if method.attention == "attentive":
            far = ((models[i] - models[others]) ** 2).sum(1)
            xi[i, others] = method.alpha * np.exp(-far / method.sigma) / method.sigma
            xi[i, i] = 1 - xi[i].sum()
        else:
            lengths = np.linalg.norm(models, axis=1)
            cosines = models[others] @ models[i] / lengths[others] / lengths[i]
            lifted = np.exp(method.sigma * (cosines - cosines.max()))
            xi[i, others] = (1 - method.self_weight) * lifted / lifted.sum()
            xi[i, i] = method.self_weight
    return xi


VARIANTS: dict[str, dict[str, Any]] = {
    "heuristic": {"sigma": 20.0, "prox": 0.5},
    "attentive": {"attention": "attentive", "sigma": 3.0, "alpha": 0.4, "prox": 0.2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rounds(variant: str) -> None:
    method = FedAMP(train=TRAIN, **VARIANTS[variant])
    run, w0 = start(method)
    models, speed = np.tile(w0, (CLIENTS, 1)), np.zeros((CLIENTS, NET.d))
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        xi = attention(models, method)
        np.testing.assert_allclose(xi.sum(1), 1, atol=1e-12)
        mixtures = xi @ models
        for i in answered:
            w = mixtures[i].copy()
            for x, y in minibatches(run, t, i):
                g = NET.gradient(w, x, y) + method.prox * (w - mixtures[i])
                speed[i] = TRAIN.momentum * speed[i] + g
                w -= TRAIN.lr * speed[i]
            models[i] = w
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), models[i])
    xi = attention(models, method)
    kept = exported(run)
    assert kept is not None
    entropy = -np.where(xi > 0, xi * np.log(np.where(xi > 0, xi, 1)), 0).sum(1)
    np.testing.assert_allclose(kept["mixture_entropy"], entropy, atol=1e-4)
    known = sorted({i for answered in ANSWERED for i in answered})
    assert_close(run.global_model(), models[known].mean(0))


def test_without_the_others_it_is_local() -> None:
    method = FedAMP(train=TRAIN, self_weight=1.0, prox=0.0)
    (amp, _), (local, _) = start(method), start(Local(train=TRAIN))
    for _ in ANSWERED:
        amp.step()
        local.step()
    for i in range(CLIENTS):
        assert torch.equal(amp.personal_model(i), local.personal_model(i))


def test_with_equal_shares_and_no_pull_it_is_fedavg_with_a_plain_mean() -> None:
    method = FedAMP(train=TRAIN, sigma=0.0, self_weight=1 / CLIENTS, prox=0.0)
    run = make_run(method, PROBLEM, cohort=CLIENTS, rounds=3, seed=SEED)
    while not run.finished:
        run.step()
        mean = np.mean([float64(run.personal_model(i)) for i in range(CLIENTS)], axis=0)
        for i in range(CLIENTS):
            found = float64(run.algorithm.messages(run.server, [i], None)[i]["w"])  # type: ignore[arg-type]
            np.testing.assert_allclose(found, mean, rtol=0, atol=1e-6)


def test_an_attention_that_could_turn_negative_is_refused() -> None:
    method = FedAMP(train=TRAIN, attention="attentive", sigma=7.0, alpha=1.001)
    with pytest.raises(UserError, match=r"method.fedamp.alpha: must be <= sigma/\(clients"):
        start(method)
    start(FedAMP(train=TRAIN, attention="attentive", sigma=7.0, alpha=1.0))


def test_bytes() -> None:
    assert_bytes(FedAMP(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedAMP(train=TRAIN))


def test_without_a_loss_a_plain_step_closes_the_gap_by_the_pull() -> None:
    """f = 0, w = u + delta: w - u becomes (1 - lr prox) delta."""
    task, data, _, _ = quadratic(8)
    flat = Task(task.module, task.input_shape, objective=Risk(lambda out, y: 0 * out.sum()))
    u, delta = flat.initial(), torch.linspace(-1, 1, flat.d)
    plain = replace(TRAIN, epochs=1, batch_size=0, momentum=0.0)
    w, _ = sgd(flat, u + delta, data, Rng(0, 0, 1), plain, terms=pull(0.7, u))
    torch.testing.assert_close(w - u, (1 - plain.lr * 0.7) * delta, rtol=0, atol=1e-6)
