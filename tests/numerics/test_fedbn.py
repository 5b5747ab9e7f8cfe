"""FedBN against its definition in float64: a network with layer norm, differentiated by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from numerics.reference import Array
from numerics.setup import float64, make_run, network, normed_network
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    COHORT,
    LOST,
    PROBLEM,
    ROUNDS,
    SEED,
    TRAIN,
    Batch,
    average,
    minibatches,
)
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedbn import FedBN
from pgfed.methods.local import Local
from pgfed.model.networks import Factory

F, H, K = 4, 5, 3
EPSILON = 1e-5  # torch's
NORM = slice(H * F + H, H * F + 3 * H)  # gain and shift, after the first layer
D = H * F + 3 * H + K * H + K


def layer_normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(F, H), nn.LayerNorm(H), nn.Tanh(), nn.Linear(H, K))


def gradient(w: Array, x: Array, y: Array) -> Array:
    """Of the mean cross-entropy of V tanh(g * norm(U x + a) + s) + c, flat order as above."""
    u, a, g, s, v, c = np.split(w, np.cumsum([H * F, H, H, H, K * H]))
    pre = x @ u.reshape(H, F).T + a
    deviation = np.sqrt(pre.var(1, keepdims=True) + EPSILON)
    normed = (pre - pre.mean(1, keepdims=True)) / deviation
    z = np.tanh(normed * g + s)
    out = z @ v.reshape(K, H).T + c
    p = np.exp(out - out.max(1, keepdims=True))
    delta = p / p.sum(1, keepdims=True)
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    back = (delta @ v.reshape(K, H)) * (1 - z * z)
    inner = back * g
    through = (
        inner - inner.mean(1, keepdims=True) - normed * (inner * normed).mean(1, keepdims=True)
    ) / deviation
    parts = [through.T @ x, through.sum(0), (back * normed).sum(0), back.sum(0), delta.T @ z]
    return np.concatenate([*(part.ravel() for part in parts), delta.sum(0)])


def started(method: FedBN | FedAvg | Local, model: Factory, problem: list[Batch] = PROBLEM) -> Run:
    return make_run(
        method,
        problem,
        cohort=min(COHORT, len(problem)),
        rounds=ROUNDS,
        model=model,
        seed=SEED,
        lose=lambda t, i: (t, i) == LOST and len(problem) > 1,
    )


def finish(run: Run) -> Run:
    while not run.finished:
        run.step()
    return run


@pytest.mark.parametrize(("policy", "momentum"), [("paper", 0.9), ("official", 0.0)])
def test_rounds(policy: str, momentum: float) -> None:
    run = started(FedBN(train=replace(TRAIN, momentum_policy=policy)), layer_normed)
    theta = float64(run.task.initial())
    own = {i: theta[NORM].copy() for i in range(CLIENTS)}
    speed = np.zeros((CLIENTS, D))
    for t, answered in enumerate(ANSWERED, 1):
        record = run.step()
        models = {}
        for i in answered:
            w = theta.copy()
            w[NORM] = own[i]
            for x, y in minibatches(run, t, i):
                speed[i] = momentum * speed[i] + gradient(w, x, y)
                w -= TRAIN.lr * speed[i]
            models[i], own[i] = w, w[NORM].copy()
        theta = average(models)
        for i in range(CLIENTS):
            theta[NORM] = own[i]
            np.testing.assert_allclose(float64(run.personal_model(i)), theta, rtol=0, atol=1e-5)
        assert record["bytes_up"] == 4 * (D - 2 * H) * len(answered)
    theta[NORM] = average(own)
    np.testing.assert_allclose(float64(run.global_model()), theta, rtol=0, atol=1e-5)


def test_only_the_layers_that_normalise_differ_between_clients() -> None:
    """Batch norm: weight, bias, running mean and variance of each client are its own."""
    run = finish(started(FedBN(train=TRAIN), normed_network))
    named = [run.task.named(run.personal_model(i)) for i in range(CLIENTS)]
    one, two, *_ = ANSWERED[-1]
    norms = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    for key in named[0].keys() - {"1.num_batches_tracked"}:
        assert torch.equal(named[one][key], named[two][key]) == (key not in norms), key
    own = run.task.layout.own("not-norm")
    assert own.size == 4 * 5
    assert torch.equal(own.take(run.personal_model(one)), run.state(one)["own"])


def test_with_all_layers_shared_it_is_fedavg() -> None:
    found = finish(started(FedBN(train=TRAIN, shared="all"), normed_network))
    fedavg = finish(started(FedAvg(train=TRAIN), normed_network))
    assert torch.equal(found.server["w"], fedavg.server["w"])
    assert FedBN(train=TRAIN).twin() == "fedavg"


def test_alone_it_is_local() -> None:
    found = finish(started(FedBN(train=TRAIN), normed_network, PROBLEM[:1]))
    local = finish(started(Local(train=TRAIN), normed_network, PROBLEM[:1]))
    assert torch.equal(found.personal_model(0), local.personal_model(0))


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match="'fedbn' keeps normalisation layers at home, and the mod"):
        started(FedBN(train=TRAIN), lambda shape, classes: network(shape, classes, hidden=4))


def test_layers_are_known_by_their_type_not_by_their_name() -> None:
    class Odd(nn.Sequential):
        def __init__(self) -> None:
            super().__init__()
            self.bn_but_linear = nn.Linear(F, H)
            self.shortcut = nn.Sequential(nn.BatchNorm1d(H))
            self.head = nn.Linear(H, K)

    layout = started(FedBN(train=TRAIN), lambda shape, classes: Odd()).task.layout
    kept = {place.name for place in layout.places if place.norm}
    assert kept == {f"shortcut.0.{n}" for n in ("weight", "bias", "running_mean", "running_var")}
