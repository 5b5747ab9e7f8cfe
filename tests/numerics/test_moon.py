"""MOON against its paper's formulae in float64, its limits, and the contrast by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.stepping import (
    ANSWERED,
    NET,
    TRAIN,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    minibatches,
    start,
)
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.moon import Moon, contrast


def slope(w: Array, common: Array, last: Array, x: Array, mu: float, tau: float) -> Array:
    """The gradient of mu times the mean contrast, through the features z = tanh(U x + a)."""
    z, others = NET.features(w, x), [NET.features(v, x) for v in (common, last)]
    length = np.linalg.norm(z, axis=1, keepdims=True)
    cosines, slopes = [], []
    for o in others:
        unit = o / np.linalg.norm(o, axis=1, keepdims=True)
        s = (z * unit).sum(1, keepdims=True) / length
        cosines.append(s)
        slopes.append((unit - s * z / length) / length)
    pull = 1 / (1 + np.exp(-(cosines[1] - cosines[0]) / tau))
    back = mu / tau / len(x) * pull * (slopes[1] - slopes[0]) * (1 - z * z)
    out = np.zeros(NET.d)
    out[: NET.b] = np.concatenate([(back.T @ x).ravel(), back.sum(0)])
    return out


@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (5.0, 1.0)])
def test_rounds(mu: float, tau: float) -> None:
    run, theta = start(Moon(train=TRAIN, mu=mu, tau=tau))
    speed: dict[int, Array] = {}
    last: dict[int, Array] = {}
    contrasted = 0
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        models = {}
        for i in answered:
            w, v = theta.copy(), speed.get(i, np.zeros(NET.d))
            for x, y in minibatches(run, t, i):
                g = NET.gradient(w, x, y)
                if i in last:
                    g += slope(w, theta, last[i], x, mu, tau)
                    contrasted += 1
                v = TRAIN.momentum * v + g
                w -= TRAIN.lr * v
            models[i], speed[i] = w, v
        last |= models
        theta = average(models)
        assert_close(run.server["w"], theta)
        assert_close(run.personal_model(0), theta)
    assert contrasted


def test_the_slope_by_hand_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    w, common, last = rng.normal(size=(3, NET.d))
    x, e = rng.normal(size=(6, 4)), rng.normal(size=NET.d)
    losses = contrast(1.3, 0.7)

    def value(at: Array) -> float:
        z = [torch.from_numpy(NET.features(v, x)) for v in (at, common, last)]
        return float(losses(z[0], None, z[1], z[2]).mean())

    h = 1e-6
    found = (value(w + h * e) - value(w - h * e)) / (2 * h)
    assert found == pytest.approx(slope(w, common, last, x, 1.3, 0.7) @ e, rel=1e-6)


@pytest.mark.parametrize("change", [{"mu": 0.0}, {"tau": 1e12}])
def test_without_the_contrast_it_is_fedavg(change: dict[str, float]) -> None:
    (moon, _), (fedavg, _) = start(Moon(train=TRAIN, **change)), start(FedAvg(train=TRAIN))
    for _ in ANSWERED:
        moon.step()
        fedavg.step()
        assert_close(moon.server["w"], fedavg.server["w"].double().numpy())
    if "mu" in change:
        assert torch.equal(moon.server["w"], fedavg.server["w"])


def test_every_first_participation_is_fedavgs() -> None:
    (moon, _), (fedavg, _) = start(Moon(train=TRAIN, mu=9.0)), start(FedAvg(train=TRAIN))
    moon.step()
    fedavg.step()
    assert torch.equal(moon.server["w"], fedavg.server["w"])


def test_the_contrast() -> None:
    mu, tau = 1.5, 0.4
    losses = contrast(mu, tau)
    generator = torch.Generator().manual_seed(0)
    z, common, last = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    z.requires_grad_()
    one = losses(z, None, common, last)
    s_glob, s_prev = (torch.cosine_similarity(z, o) for o in (common, last))
    first = torch.exp(s_glob / tau)
    torch.testing.assert_close(one, -mu * torch.log(first / (first + torch.exp(s_prev / tau))))
    # Exchanged, it differs by what lies between the cosines.
    torch.testing.assert_close(losses(z, None, last, common) - one, (s_glob - s_prev) * mu / tau)
    # It knows no lengths: the gradient is at right angles to z.
    (slope,) = torch.autograd.grad(one.sum(), z)
    torch.testing.assert_close((z * slope).sum(1), torch.zeros(7, dtype=torch.float64))
    # Against one and the same model: mu log 2, and no gradient.
    same = losses(z, None, common, common)
    torch.testing.assert_close(same, torch.full_like(same, mu * np.log(2)))
    (slope,) = torch.autograd.grad(same.sum(), z)
    torch.testing.assert_close(slope, torch.zeros_like(slope))


def test_features_that_are_all_zero_give_finite_steps() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(contrast(1.0, 0.5)(z, None, torch.ones(2, 3), z).sum(), z)
    assert torch.isfinite(slope).all()


def test_bytes() -> None:
    assert_bytes(Moon(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(Moon(train=TRAIN))
