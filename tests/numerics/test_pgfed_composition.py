"""PGFed under personal layers, and trained as FedRep trains: against a derivation in float64.

Only the shared part travels, is averaged and expanded; the rest of a client's model is its own and
goes on from where it was. Of pgfed nothing but the keyed order of the samples is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from numerics.reference import Array
from numerics.setup import held, make_run
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    COHORT,
    NET,
    PROBLEM,
    ROUNDS,
    SEED,
    TRAIN,
    assert_close,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.config.experiment import from_dict, make_methods
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm
from pgfed.methods.fedper import FedPer
from pgfed.methods.fedrep import FedRep
from pgfed.methods.pgfed import PGFed
from pgfed.methods.pgfed_ce import PGFedCE
from pgfed.methods.pgfed_mo import PGFedMo
from pgfed.methods.randomness import Rng
from pgfed.model.layout import Layout
from pgfed.model.task import Task
from pgfed.testing import CHECKS

PARTS = {"body": slice(0, NET.b), "head": slice(NET.b, NET.d)}
BASE, HEAD = PARTS["body"], PARTS["head"]
MU, STEP, BETA, HEAD_EPOCHS = 0.4, 0.02, 0.3, 2
METHODS: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "pgfed": (PGFed, {}),
    "pgfed-mo": (PGFedMo, {"beta": BETA}),
    "pgfed-ce": (PGFedCE, {}),
}


class Server:
    """Theta, A, and the expansions of the last round, over the shared part."""

    def __init__(self, w: Array) -> None:
        self.w = w
        self.A = np.full((CLIENTS, CLIENTS), 1 / COHORT)
        self.ids: list[int] = []
        self.g: dict[int, Array] = {}
        self.r: dict[int, float] = {}


def one_client(
    name: str,
    run: Run,
    t: int,
    i: int,
    server: Server,
    theta: Array,
    kept: dict[str, Any],
    **how: Any,
) -> tuple[Array, Array]:
    """Client i's round: its new model and its row of A. ``kept`` goes on to its next one."""
    shared, solver = PARTS[how["shared"]], how["solver"]
    ids, row = server.ids, server.A[i].copy()
    constant = np.zeros(NET.d)
    if ids:
        aux = MU * sum(server.A[i, j] * server.g[j] for j in ids)
        if name == "pgfed-mo":
            aux = aux if "aux" not in kept else (1 - BETA) * aux + BETA * kept["aux"]
            kept["aux"] = aux
        constant[shared] = aux
    mean = np.mean([server.g[j] for j in ids], axis=0) if ids else None

    def step_alphas(theta: Array) -> None:
        for j in ids:
            slope = server.g[j] @ server.w if name == "pgfed-ce" else mean @ theta[shared]
            row[j] = max(0.0, row[j] - STEP * MU * (server.r[j] + slope))

    moved = slice(0, NET.d)
    if solver == "head-then-base":
        moved = BASE
        first = minibatches(run, t, i, epochs=HEAD_EPOCHS, purpose="head")
        v_head = kept["v"][HEAD] if "v" in kept else None
        theta, v_head = descend(theta, v_head, first, part=HEAD)
    v = kept["v"].copy() if "v" in kept else np.zeros(NET.d)
    theta = theta.copy()
    for x, y in minibatches(run, t, i):
        step_alphas(theta)
        v[moved] = TRAIN.momentum * v[moved] + (NET.gradient(theta, x, y) + constant)[moved]
        theta[moved] -= TRAIN.lr * v[moved]
    if solver == "head-then-base":
        v[HEAD] = v_head
    kept["v"] = v
    return theta, row


def expansion(run: Run, t: int, i: int, theta: Array, shared: slice) -> tuple[Array, float]:
    """The gradient and r over the shared part, from the samples that whole batches cover."""
    x, y = held(run)[i]
    size = min(TRAIN.batch_size, len(y))
    order = Rng(SEED, i, t).permutation(len(y), "gradient").numpy()[: len(y) - len(y) % size]
    risk, gradient = NET.loss_gradient(theta, x[order], y[order])
    return gradient[shared], risk - float(gradient[shared] @ theta[shared])


def derive(name: str, run: Run, w0: Array, **how: Any) -> Iterator[tuple[Server, dict[int, Array]]]:
    shared = PARTS[how["shared"]]
    server, own = Server(w0[shared]), dict.fromkeys(range(CLIENTS), w0)
    kept: dict[int, dict[str, Any]] = {i: {} for i in range(CLIENTS)}
    for t, answered in enumerate(ANSWERED, 1):
        models, rows, expanded = {}, {}, {}
        for i in answered:
            theta = own[i].copy()
            theta[shared] = server.w
            models[i], rows[i] = one_client(name, run, t, i, server, theta, kept[i], **how)
            expanded[i] = expansion(run, t, i, models[i], shared)
        own = {**own, **models}
        for i, row in rows.items():
            server.A[i] = row
        server.w = average({i: w[shared] for i, w in models.items()})
        server.ids = sorted(answered)
        server.g = {i: g for i, (g, _) in expanded.items()}
        server.r = {i: r for i, (_, r) in expanded.items()}
        yield server, own


@pytest.mark.parametrize(
    ("shared", "solver"), [("body", "sgd"), ("head", "sgd"), ("body", "head-then-base")]
)
@pytest.mark.parametrize("name", METHODS)
def test_rounds_equal_the_derivation(name: str, shared: str, solver: str) -> None:
    cls, more = METHODS[name]
    fields = {"mu": MU, "alpha_lr": STEP, "shared": shared, "solver": solver, **more}
    run, w0 = start(cls(train=TRAIN, head_epochs=HEAD_EPOCHS, **fields))
    untouched = np.full((CLIENTS, CLIENTS), 1 / COHORT)
    for server, own in derive(name, run, w0, shared=shared, solver=solver):
        record = run.step()
        assert record["dropped"] == [] or len(record["dropped"]) == 1  # one reply is lost
        assert_close(run.server["w"], server.w)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), own[i])
        np.testing.assert_allclose(run.alpha()["alpha"], server.A, atol=1e-5)
    assert np.abs(server.A - untouched).max() > 1e-3, "the alphas learn"
    part = PARTS[shared]
    others = average({i: np.delete(w, np.r_[part]) for i, w in own.items()})
    expected = np.empty(NET.d)
    expected[part], expected[np.delete(np.arange(NET.d), np.r_[part])] = server.w, others
    assert_close(run.global_model(), expected)


def test_the_explicit_term_moves_the_body() -> None:
    """With and without it, so that the test above cannot pass on zeros."""
    explicit, _ = start(PGFed(train=TRAIN, mu=MU, shared="body"))
    control, _ = start(PGFed(train=TRAIN, mu=0.0, shared="body"))
    for _ in range(ROUNDS):
        explicit.step()
        control.step()
    assert (explicit.server["w"] - control.server["w"]).abs().max() > 1e-3


@pytest.mark.parametrize("cls", [PGFed, PGFedMo, PGFedCE])
def test_without_the_explicit_term_it_is_fedper_or_fedrep(cls: type[Algorithm]) -> None:
    """mu = 0: the common body and the heads are those of the method whose parts it takes."""
    fedper, _ = start(FedPer(train=TRAIN))
    fedrep, _ = start(FedRep(train=TRAIN, head_epochs=HEAD_EPOCHS))
    per, _ = start(cls(train=TRAIN, mu=0.0, shared="body"))
    fields = {"shared": "body", "solver": "head-then-base", "head_epochs": HEAD_EPOCHS}
    rep, _ = start(cls(train=TRAIN, mu=0.0, **fields))
    for ours, theirs in ((per, fedper), (rep, fedrep)):
        for _ in range(ROUNDS):
            ours.step()
            theirs.step()
            torch.testing.assert_close(ours.server["w"], theirs.server["w"], rtol=0, atol=1e-6)
        for i in range(CLIENTS):
            head = ours.state(i)["w"][NET.b :]
            torch.testing.assert_close(head, theirs.state(i)["own"], rtol=0, atol=1e-6)


def test_only_the_shared_part_travels() -> None:
    run, _ = start(PGFed(train=TRAIN, shared="body"))
    run.step()
    record = run.step()
    answered = len(ANSWERED[1])
    up, down = record["bytes_by_key"]["up"], record["bytes_by_key"]["down"]
    assert up["w"] == up["gradient"] == 4 * NET.b * answered
    assert down["w"] == down["aux"] == down["mean_gradient"] == 4 * NET.b * COHORT


def normed(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(input_shape[0], 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, classes)
    )


@pytest.mark.parametrize("shared", ["not-norm", "0.*", "body"])
def test_buffers_and_patterns(shared: str) -> None:
    """Batch norm stays at home, or travels with the body; a pattern names what travels."""
    method = PGFed(train=TRAIN, mu=MU, shared=shared)
    run = make_run(method, PROBLEM, cohort=COHORT, rounds=3, model=normed, seed=SEED)
    sizes = {"not-norm": 4 * 5 + 5 + 5 * 3 + 3, "0.*": 4 * 5 + 5, "body": 4 * 5 + 5 + 10 + 10}
    expanded = sizes[shared] - (10 if shared == "body" else 0)  # running means are no parameters
    while not run.finished:
        assert run.step()["dropped"] == []
    assert len(run.server["w"]) == sizes[shared]
    assert run.server["gradients"].shape == (COHORT, expanded)
    assert torch.isfinite(run.global_model()).all()


# -- the vector's parts ----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["all", "body", "head", "not-norm", "3.*"])
def test_parts_are_a_partition(which: str) -> None:
    layout: Layout = Task(normed((4,), 3), (4,)).layout
    theta = torch.arange(float(layout.n))
    shared, own = layout.split(which, theta)
    assert sorted([*shared.tolist(), *own.tolist()]) == theta.tolist()
    assert torch.equal(layout.join(which, shared, own), theta)
    stepped = layout.stepped(which)
    inside = [k for k in shared.tolist() if k < layout.d]
    assert stepped.take(theta[: layout.d]).tolist() == inside
    spread = layout.spread(which, torch.ones(stepped.size))
    assert spread.nonzero().flatten().tolist() == inside


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    task = Task(normed((4,), 3), (4,))
    with pytest.raises(UserError, match=r"shared: no parameter .* 'conv\*'; allowed: all, body"):
        PGFed(shared="conv*").check_model(task)


# -- as variants of an experiment ------------------------------------------------------------------


def test_a_variant_takes_the_keys_and_others_refuse_them() -> None:
    content = {
        "methods": ["pgfed", "pgfed-per"],
        "method": {"pgfed-per": {"base": "pgfed", "shared": "body", "solver": "head-then-base"}},
    }
    methods, _ = make_methods(from_dict(content))
    assert (methods["pgfed-per"].shared, methods["pgfed"].shared) == ("body", "all")
    assert (methods["pgfed-per"].twin(), methods["pgfed"].twin()) == (None, "fedavg-local")
    for key in ("shared", "solver"):
        with pytest.raises(UserError, match=rf"method\.fedavg\.{key}: unknown key"):
            make_methods(from_dict({"methods": ["fedavg"], "method": {"fedavg": {key: "body"}}}))
    content["method"]["pgfed-per"]["mu"] = -1.0
    with pytest.raises(UserError, match=r"^method\.pgfed-per\.mu: found -1"):
        make_methods(from_dict(content))


COMPOSED = {
    "per": {"shared": "body"},
    "per-turns": {"shared": "body", "solver": "head-then-base", "head_epochs": 2},
    "own-norms": {"shared": "not-norm"},
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("composed", COMPOSED)
def test_conformance(composed: str, check: str) -> None:
    CHECKS[check](PGFed, **COMPOSED[composed])


def test_reset_momentum_keeps_no_buffer() -> None:
    run, _ = start(PGFed(train=replace(TRAIN, reset_momentum=True), shared="body"))
    run.step()
    assert "v" not in run.state(ANSWERED[0][0])
