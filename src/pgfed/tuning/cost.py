"""What a run would take: a few real rounds on a few samples, and arithmetic."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from pgfed.config.experiment import LAST
from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import worker_count
from pgfed.engine.exchange.compression import make_compression
from pgfed.engine.rounds import Run
from pgfed.engine.setup import Setup
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import draw_cohort

PROBE_CLIENTS = 8  # as many as any method asks models of at once
PROBE_BATCHES = 2  # of each client, per epoch
PROBE_ROUNDS = 3  # the first one warms up, and is the one without messages from the last
PROBE_TEST = 64  # samples
ROUNDS = 200  # beyond this many, cohorts are not counted one by one
HISTORY_LINE = 800  # bytes of one round in history.jsonl


@dataclass(frozen=True)
class Estimate:
    """Of one method, over all seeds."""

    method: str
    seconds: float
    bytes_down: float
    bytes_up: float
    state_bytes: float  # in memory, server and clients of one seed
    disk_bytes: float


def estimate(setup: Setup) -> list[Estimate]:
    """One per method."""
    probe = _probe_federation(setup)
    engine = setup.experiment.engine
    backend = Serial(
        probe,
        setup.model,
        device=engine.device,
        head=setup.experiment.model.head,
        objective=setup.objective,
    )
    return [_method(setup, backend, name, method) for name, method in setup.methods.items()]


def memory(setup: Setup, estimates: list[Estimate]) -> float:
    """Bytes: this process as it is now, the largest states, and what workers need of their own."""
    largest = max(e.state_bytes for e in estimates)
    worker = 6 * 4 * setup.layout.n + 50_000_000  # model, gradient, momentum, activations
    workers = _workers(setup) if setup.experiment.engine.backend == "process" else 0
    unit = 1 if sys.platform == "darwin" else 1024
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return here + largest + workers * worker


def _method(setup: Setup, backend: Serial, name: str, method: Algorithm) -> Estimate:
    if method.course != "rounds":
        return _once(setup, name, method)
    experiment, n = setup.experiment, len(setup.federation)
    run = Run(
        method,
        backend.federation,
        backend,
        seed=experiment.seeds[0],
        rounds=PROBE_ROUNDS,
        cohort=len(backend.federation),
        compression=make_compression(experiment.engine.compression, experiment.engine.top_k),
    )
    first, *_, last = [run.step() for _ in range(PROBE_ROUNDS)]
    per_image = last["train_seconds"] / last["samples"]
    scoring = last["seconds"] - last["train_seconds"]
    per_score = scoring / max(1, int(backend.federation.n_test.sum()))

    seeds, rounds, m = len(experiment.seeds), experiment.rounds, setup.cohort
    training = per_image * _busy_images(setup, method)
    scored = min(rounds, rounds // experiment.evaluate_every + LAST)
    everyone = bool(method.public(run.server))
    score_samples = scored * setup.federation.n_test.sum() * (1 if everyone else m / n)
    k = len(backend.federation)

    def sent(direction: str) -> float:
        return float(seeds * m / k * (first[direction] + (rounds - 1) * last[direction]))

    states = sum(_size(run.state(i)) for i in range(k)) / k * n + _size(run.server) * m / k
    run.store.close()
    kept = sum(setup.keeps_models(seed) for seed in experiment.seeds)
    models = 4 * setup.layout.n * (n + 1) + setup.layout.frozen_bytes
    return Estimate(
        method=name,
        seconds=seeds * (training + per_score * score_samples / _workers(setup)),
        bytes_down=sent("bytes_down"),
        bytes_up=sent("bytes_up"),
        state_bytes=states,
        disk_bytes=kept * models + seeds * (rounds * HISTORY_LINE + 100 * n),
    )


def _once(setup: Setup, name: str, method: Algorithm) -> Estimate:
    """Of a method that trains to the end: how long that is, nobody knows before."""
    seeds, n = len(setup.experiment.seeds), len(setup.federation)
    kept = sum(setup.keeps_models(seed) for seed in setup.experiment.seeds)
    disk = kept * (n + 1) * 4 * setup.layout.n + seeds * (HISTORY_LINE + 100 * n)
    return Estimate(name, 0.0, 0.0, 0.0, 4.0 * n * setup.layout.n, disk)


def _busy_images(setup: Setup, method: Algorithm) -> float:
    """Images of one seed that are trained one after the other: the others run at their side."""
    experiment = setup.experiment
    counted = min(experiment.rounds, ROUNDS)
    workers = _workers(setup)
    total = 0.0
    for t in range(1, counted + 1):
        keys = setup.federation.keys
        cohort = draw_cohort(
            experiment.seeds[0],
            t,
            len(setup.federation),
            setup.cohort,
            None if keys is None else list(keys),
        )
        images = [method.images(int(setup.federation.n_train[i])) for i in cohort]
        total += max(sum(images) / workers, max(images))
    return total * experiment.rounds / counted


def _workers(setup: Setup) -> int:
    engine = setup.experiment.engine
    if engine.backend == "serial":
        return 1
    return worker_count(engine.workers, engine.device, engine.workers_per_device)


def _probe_federation(setup: Setup) -> Federation:
    """A few clients with the last few of their training samples and the first of their tests."""
    federation = setup.federation
    sizes = np.argsort(-federation.n_train, kind="stable")
    bounds = federation.bounds[sizes[: min(setup.cohort, PROBE_CLIENTS)]].copy()
    batch = setup.experiment.train.batch_size or int(federation.n_train.max())
    bounds[:, 0] = np.maximum(bounds[:, 0], bounds[:, 1] - PROBE_BATCHES * batch)
    bounds[:, 3] = np.minimum(bounds[:, 3], bounds[:, 2] + PROBE_TEST)
    return replace(federation, bounds=bounds, domains=None, client_labels=None)


def _size(values: Mapping[str, Any]) -> int:
    return sum(v.numel() * v.element_size() for v in values.values() if isinstance(v, Tensor))
