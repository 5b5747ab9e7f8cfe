"""Attackers with everything the promise allows them: they must fail as the promise says, and would
succeed if noise or draws were left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.contract import ClientInfo, FederationInfo
from pgfed.methods.pgfed import PGFed
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import sgd
from pgfed.model.private.noise import Keyed, normals
from pgfed.model.task import Task
from pgfed.privacy import accounting
from privacy.material import hidden, linear, mlp, policy, private

CANARIES = 8000
SIZE = 7000  # declared; about half of the canaries are in
CLIP, LR = 0.7, 0.1


def canaries() -> tuple[Shard, np.ndarray]:
    """One-hot, each at a coordinate of its own, in by the toss of a coin."""
    there = np.random.default_rng(5).random(CANARIES) < 0.5
    x = torch.eye(CANARIES)[torch.from_numpy(np.flatnonzero(there))]
    return Shard(x, torch.zeros(len(x), dtype=torch.int64)), there


def rates(seen: np.ndarray, there: np.ndarray) -> tuple[float, float]:
    """(true positives at least, false positives at most), each with 99.9 % certainty, where the
    threshold has 5 % of the absent above it."""
    limit = np.quantile(seen[~there], 0.95)
    hits, false = int((seen[there] > limit).sum()), int((seen[~there] > limit).sum())
    n, m = int(there.sum()), int((~there).sum())
    return (
        float(beta.ppf(0.001, hits, n - hits + 1)),
        float(beta.ppf(0.999, false + 1, m - false)),
    )


def trained(sigma: float, steps: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """What an attacker reads: each canary's own coordinate of the model that is sent."""
    shard, there = canaries()
    task, rules = linear(CANARIES), policy(SIZE, sigma, CLIP)
    view, data = private(task, rules, Keyed("canary")), hidden(shard, rules)
    train = TrainConfig(epochs=1, batch_size=batch, lr=LR, momentum=0.0)
    theta = task.initial()
    for k in range(0, steps, math.ceil(SIZE / (batch or SIZE))):
        theta, _ = sgd(view, theta, data, Rng(0, 0, k), train)
    assert view.meter.releases.total() == steps
    return (theta - task.initial()).numpy(), there


def separation(seen: np.ndarray, there: np.ndarray) -> float:
    hits, false = rates(seen, there)
    return float(norm.ppf(hits) - norm.ppf(false))


def test_canaries_in_whole_batches_are_as_visible_as_mu_says() -> None:
    """sigma = 2, four steps: mu = 1. The attack is nearly as good as it can be, and no better."""
    assert 0.7 < separation(*trained(2.0, 4, 0)) <= 1.0


def test_too_little_noise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    weaker = lambda source, n: 0.7 * normals(source, n)  # noqa: E731
    monkeypatch.setattr("pgfed.model.private.view.normals", weaker)
    assert separation(*trained(2.0, 4, 0)) > 1.0


def visible(seen: np.ndarray, there: np.ndarray) -> float:
    hits, false = rates(seen, there)
    return math.log((hits - 1e-5) / false)


def test_canaries_in_random_draws_stay_within_epsilon() -> None:
    promised = accounting.spent({(4.0, 0.2): 50}, 1e-5).epsilon
    assert promised == pytest.approx(1.46, abs=0.03)
    assert visible(*trained(4.0, 50, SIZE // 5)) <= promised


@pytest.mark.nightly
def test_draws_that_are_ignored_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All units in every step, with the noise of a draw."""
    monkeypatch.setattr("pgfed.model.private.view.drawn", lambda source, n, q: np.arange(n))
    promised = accounting.spent({(4.0, 0.2): 50}, 1e-5).epsilon
    assert visible(*trained(4.0, 50, SIZE // 5)) > promised


def test_canaries_in_a_whole_update_of_pgfed() -> None:
    """Model and gradient are read together, weighed by their noise."""
    shard, there = canaries()
    task, rules = linear(CANARIES), policy(SIZE, 2.0, CLIP, loss_scale=3.0)
    view, data = private(task, rules, Keyed("pgfed")), hidden(shard, rules)
    method = PGFed(train=TrainConfig(epochs=3, batch_size=0, lr=LR, momentum=0.0))
    info = FederationInfo(2, 1, task.layout)
    state = method.init_client(task.initial(), ClientInfo(0, SIZE, info))
    _, update = method.local_update(view, state, {"w": task.initial()}, data, Rng(0, 0, 1))
    assert view.meter.releases == {("gradient", 1.0): 3, ("pass", 1.0): 1}
    # Three steps and one pass of sigma 2: mu = 1 again, if a gradient of length C were all.
    w = (update["w"] - task.initial()).numpy() / (LR * CLIP)
    gradient = -update["gradient"].numpy() / CLIP
    assert 0.65 < separation(w + gradient, there) <= 1.0


def attack_by_loss(task: Task, theta: Tensor, shard: Shard, members: int) -> float:
    """The advantage of who takes a small loss for membership, at the best threshold."""
    with torch.no_grad():
        losses = task.objective.losses(task.logits(theta, shard.x), shard.y).numpy()
    inside, outside = losses[:members], losses[members:]
    return max(float((inside <= t).mean() - (outside <= t).mean()) for t in losses)


def test_membership_by_loss() -> None:
    """Random labels can only be learned by heart."""
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(400, 20)).astype(np.float32))
    every = Shard(x, torch.from_numpy(rng.integers(0, 2, 400)))
    members = every.rows(0, 200)
    torch.manual_seed(0)
    task = mlp(20, 2, 64)
    train = TrainConfig(epochs=40, batch_size=20, lr=0.2, momentum=0.9)
    open_model, _ = sgd(task, task.initial(), members, Rng(0, 0, 1), train)
    assert attack_by_loss(task, open_model, every, 200) > 0.7, "the attack does not work"
    size, epsilon, delta = 190, 1.0, 1e-5
    steps = 40 * math.ceil(size / 20)
    noises, found = accounting.planned({("gradient", 20 / size): steps}, epsilon, delta)
    assert found.epsilon <= epsilon
    rules = policy(size, noises["gradient"], 1.0)
    view = private(task, rules, Keyed("membership"))
    theta, _ = sgd(view, task.initial(), hidden(members, rules), Rng(0, 0, 1), train)
    bound = (math.e**epsilon - 1 + 2 * delta) / (math.e**epsilon + 1)
    assert attack_by_loss(task, theta, every, 200) <= bound + 0.1
