"""FedPAC against its paper's formulae in float64, and its limits."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.setup import held, make_run
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    DRAWN,
    NET,
    PROBLEM,
    ROUNDS,
    TRAIN,
    Batch,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.fedpac import FedPAC, combination
from pgfed.methods.fedrep import FedRep

B, K, Z = NET.b, NET.k, NET.h
HEAD = slice(B, NET.d)


def least(spread: Array, variance: Array, i: int) -> Array:
    """omega by trying every support: the best point of the simplex that solves its equations."""
    m = len(variance)
    apart = spread[i] - spread
    matrix = np.diag(variance) + apart @ apart.T
    matrix = matrix / matrix.max()
    best, value = np.eye(m)[i], float(matrix[i, i])
    for some in chain.from_iterable(combinations(range(m), k) for k in range(1, m + 1)):
        block = matrix[np.ix_(some, some)]
        system = np.block([[block, np.ones((len(some), 1))], [np.ones((1, len(some))), 0]])
        solved = np.linalg.lstsq(system, [*np.zeros(len(some)), 1.0], rcond=None)[0][:-1]
        omega = np.zeros(m)
        omega[list(some)] = solved
        if (solved >= -1e-12).all() and omega @ matrix @ omega < value - 1e-15:
            best, value = omega, float(omega @ matrix @ omega)
    best[best < 1e-3] = 0
    return best / best.sum()


def means(w: Array, x: Array, y: np.ndarray) -> Array:
    z = NET.features(w, x)
    return np.stack([z[y == k].mean(0) if (y == k).any() else np.zeros(Z) for k in range(K)])


def statistics(w: Array, x: Array, y: np.ndarray) -> tuple[Array, float]:
    """(H, V): the mean of onehot(y) (x) z, and the variance of that mean."""
    z = NET.features(w, x)
    u = np.stack([np.outer(np.eye(K)[label], row).ravel() for label, row in zip(y, z, strict=True)])
    return u.mean(0), float(((u - u.mean(0)) ** 2).sum(1).mean() / len(y))


def base_steps(
    w: Array, v: Array | None, batches: Iterable[Batch], lam: float, anchors: Array | None
) -> tuple[Array, Array | None]:
    w = w.copy()
    for x, y in batches:
        g = NET.gradient(w, x, y)[:B]
        if anchors is not None and lam:
            z = NET.features(w, x)
            back = 2 * lam * (z - anchors[y]) / z.size * (1 - z * z)
            g = g + np.concatenate([(back.T @ x).ravel(), back.sum(0)])
        v = g if v is None else TRAIN.momentum * v + g
        w[:B] -= TRAIN.lr * v
    return w, v


@pytest.mark.parametrize("lam", [0.0, 3.0])
def test_rounds(lam: float) -> None:
    run, w0 = start(FedPAC(train=TRAIN, lam=lam))
    body, own = w0[:B], dict.fromkeys(range(CLIENTS), w0[B:])
    combined: dict[int, Array] = {}
    v_base = dict.fromkeys(range(CLIENTS))
    v_head = dict.fromkeys(range(CLIENTS))
    common: Array | None = None
    known = np.zeros(K, dtype=bool)
    moved = 0.0
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        bodies, heads, spread, variance = {}, {}, {}, {}
        totals, counts = np.zeros((K, Z)), np.zeros(K)
        for i in answered:
            x, y = held(run)[i]
            w = np.append(body, combined.get(i, own[i]))
            spread[i], variance[i] = statistics(w, x, y)
            anchors = None
            if common is not None:
                anchors = np.where(known[:, None], common, means(w, x, y))
            first = minibatches(run, t, i, epochs=1, purpose="head")
            w, v_head[i] = descend(w, v_head[i], first, part=HEAD)
            w, v_base[i] = base_steps(w, v_base[i], minibatches(run, t, i), lam, anchors)
            bodies[i], heads[i] = w[:B], w[B:]
            n_k = np.bincount(y, minlength=K)
            totals += n_k[:, None] * means(w, x, y)
            counts += n_k
        order = sorted(answered)
        stacked = np.stack([spread[i] for i in order])
        scatter = np.array([variance[i] for i in order])
        for place, i in enumerate(order):
            omega = least(stacked, scatter, place)
            combined[i] = omega @ np.stack([heads[j] for j in order])
            own[i] = heads[i]
            moved = max(moved, 1 - omega[place])
        body, known = average(bodies), counts > 0
        common = totals / np.maximum(counts, 1)[:, None]
        assert_close(run.server["w"], body)
        assert_close(run.server["prototypes"], common)
        ids = run.server["ids"].tolist()
        assert ids == sorted(combined)
        for place, i in enumerate(ids):
            assert_close(run.server["heads"][place], combined[i])
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), np.append(body, own[i]))
    assert moved > 0.05  # somebody's head holds others'
    assert_close(run.global_model(), np.append(body, average(own)))


def test_without_its_two_ideas_it_is_fedrep() -> None:
    pac, _ = start(FedPAC(train=TRAIN, lam=0.0, combine=False))
    rep, _ = start(FedRep(train=TRAIN, head_epochs=1))
    for _ in range(ROUNDS):
        pac.step()
        rep.step()
        assert torch.equal(pac.server["w"], rep.server["w"])
    for i in range(CLIENTS):
        assert torch.equal(pac.state(i)["own"], rep.state(i)["own"])


def test_with_equal_features_heads_weigh_by_their_variance() -> None:
    variance = np.array([0.5, 1.0, 4.0])
    omega = combination(np.ones((3, 6)), variance, 1)
    np.testing.assert_allclose(omega, (1 / variance) / (1 / variance).sum(), atol=1e-9)


def test_without_variance_each_keeps_its_own() -> None:
    spread = np.random.default_rng(0).normal(size=(4, 9))
    for i in range(4):
        np.testing.assert_allclose(combination(spread, np.zeros(4), i), np.eye(4)[i], atol=1e-6)
    np.testing.assert_array_equal(combination(np.zeros((3, 2)), np.zeros(3), 2), [0, 0, 1])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_no_other_point_of_the_simplex_is_better(scale: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        m = int(rng.integers(1, 7))
        spread = scale * rng.normal(size=(m, 8))
        variance = scale**2 * rng.gamma(1.0, 2.0, size=m)
        i = int(rng.integers(m))
        found = combination(spread, variance, i)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1)
        np.testing.assert_allclose(found, least(spread, variance, i), atol=2e-6)


def test_the_matrix_is_the_objective() -> None:
    rng = np.random.default_rng(2)
    spread, variance, omega = rng.normal(size=(4, 9)), rng.random(4), rng.dirichlet(np.ones(4))
    apart = spread[2] - spread
    whole = omega @ (np.diag(variance) + apart @ apart.T) @ omega
    direct = (omega**2 * variance).sum() + ((spread[2] - omega @ spread) ** 2).sum()
    assert whole == pytest.approx(direct)


def test_what_leaves_and_arrives() -> None:
    run, _ = start(FedPAC(train=TRAIN))
    h, seen = NET.d - B, set()
    for t, (drawn, answered) in enumerate(zip(DRAWN, ANSWERED, strict=True), 1):
        record = run.step()
        heads = len(seen & set(drawn))
        each = B + (K * Z + K if t > 1 else 0)
        assert record["bytes_down"] == 4 * (len(drawn) * each + heads * h)
        assert record["bytes_up"] == 4 * len(answered) * (NET.d + 2 * K * Z + K + 1)
        seen |= set(answered)


def test_a_class_that_nobody_of_the_round_has_is_drawn_to_the_own_mean() -> None:
    """Two clients without class 2: no common mean of it."""
    few = [(x[y < 2], y[y < 2]) for x, y in PROBLEM[:2]] + list(PROBLEM[2:3])
    run = make_run(FedPAC(train=TRAIN), few, cohort=3, rounds=1, hidden=Z, seed=3)
    server, task = run.server, run.task
    updates = {}
    for i in (0, 1):
        message = {"w": server["w"]}
        data = run.federation.train(i)
        _, updates[i] = run.algorithm.local_update(
            task, run.state(i), message, data, run._side._rng(i, 1)
        )
        assert float(updates[i]["counts"][2]) == 0
    new = run.algorithm.aggregate(server, updates, run._mean, None)
    assert new["known"].tolist() == [1, 1, 0]
    data = run.federation.train(2)
    message = run.algorithm.messages(new, [2], None)[2]
    _, update = run.algorithm.local_update(task, run.state(2), message, data, run._side._rng(2, 2))
    assert bool(torch.isfinite(update["w"]).all())


def test_it_needs_classes_and_features() -> None:
    run, _ = start(FedPAC(train=TRAIN))
    run.task.width = 0
    with pytest.raises(UserError, match="one vector of features"):
        FedPAC().check_model(run.task)
    bare = make_run(FedRep(train=TRAIN), PROBLEM, cohort=1, rounds=1).task
    bare.layout = type(bare.layout)(b=0, h=5)
    with pytest.raises(UserError, match="layers before its head"):
        FedPAC().check_model(bare)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedPAC(train=TRAIN))
