"""[server] optimizer: FedAvgM and FedAdam against their papers' formulae in float64."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.setup import float64, make_run, normed_network
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    COHORT,
    LOST,
    NET,
    PROBLEM,
    ROUNDS,
    SEED,
    TRAIN,
    assert_close,
    average,
    descend,
    minibatches,
)
from pgfed.config.experiment import from_dict, make_methods
from pgfed.engine.backends.process import Process
from pgfed.engine.rounds import Run
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.store import ClientStore
from pgfed.errors import NOTES
from pgfed.methods.averaging import ServerOptimizer
from pgfed.methods.contract import Algorithm
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.feddyn import FedDyn
from pgfed.methods.fedper import FedPer
from pgfed.methods.registry import METHODS, get
from pgfed.testing import check_equal, make, outcome, small_model, started, trivial_federation

MOMENTUM = ServerOptimizer("momentum", 1.0)
ADAM = ServerOptimizer("adam", 0.05)


def run_of(algorithm: Algorithm, optimizer: ServerOptimizer | None, **options: Any) -> Run:
    run = make_run(algorithm, PROBLEM, cohort=COHORT, rounds=ROUNDS, seed=SEED, **options)
    return Run(
        algorithm,
        run.federation,
        run.backend,
        seed=SEED,
        rounds=ROUNDS,
        cohort=COHORT,
        optimizer=optimizer,
        lose=lambda t, i: (t, i) == LOST,
    )


def follow(optimizer: ServerOptimizer, w: Array, mean: Array, m: Array, v: Array) -> list[Array]:
    """(w, m, v) after a round."""
    towards = mean - w
    if optimizer.kind == "momentum":
        m = optimizer.beta * m + towards
        return [w + optimizer.lr * m, m, v]
    m = optimizer.beta * m + (1 - optimizer.beta) * towards
    v = optimizer.beta_2 * v + (1 - optimizer.beta_2) * towards**2
    return [w + optimizer.lr * m / (np.sqrt(v) + optimizer.tau), m, v]


@pytest.mark.parametrize("optimizer", [MOMENTUM, ServerOptimizer("momentum", 0.5, 0.6), ADAM])
def test_fedavg(optimizer: ServerOptimizer) -> None:
    run = run_of(FedAvg(train=TRAIN), optimizer)
    w = float64(run.task.initial())
    m, v = np.zeros(NET.d), np.full(NET.d, optimizer.tau**2)
    speed: dict[int, Array | None] = {}
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        models = {}
        for i in answered:
            models[i], speed[i] = descend(w, speed.get(i), minibatches(run, t, i))
        w, m, v = follow(optimizer, w, average(models), m, v)
        assert_close(run.server["w"], w)
        assert_close(run.personal_model(0), w)


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM])
def test_of_a_shared_body_the_body_follows_and_heads_stay(optimizer: ServerOptimizer) -> None:
    run = run_of(FedPer(train=TRAIN), optimizer)
    w0 = float64(run.task.initial())
    body, heads = w0[: NET.b], dict.fromkeys(range(CLIENTS), w0[NET.b :])
    m, v = np.zeros(NET.b), np.full(NET.b, optimizer.tau**2)
    speed: dict[int, Array | None] = {}
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        bodies = {}
        for i in answered:
            w, speed[i] = descend(np.append(body, heads[i]), speed.get(i), minibatches(run, t, i))
            bodies[i], heads[i] = w[: NET.b], w[NET.b :]
        body, m, v = follow(optimizer, body, average(bodies), m, v)
        assert_close(run.server["w"], body)


def test_plain_steps_of_momentum_are_the_mean_itself() -> None:
    found, plain = (
        run_of(FedAvg(train=TRAIN), o) for o in (ServerOptimizer("momentum", 1.0, 0.0), None)
    )
    for _ in range(ROUNDS):
        found.step()
        plain.step()
        torch.testing.assert_close(found.server["w"], plain.server["w"], rtol=0, atol=1e-6)


def test_statistics_of_batch_norm_are_averaged_as_ever() -> None:
    found, plain = (run_of(FedAvg(train=TRAIN), o, model=normed_network) for o in (ADAM, None))
    found.step()
    plain.step()
    d = found.task.d
    assert found.task.layout.extra
    assert torch.equal(found.server["w"][d:], plain.server["w"][d:])
    assert not torch.equal(found.server["w"][:d], plain.server["w"][:d])


def test_a_round_without_answers_moves_nothing() -> None:
    run = run_of(FedAvg(train=TRAIN), MOMENTUM)
    run.step()
    before = run.server
    run._lose = lambda t, i: True
    run.step()
    check_equal(before, run.server, "nobody answered")


def test_methods_with_a_server_step_of_their_own_go_without() -> None:
    run = run_of(FedDyn(train=TRAIN), ADAM)
    assert "server_m" not in run.server


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_it_or_goes_without(method: str) -> None:
    with started(make(get(method), {}), rounds=2, optimizer=ADAM) as run:
        while not run.finished:
            assert run.step()["dropped"] == []
        assert ("server_m" in run.server) == get(method).averages
        assert torch.isfinite(run.global_model()).all()


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=lambda o: o.kind)
def test_processes_and_resumed_runs_give_the_same_bits(optimizer: ServerOptimizer) -> None:
    with started(make(FedAvg, {}), optimizer=optimizer) as run:
        expected = outcome(run)
    pool = Process(trivial_federation(), small_model, workers=2)
    with started(make(FedAvg, {}), pool, optimizer=optimizer) as run:
        check_equal(expected, outcome(run), "serial and process")
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints(Path(folder))
        store = ClientStore(saved.clients)
        with started(make(FedAvg, {}), store=store, optimizer=optimizer) as run:
            for _ in range(2):
                run.step()
                saved.save(run)
            saved.wait()
            history = run.history
        store = ClientStore(saved.clients)
        with started(make(FedAvg, {}), store=store, optimizer=optimizer) as run:
            assert saved.restore(run, history)
            check_equal(expected, outcome(run), "resumed")


def test_who_goes_without_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    table = {"methods": ["local", "fedavg", "feddyn", "ifca"], "server": {"optimizer": "adam"}}
    with caplog.at_level("WARNING", NOTES.name):
        make_methods(from_dict(table))
    assert "server.optimizer = 'adam' is not for feddyn, ifca: there the server's" in caplog.text
