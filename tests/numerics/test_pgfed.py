"""PGFed, PGFedMo and PGFed-CE against a derivation of their own, in float64 numpy.

The derivation below is written from the paper (Algorithm 1; appendix for PGFed-CE): it knows
nothing of flat tasks, sparse matrices, messages or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from numerics.reference import Array, Net, TorchNet, problem
from numerics.setup import cohorts, federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.methods.contract import Algorithm
from pgfed.methods.pgfed import PGFed
from pgfed.methods.pgfed_ce import PGFedCE
from pgfed.methods.pgfed_mo import PGFedMo
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import TrainConfig

CLIENTS, COHORT, ROUNDS, SEED = 9, 3, 5, 0
FEATURES, CLASSES, HIDDEN = 4, 3, 5
TOLERANCE = 1e-5

Ints = NDArray[np.int64]


class Model(Protocol):
    def loss_gradient(self, w: Array, x: Array, y: Ints) -> tuple[float, Array]: ...


class Softmax:
    """Softmax regression, w = [V, c]: mean cross-entropy of V x + c."""

    def loss_gradient(self, w: Array, x: Array, y: Ints) -> tuple[float, Array]:
        v, c = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
        z = x @ v.T + c
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        target = np.eye(CLASSES)[y]
        loss = -np.mean(np.log((p * target).sum(1)))
        delta = (p - target) / len(y)
        return float(loss), np.concatenate([(delta.T @ x).ravel(), delta.sum(0)])


def softmax_twin(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], classes))


def net_twin(shape: tuple[int, ...], classes: int) -> nn.Module:
    return TorchNet(shape[0], HIDDEN, classes)


MODELS: dict[str, tuple[Model, Callable[..., nn.Module]]] = {
    "softmax": (Softmax(), softmax_twin),
    "two-layer": (Net(FEATURES, HIDDEN, CLASSES), net_twin),
}


# -- the derivation ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Symbols:
    """The paper's symbols, and the choices it leaves open."""

    mu: float = 0.5
    eta_1: float = 0.1
    eta_2: float = 0.2
    rho: float = 0.9
    beta: float | None = None  # None: no momentum of the auxiliary gradient
    # gbar . theta_i, or "exact" grad_j . theta_i;
    # PGFed-CE: "own" grad_j . theta, or "mean" gbar . theta
    g2: str = "adaptive"
    clamp: bool = True
    alpha_first: bool = True
    forget_momentum: bool = False
    whole_gradient: bool = False
    epochs: int = 4
    batch: int = 0  # 0: everything


@dataclass
class Outcome:
    theta: Array  # theta_glob
    own: list[Array]  # theta_i
    A: Array
    velocity: dict[int, Array] = field(default_factory=dict)
    g_tilde: dict[int, Array] = field(default_factory=dict)


def orders(client: int, t: int, n: int, purpose: str, epoch: int) -> Ints:
    """The batch orders of a run are no part of the mathematics: they are taken as they are."""
    return Rng(SEED, client, t).permutation(n, purpose, epoch).numpy()


def alpha_step(
    alpha: Array,
    s: Symbols,
    grad: dict[int, Array],
    r: dict[int, float],
    theta_i: Array,
    theta: Array,
) -> Array:
    """alpha_ij - eta_2 (g1_j + g2) for the j of the last round."""
    alpha = alpha.copy()
    for j in grad:
        g_bar = s.mu / len(grad) * sum(grad.values())
        g2 = {
            "adaptive": g_bar @ theta_i,
            "exact": s.mu * grad[j] @ theta_i,
            "mean": g_bar @ theta,
            "own": s.mu * grad[j] @ theta,
        }[s.g2]
        alpha[j] -= s.eta_2 * (s.mu * r[j] + g2)
        if s.clamp:
            alpha[j] = max(0.0, alpha[j])
    return alpha


def derive(
    model: Model,
    data: list[tuple[Array, Ints]],
    w0: Array,
    S: list[list[int]],
    s: Symbols,
    lost: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]
) -> Iterator[Outcome]:
    """Algorithm 1, with the state after each round."""
    N, M = len(data), len(S[0])
    theta, own, A = w0, [w0] * N, np.full((N, N), 1 / M)
    velocity: dict[int, Array] = {}
    kept: dict[int, Array] = {}
    grad: dict[int, Array] = {}  # of S_{t-1}, those who answered
    r: dict[int, float] = {}
    for t, cohort in enumerate(S, start=1):
        answers: dict[int, tuple[Array, Array, Array, float, Array, Array | None]] = {}
        for i in cohort:
            x, y = data[i]
            n = len(y)
            size = min(s.batch or n, n)
            used = n - n % size
            theta_i, alpha = theta.copy(), A[i].copy()
            v = velocity.get(i, np.zeros_like(w0))
            g_tilde = kept.get(i)
            if grad:
                fresh = s.mu * sum(A[i, j] * grad[j] for j in grad)
                if s.beta is None or g_tilde is None:
                    g_tilde = fresh
                else:
                    g_tilde = (1 - s.beta) * fresh + s.beta * g_tilde
            for epoch in range(s.epochs):
                order = orders(i, t, n, "train", epoch)
                for start in range(0, used, size):
                    batch = order[start : start + size]
                    g = model.loss_gradient(theta_i, x[batch], y[batch])[1]
                    if grad:
                        g = g + g_tilde
                    if s.alpha_first:
                        alpha = alpha_step(alpha, s, grad, r, theta_i, theta)
                    v = s.rho * v + g
                    theta_i = theta_i - s.eta_1 * v
                    if not s.alpha_first:
                        alpha = alpha_step(alpha, s, grad, r, theta_i, theta)
            sample = orders(i, t, n, "gradient", 0)[: n if s.whole_gradient else used]
            f, gradient = model.loss_gradient(theta_i, x[sample], y[sample])
            if (t, i) not in lost:
                answers[i] = (theta_i, v, gradient, f - gradient @ theta_i, alpha, g_tilde)
        total = sum(len(data[i][1]) for i in answers)
        if answers:
            theta = sum(len(data[i][1]) / total * a[0] for i, a in answers.items())
        for i, (theta_i, v, _, _, alpha, g_tilde) in answers.items():
            own[i] = theta_i
            A[i] = alpha
            if not s.forget_momentum:
                velocity[i] = v
            if g_tilde is not None and s.beta is not None:
                kept[i] = g_tilde
        grad = {i: a[2] for i, a in answers.items()}
        r = {i: a[3] for i, a in answers.items()}
        yield Outcome(theta.copy(), list(own), A.copy(), dict(velocity), dict(kept))


# -- pgfed's side ------------------------------------------------------------------------------


def train_config(s: Symbols) -> TrainConfig:
    return TrainConfig(
        epochs=s.epochs,
        batch_size=s.batch,
        lr=s.eta_1,
        momentum=s.rho,
        reset_momentum=s.forget_momentum,
    )


def algorithm(s: Symbols) -> Algorithm:
    common: dict[str, Any] = {
        "train": train_config(s),
        "mu": s.mu,
        "alpha_lr": s.eta_2,
        "alpha_clamp": s.clamp,
        "full_grad": s.whole_gradient,
    }
    if s.g2 in ("own", "mean"):
        return PGFedCE(ce_g2="per_client" if s.g2 == "own" else "mean", **common)
    common["alpha_order"] = "pre" if s.alpha_first else "post"
    if s.g2 == "exact":
        return PGFed(alpha_gradient="exact", **common)
    return PGFed(**common) if s.beta is None else PGFedMo(beta=s.beta, **common)


def both(
    s: Symbols,
    model: str = "softmax",
    lost: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]
) -> tuple[Run, list[Outcome]]:
    """A run of pgfed that has not begun, and what must come out after each of its rounds."""
    reference, twin = MODELS[model]
    data = federation(problem(CLIENTS, features=FEATURES, classes=CLASSES))
    run = Run(
        algorithm(s),
        data,
        Serial(data, twin),
        seed=SEED,
        rounds=ROUNDS,
        cohort=COHORT,
        lose=lambda t, i: (t, i) in lost,
    )
    shards = [data.train(i) for i in range(CLIENTS)]
    outcomes = derive(
        reference,
        [(shard.x.double().numpy(), shard.y.numpy()) for shard in shards],
        run.task.initial().double().numpy(),
        cohorts(SEED, ROUNDS, CLIENTS, COHORT),
        s,
        lost,
    )
    return run, list(outcomes)


def close(found: torch.Tensor | Array, expected: Array) -> None:
    gap = np.abs(np.asarray(found, dtype=np.float64) - expected).max()
    assert gap < TOLERANCE, gap


def compare(run: Run, expected: Outcome) -> None:
    close(run.server["w"], expected.theta)
    alpha = run.alpha()
    assert alpha is not None
    close(alpha["alpha"], expected.A)
    for i in range(CLIENTS):
        close(run.personal_model(i), expected.own[i])
        state = run.state(i)
        row = dict(zip(state["alpha_ids"].tolist(), state["alpha"].tolist(), strict=True))
        close(np.array([row.get(j, 1 / COHORT) for j in range(CLIENTS)]), expected.A[i])
        assert ("v" in state) == (i in expected.velocity)
        if "v" in state:
            close(state["v"], expected.velocity[i])
        assert ("aux" in state) == (i in expected.g_tilde)
        if "aux" in state:
            close(state["aux"], expected.g_tilde[i])


PLAIN = Symbols()
VARIANTS = {
    "pgfed": PLAIN,
    "pgfed-no-clamp": replace(PLAIN, clamp=False),
    "pgfed-post": replace(PLAIN, alpha_first=False),
    "pgfed-post-no-clamp": replace(PLAIN, alpha_first=False, clamp=False),
    "pgfed-reset": replace(PLAIN, forget_momentum=True),
    "pgfed-no-momentum": replace(PLAIN, rho=0.0),
    "pgfed-exact": replace(PLAIN, g2="exact"),
    "pgfed-exact-post-no-clamp": replace(PLAIN, g2="exact", alpha_first=False, clamp=False),
    "pgfed-mo": replace(PLAIN, beta=0.5),
    "pgfed-mo-0.8-post": replace(PLAIN, beta=0.8, alpha_first=False),
    "pgfed-mo-reset-no-clamp": replace(PLAIN, beta=0.2, forget_momentum=True, clamp=False),
    "pgfed-ce": replace(PLAIN, g2="own"),
    "pgfed-ce-no-clamp": replace(PLAIN, g2="own", clamp=False),
    "pgfed-ce-reset": replace(PLAIN, g2="own", forget_momentum=True),
    "pgfed-ce-mean": replace(PLAIN, g2="mean"),
    "pgfed-ce-mean-no-clamp": replace(PLAIN, g2="mean", clamp=False),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_five_rounds_equal_the_derivation(variant: str, model: str) -> None:
    run, outcomes = both(VARIANTS[variant], model)
    for outcome in outcomes:
        run.step()
        compare(run, outcome)
    close(run.global_model(), outcomes[-1].theta)
    # The example bites: clients paused, weights moved, and the clamp decided some of them.
    last = outcomes[-1]
    assert any(np.array_equal(own, run.task.initial().double().numpy()) for own in last.own)
    assert len(np.unique(last.A.round(6))) > 5
    if VARIANTS[variant].clamp:
        assert (last.A == 0).any()
    else:
        assert last.A.min() < 0


# Few clients' sizes are multiples of 4, and 12 is more than some clients have.
@pytest.mark.parametrize("batch", [4, 12])
@pytest.mark.parametrize("whole", [False, True], ids=["drop-last", "full-grad"])
@pytest.mark.parametrize("name", ["pgfed", "pgfed-mo", "pgfed-ce"])
def test_mini_batches_equal_the_derivation(name: str, whole: bool, batch: int) -> None:
    s = replace(VARIANTS[name], batch=batch, whole_gradient=whole, epochs=2, eta_1=0.03, eta_2=0.05)
    run, outcomes = both(s)
    for outcome in outcomes:
        run.step()
        compare(run, outcome)
    sizes = run.federation.n_train
    assert (sizes % batch != 0).any()
    other = both(replace(s, whole_gradient=not whole))[1][-1]
    assert np.abs(other.theta - outcomes[-1].theta).max() > 10 * TOLERANCE


# -- lost replies ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pgfed", "pgfed-exact", "pgfed-mo", "pgfed-ce", "pgfed-ce-mean"])
def test_lost_replies_equal_the_derivation(name: str) -> None:
    S = cohorts(SEED, ROUNDS, CLIENTS, COHORT)
    lost = {(2, S[1][0]), (3, S[2][1]), (3, S[2][2]), (4, S[3][0])}
    run, outcomes = both(VARIANTS[name], "two-layer", lost)
    for outcome in outcomes:
        run.step()
        compare(run, outcome)
    complete = both(VARIANTS[name], "two-layer")[1][-1]
    assert np.abs(complete.theta - outcomes[-1].theta).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["pgfed", "pgfed-mo", "pgfed-ce"])
def test_a_lost_reply_leaves_the_client_and_its_row_as_they_were(name: str) -> None:
    S = cohorts(SEED, ROUNDS, CLIENTS, COHORT)
    victim = next(i for i in S[3] if any(i in earlier for earlier in S[:3]))
    run, _ = both(VARIANTS[name], lost={(4, victim)})
    for _ in range(3):
        run.step()
    before, alpha = run.state(victim), run.alpha()
    assert alpha is not None
    record = run.step()
    assert [d["client"] for d in record["dropped"]] == [victim]
    after, new = run.state(victim), run.alpha()
    assert new is not None
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[key])), key
    assert np.array_equal(new["alpha"][victim], alpha["alpha"][victim])
    assert np.array_equal(new["meetings"][victim], alpha["meetings"][victim])
    assert run.server["ids"].tolist() == [i for i in S[3] if i != victim]
    others = [i for i in S[3] if i != victim]
    assert not np.array_equal(new["alpha"][others], alpha["alpha"][others])


@pytest.mark.parametrize("name", ["pgfed", "pgfed-mo", "pgfed-ce"])
def test_after_a_silent_round_the_next_runs_as_the_first(name: str) -> None:
    S = cohorts(SEED, ROUNDS, CLIENTS, COHORT)
    run, outcomes = both(VARIANTS[name], "two-layer", {(3, i) for i in S[2]})
    records = []
    for t, outcome in enumerate(outcomes, start=1):
        before = run.server
        records.append(run.step())
        compare(run, outcome)
        if t == 3:
            assert torch.equal(run.server["w"], before["w"])
            assert torch.equal(run.server["alpha"], before["alpha"])
            assert torch.equal(run.server["meetings"], before["meetings"])
            assert len(run.server["ids"]) == len(run.server["gradients"]) == 0
            assert run.algorithm.messages(run.server, [0], ServerRng(0, 1))[0].keys() == {"w"}
    assert [len(r["dropped"]) for r in records] == [0, 0, COHORT, 0, 0]
    assert records[3]["bytes_down"] == records[0]["bytes_down"] < records[4]["bytes_down"]
    assert records[2]["bytes_up"] == 0


def test_nobody_ever_answers() -> None:
    run, _ = both(PLAIN, lost={(t, i) for t in range(1, ROUNDS + 1) for i in range(CLIENTS)})
    for _ in range(ROUNDS):
        run.step()
    assert torch.equal(run.server["w"], run.task.initial())
    assert not any(run.touched(i) for i in range(CLIENTS))
    assert torch.equal(run.personal_model(0), run.task.initial())


def test_the_oracle_sends_every_gradient() -> None:
    s = replace(PLAIN, g2="exact")
    runs = [both(symbols)[0] for symbols in (PLAIN, s)]
    mean, exact = [[run.step() for _ in range(2)] for run in runs]
    d = runs[0].task.d
    assert mean[0]["bytes_down"] == exact[0]["bytes_down"] == 4 * COHORT * d
    assert mean[1]["bytes_by_key"]["down"]["mean_gradient"] == 4 * COHORT * d
    assert exact[1]["bytes_by_key"]["down"]["gradients"] == 4 * COHORT * COHORT * d
    assert mean[1]["bytes_up"] == exact[1]["bytes_up"]
