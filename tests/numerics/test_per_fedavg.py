"""Per-FedAvg against its paper's formulae in float64, and METHODS' invariant Q8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.reference import Net, problem
from numerics.setup import (
    batch_orders,
    cohorts,
    float64,
    held,
    make_run,
    normed_network,
    quadratic,
)
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.per_fedavg import PerFedAvg
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig

N, M, ROUNDS = 5, 3, 4
NET = Net(4, 5, 3)
TRAIN = TrainConfig(epochs=2, batch_size=3, lr=0.05)


DELTA = 0.1


def hessian_product(w, x, y, g, width=1e-5):
    """A central difference; with the default width, in float64, exact to about 1e-10."""
    ahead, behind = NET.gradient(w + width * g, x, y), NET.gradient(w - width * g, x, y)
    return (ahead - behind) / (2 * width)


def by_hand(w0, data, train, alpha, variant, momentum):
    """Yields w after each round."""
    w, v = w0.copy(), np.zeros((N, NET.d))
    for t, cohort in enumerate(cohorts(0, ROUNDS, N, M), start=1):
        local = {}
        for i in cohort:
            x, y = data[i]
            parts = 2 if variant == "fo" else 3
            size = min(train.batch_size or len(y), len(y) // parts)
            wi = w.copy()
            for k in batch_orders(len(y), parts * size, client=i, round=t, epochs=train.epochs):
                b1, b2, b3 = k[:size], k[size : 2 * size], k[2 * size :]
                u = wi - alpha * NET.gradient(wi, x[b1], y[b1])
                g = NET.gradient(u, x[b2], y[b2])
                if variant != "fo":
                    width = DELTA if variant == "hf" else 1e-5
                    g = g - alpha * hessian_product(wi, x[b3], y[b3], g, width)
                v[i] = momentum * v[i] + g
                wi = wi - train.lr * v[i]
            local[i] = wi
        n = {i: len(data[i][1]) for i in cohort}
        w = sum(n[i] * local[i] for i in cohort) / sum(n.values())
        yield w


@pytest.mark.parametrize("variant", ["fo", "hf", "hvp"])
@pytest.mark.parametrize("batch_size", [0, 3, 7])  # 7: some clients have fewer than 14 samples
@pytest.mark.parametrize(
    ("policy", "momentum", "adapt_lr"), [("paper", 0.9, "alpha"), ("official", 0.0, "beta")]
)
def test_follows_the_paper(variant, batch_size, policy, momentum, adapt_lr):
    train = replace(TRAIN, batch_size=batch_size, momentum_policy=policy)
    alpha = 0.2
    method = PerFedAvg(train=train, alpha=alpha, variant=variant, adapt_lr=adapt_lr, delta=DELTA)
    run = make_run(method, problem(N), cohort=M, rounds=ROUNDS)
    data, w0 = held(run), float64(run.task.initial())
    for w in by_hand(w0, data, train, alpha, variant, momentum):
        run.step()
        np.testing.assert_allclose(float64(run.server["w"]), w, atol=1e-5)
        step = alpha if adapt_lr == "alpha" else train.lr
        for i, (x, y) in enumerate(data):
            k = next(batch_orders(len(y), batch_size, client=i, round=run.round, purpose="adapt"))
            adapted = w - step * NET.gradient(w, x[k], y[k])
            np.testing.assert_allclose(float64(run.personal_model(i)), adapted, atol=1e-5)
    assert torch.equal(run.global_model(), run.server["w"])
    assert np.abs(w - w0).max() > 0.02


def test_second_order_matters():
    """The three variants are three trajectories, the two exact ones close to each other."""
    ends = {}
    for variant in ("fo", "hf", "hvp"):
        method = PerFedAvg(train=TRAIN, alpha=0.5, variant=variant)
        w0 = torch.linspace(-1, 1, NET.d)
        run = make_run(method, problem(N), cohort=M, rounds=1)
        data, rng = run.federation.train(0), Rng(0, 0, 1)
        ends[variant] = method.local_update(run.task, {}, {"w": w0}, data, rng)[1]["w"]
    torch.testing.assert_close(ends["hf"], ends["hvp"], rtol=0, atol=1e-4)
    assert float((ends["fo"] - ends["hvp"]).abs().max()) > 1e-2


@pytest.mark.parametrize("delta", [1e-3, 0.1, 10.0])
def test_quadratic(delta):
    """One meta-step: (I - alpha H) grad f(w - alpha grad f(w)), by hf with any delta."""
    task, data, H, b = quadratic(n=6, same=True)
    train = TrainConfig(epochs=1, batch_size=2, lr=0.1, momentum=0.0)
    w, alpha = float64(task.initial()), 0.15
    u = w - alpha * (H @ w + b)
    first_order = H @ u + b
    exact = first_order - alpha * H @ first_order
    for variant, gradient, n in (("fo", first_order, 4), ("hf", exact, 6), ("hvp", exact, 6)):
        method = PerFedAvg(train=train, alpha=alpha, variant=variant, delta=delta)
        message, part = {"w": task.initial()}, data.rows(0, n)
        _, update = method.local_update(task, {}, message, part, Rng(0, 0, 1))
        np.testing.assert_allclose(float64(update["w"]), w - train.lr * gradient, atol=1e-5)
    assert np.abs(exact - first_order).max() > 0.01


def test_alpha_0_is_sgd_on_the_second_halves():
    method = PerFedAvg(train=replace(TRAIN, momentum=0.0), alpha=0.0)
    run = make_run(method, problem(N), cohort=N, rounds=1)
    updates = {}
    for i in range(N):
        data, w = run.federation.train(i), run.task.initial()
        for k in batch_orders(len(data), 6, client=i, round=1, epochs=TRAIN.epochs):
            x, y = data.batch(torch.from_numpy(k[3:]))
            w -= TRAIN.lr * run.task.gradient(w, x, y)
        updates[i] = {"w": w, "n": len(data)}
    run.step()
    torch.testing.assert_close(run.server["w"], Mean()(updates, "w"), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("model", [None, normed_network])
def test_adaptation_leaves_no_trace(model):
    data = problem(N)
    scored = make_run(PerFedAvg(train=TRAIN), data, cohort=M, rounds=30, model=model)
    unscored = make_run(
        PerFedAvg(train=TRAIN), data, cohort=M, rounds=30, model=model, evaluate_every=30
    )
    for _ in range(4):
        assert scored.step()["mean_score"] is not None
        assert unscored.step()["mean_score"] is None
    before = scored.server["w"].clone()
    adapted = scored.personal_model(0)
    assert not torch.equal(adapted, before)
    assert torch.equal(adapted, scored.personal_model(0))  # and is the same when asked again
    assert torch.equal(scored.server["w"], before)
    assert torch.equal(scored.server["w"], unscored.server["w"])
    for i in range(N):
        assert scored.state(i).keys() == unscored.state(i).keys()
        for key, value in scored.state(i).items():
            assert torch.equal(value, unscored.state(i)[key])


@pytest.mark.parametrize("variant", ["fo", "hf", "hvp"])
def test_few_samples(variant):
    """What cannot be divided serves as every mini-batch: also a single sample trains."""
    data = problem(3)
    data[0], data[1] = (data[0][0][:1], data[0][1][:1]), (data[1][0][:2], data[1][1][:2])
    method = PerFedAvg(train=replace(TRAIN, momentum=0.0, epochs=1), alpha=0.2, variant=variant)
    run = make_run(method, data, cohort=3, rounds=1)
    w = run.task.initial()
    for i, (x, y) in enumerate(held(run)[:2]):
        shard, rng = run.federation.train(i), Rng(0, i, 1)
        _, update = method.local_update(run.task, {}, {"w": w}, shard, rng)
        first = second = slice(None)
        if variant == "fo" and len(y) == 2:
            first, second = rng.permutation(2, "train").numpy()[:, None]
        u = float64(w) - 0.2 * NET.gradient(float64(w), x[first], y[first])
        g = NET.gradient(u, x[second], y[second])
        if variant != "fo":
            g = g - 0.2 * hessian_product(float64(w), x, y, g)
        np.testing.assert_allclose(float64(update["w"]), float64(w) - TRAIN.lr * g, atol=1e-5)


@pytest.mark.parametrize("variant", ["fo", "hf", "hvp"])
def test_statistics_come_from_the_adapted_model(variant):
    """They move with the two passes of a meta-step, not with those near w for the Hessian."""
    method = PerFedAvg(train=replace(TRAIN, epochs=1, batch_size=4), variant=variant)
    data = problem(1, low=13, high=14)  # one meta-step of 8 or 12 samples
    run = make_run(method, data, cohort=1, rounds=1, model=normed_network)
    w0, d = run.task.initial(), run.task.d
    shard, rng = run.federation.train(0), Rng(0, 0, 1)
    _, update = method.local_update(run.task, {}, {"w": w0}, shard, rng)
    assert torch.equal(w0, run.task.initial())
    order, u = rng.permutation(13, "train"), w0.clone()
    u[:d] -= method.alpha * run.task.gradient(u, *shard.batch(order[:4]))
    run.task.gradient(u, *shard.batch(order[4:8]))
    torch.testing.assert_close(update["w"][d:], u[d:])


def test_bytes_images_and_an_unanswered_round():
    method = PerFedAvg(train=TRAIN)
    run = make_run(method, problem(N), cohort=M, rounds=2, lose=lambda t, i: t == 2)
    record = run.step()
    assert record["bytes_down"] == record["bytes_up"] == 4 * M * NET.d
    sizes = [len(run.federation.train(i)) for i in record["cohort"]]
    assert record["samples"] == sum(2 * (n // 6) * 6 for n in sizes)
    before = run.server["w"]
    record = run.step()
    assert (record["bytes_down"], record["bytes_up"]) == (4 * M * NET.d, 0)
    assert torch.equal(run.server["w"], before)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"alpha": -0.1}, "method.per-fedavg.alpha: must be >= 0, found -0.1"),
        ({"delta": 0.0}, "method.per-fedavg.delta: must be > 0, found 0"),
    ],
)
def test_impossible_values(options, line):
    with pytest.raises(UserError) as caught:
        PerFedAvg(**options)
    assert str(caught.value) == line
