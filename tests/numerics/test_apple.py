"""APPLE against its paper's formulae in float64, and its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.setup import make_run
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    DRAWN,
    NET,
    PROBLEM,
    ROUNDS,
    TRAIN,
    N,
    assert_close,
    assert_scoring_has_no_effect,
    descend,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.apple import LIMIT, Apple
from pgfed.methods.contract import FederationInfo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.model.layout import Layout

P0 = np.array(N) / sum(N)
PLAIN = replace(TRAIN, momentum=0.0)


def faded(kind: str, r: int, last: int) -> float:
    if r >= last:
        return 0.0
    return (1 + np.cos(np.pi * r / last)) / 2 if kind == "cosine" else 0.001 ** (r / last)


@pytest.mark.parametrize(("kind", "scale"), [("exponential", 0.0), ("cosine", 3.0)])
def test_rounds(kind: str, scale: float) -> None:
    mu, lr = 0.4, 0.02
    method = Apple(
        train=TRAIN, fade=kind, fade_share=0.75, mu=mu, weight_lr=lr, core_lr_scale=scale
    )
    run, w0 = start(method)
    served = np.tile(w0, (CLIENTS, 1))  # the cores at the server
    held = {i: np.tile(w0, (CLIENTS, 1)) for i in range(CLIENTS)}
    p = {i: P0.copy() for i in range(CLIENTS)}
    v = {i: np.zeros(NET.d) for i in range(CLIENTS)}
    v_p = {i: np.zeros(CLIENTS) for i in range(CLIENTS)}
    eta = TRAIN.lr * (scale or CLIENTS)
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        pull = mu * faded(kind, t - 1, 3)
        sent = {}
        for i in answered:
            own = held[i][i]
            held[i] = served.copy()
            held[i][i] = own
            for x, y in minibatches(run, t, i):
                g = NET.gradient(p[i] @ held[i], x, y)
                slope = held[i] @ g + pull * (p[i] - P0)
                v[i] = 0.9 * v[i] + p[i][i] * g
                v_p[i] = 0.9 * v_p[i] + slope
                held[i][i] = held[i][i] - eta * v[i]
                p[i] = p[i] - lr * v_p[i]
            sent[i] = held[i][i]
        for i, core in sent.items():
            served[i] = core
        assert_close(run.server["cores"], served)
        for i in range(CLIENTS):
            taken = any(i in who for who in ANSWERED[:t])
            assert_close(run.personal_model(i), p[i] @ held[i] if taken else w0)
            if taken:
                assert_close(run.state(i)["p"], p[i])
    assert any(abs(p[i] - P0).max() > 1e-3 for i in p)
    assert_close(run.global_model(), P0 @ served)


def test_the_slope_of_a_weight_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    cores, p, e = rng.normal(size=(5, NET.d)), rng.normal(size=5), rng.normal(size=5)
    x, y = rng.normal(size=(6, 4)), rng.integers(0, 3, 6)
    h = 1e-6
    up, down = (NET.loss_gradient((p + s * h * e) @ cores, x, y)[0] for s in (1, -1))
    slope = cores @ NET.gradient(p @ cores, x, y)
    assert (up - down) / (2 * h) == pytest.approx(slope @ e, rel=1e-6)


def one_batch(method: Apple, state: dict, message: dict) -> tuple[dict, dict, Array]:
    """(new state, update, gradient at the old personal model) of client 0."""
    run, _ = start(method)
    data = run.federation.train(0)
    new, update = method.local_update(run.task, state, message, data, Rng(0, 0, 1))
    old = state["p"].double().numpy() @ state["cores"].double().numpy()
    gradient = NET.gradient(old, data.x.double().numpy(), data.y.numpy())
    return new, update, gradient


def prepared(p: list[float]) -> tuple[dict, dict]:
    torch.manual_seed(0)
    cores, weights = torch.randn(3, NET.d) / 3, torch.tensor(p)
    state = {"w": weights @ cores, "cores": cores, "p": weights, "p0": torch.full((3,), 1 / 3)}
    ids = torch.tensor([1, 2])
    message = {"ids": ids, "start": state["p0"], "core_1": cores[1], "core_2": cores[2]}
    return state, message


def test_one_plain_batch_moves_the_personal_model_by_p_squared() -> None:
    train = replace(PLAIN, epochs=1, batch_size=0)
    state, message = prepared([0.5, 0.2, 0.3])
    method = Apple(train=train, weight_lr=0.0, core_lr_scale=1.0)
    new, _, g = one_batch(method, state, message)
    moved = (new["w"] - state["w"]).double().numpy()
    np.testing.assert_allclose(moved, -TRAIN.lr * 0.25 * g, rtol=0, atol=1e-6)
    core = (new["cores"][0] - state["cores"][0]).double().numpy()
    np.testing.assert_allclose(core, -TRAIN.lr * 0.5 * g, rtol=0, atol=1e-6)
    assert torch.equal(new["cores"][1:], state["cores"][1:])


def test_with_all_weight_on_itself_it_is_local() -> None:
    state, message = prepared([1.0, 0.0, 0.0])
    method = Apple(train=TRAIN, weight_lr=0.0, core_lr_scale=1.0)
    run, _ = start(method)
    data = run.federation.train(0)
    new, _ = method.local_update(run.task, state, message, data, Rng(3, 0, 1))
    alone, _ = descend(state["w"].double().numpy(), None, minibatches(run, 1, 0))
    assert_close(new["w"], alone)


def test_alone_in_the_federation_it_is_local() -> None:
    method = Apple(train=TRAIN, weight_lr=0.0)
    run = make_run(method, PROBLEM[:1], cohort=1, rounds=2, hidden=NET.h, seed=3)
    w, v = run.task.initial().double().numpy(), None
    for t in (1, 2):
        run.step()
        w, v = descend(w, v, minibatches(run, t, 0))
        assert_close(run.personal_model(0), w)


def test_steps_are_taken_from_the_old_values() -> None:
    """The weight's step sees the core as it was, and the core's step the weight."""
    train = replace(PLAIN, epochs=1, batch_size=0)
    state, message = prepared([0.5, 0.2, 0.3])
    method = Apple(train=train, weight_lr=0.1, core_lr_scale=2.0, mu=0.0)
    new, _, g = one_batch(method, state, message)
    cores = state["cores"].double().numpy()
    assert_close(new["p"], state["p"].double().numpy() - 0.1 * cores @ g)
    assert_close(new["cores"][0], cores[0] - 2 * TRAIN.lr * 0.5 * g)


def test_bytes_and_downloads() -> None:
    run, _ = start(Apple(train=TRAIN))
    for drawn, answered in zip(DRAWN, ANSWERED, strict=True):
        record = run.step()
        assert record["bytes_down"] == 4 * len(drawn) * ((CLIENTS - 1) * NET.d + CLIENTS)
        assert record["bytes_up"] == 4 * len(answered) * (NET.d + CLIENTS - 1)


def test_after_its_first_round_a_client_receives_a_few_by_its_weights() -> None:
    method = Apple(train=TRAIN, downloads=2)
    run, _ = start(method)
    server, seen = run.server, np.zeros(CLIENTS)
    assert len(method.chosen(server, 3, ServerRng(0, 1))) == CLIENTS - 1
    p = torch.zeros(CLIENTS, CLIENTS)
    p[3, 5] = -2.0  # whichever sign
    server = {**server, "p": p, "met": torch.ones(CLIENTS, dtype=torch.int64)}
    for t in range(1, 400):
        chosen = method.chosen(server, 3, ServerRng(0, 100 + t))
        assert len(chosen) == 2
        assert 3 not in chosen
        seen[chosen] += 1
    assert seen[5] == seen.max()
    assert seen[5] > 390  # base^2 at round 100 and later: 25 squared, and more
    for _ in range(ROUNDS):
        run.step()


def test_the_pull_ends_after_its_share_of_the_rounds() -> None:
    method = Apple(train=TRAIN, mu=1.0)
    assert [method.at(t, 40).mu for t in (1, 5, 40)] == [1.0, 0.0, 0.0]
    assert method.at(3, 40).mu == pytest.approx(0.001**0.5)
    assert method.at(1, 9).mu == 0  # a tenth of nine rounds is none


def test_more_than_it_can_keep_is_refused() -> None:
    w0 = torch.zeros(8)
    info = FederationInfo(100, 25, Layout(b=800_000, h=78_538), samples=(1,) * 100)
    with pytest.raises(UserError, match=r"100\^2 x 878,538 = 8,785,380,000 values; .* 33 clients"):
        Apple().init_server(w0, info)
    assert 33**2 * 878_538 <= LIMIT < 34**2 * 878_538


def test_scoring_has_no_effect() -> None:
    # The pull fades with the share of the rounds, of which these two runs have unequally many.
    assert_scoring_has_no_effect(Apple(train=TRAIN, mu=0.0))
