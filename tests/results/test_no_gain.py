"""From training to the statement: where nothing is to be gained, and where much is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import pgfed
from pgfed.results.comparison import Group, group
from pgfed.results.runs import RunData, SeedRun
from pgfed.results.verdict import judge

SEEDS = range(4)
ROUNDS = 6
METHODS = ("local", "fedavg-local")


@pytest.fixture(scope="module")
def data() -> RunData:
    return pgfed.run(
        {"dataset": "digits", "clients": 20},
        methods=METHODS,
        cohort=0.5,
        rounds=ROUNDS,
        seeds=SEEDS,
        train={"epochs": 1, "lr": 0.05},
        engine={"backend": "serial"},
        output={"models": "none"},
    ).data


def against(data: RunData, method: SeedRun, alone: SeedRun) -> Group:
    """One run's models as a method's, another's as what its clients have alone."""
    first, second = (data.methods[name] for name in ("fedavg-local", "local"))
    runs = {
        "fedavg-local": {0: replace(method, method="fedavg-local", seed=0)},
        "local": {0: replace(alone, method="local", seed=0)},
    }
    infos = {"fedavg-local": first, "local": second}
    (found,) = group([replace(data, methods=infos, runs=runs)])
    return found


def test_one_method_under_two_seeds_is_not_called_a_gain(data: RunData) -> None:
    """Twelve ordered pairs of seeds, twenty clients each, for both methods."""
    called = clients = 0
    for name in METHODS:
        for a, b in itertools.permutations(SEEDS, 2):
            found = against(data, data.runs[name][a], data.runs[name][b])
            gain = found.gain(next(m for m in found.methods if m.name == "fedavg-local"))
            assert gain is not None
            called, clients = called + (gain.gained or 0), clients + gain.clients
    print(f"\nno true gain: {called} of {clients} clients called clearly gained")
    assert clients == 2 * 12 * 20
    assert called < 0.05 * clients


def test_a_known_gain_is_seen(data: RunData) -> None:
    """Against models that always name class 0: what is missed is for want of samples."""
    run = data.runs["fedavg-local"][0]
    assert run.evidence is not None
    assert run.evidence.target is not None
    wrong = replace(run.evidence, outcome=(run.evidence.target == 0).astype("float32"))
    scores = {**run.scores, "kept": wrong.scores()}
    found = against(data, run, replace(run, evidence=wrong, scores=scores))
    gain = found.gain(next(m for m in found.methods if m.name == "fedavg-local"))
    assert gain is not None
    assert gain.gained is not None
    print(f"\nknown gain of {100 * gain.mean:.0f} points: {gain.gained} of {gain.clients} called")
    assert gain.gained >= gain.clients / 2
    assert judge(found).outcome in ("helped", "cannot-be-told")
