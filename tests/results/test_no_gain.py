"""From training to the statement: where nothing is to be gained, and where much is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import pgfed
from pgfed.results.comparison import Group, group
from pgfed.results.folder.evidence import whole
from pgfed.results.folder.reader import load
from pgfed.results.gains.clients import Gain
from pgfed.results.runs import RunData, SeedRun
from pgfed.results.verdict import judge

SEEDS = range(4)
ROUNDS = 6
METHODS = ("local", "fedavg-local")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """As the report reads it: trained, scored, written and read again."""
    folder = tmp_path_factory.mktemp("no-gain") / "run"
    pgfed.run(
        {"dataset": "digits", "clients": 20},
        methods=METHODS,
        cohort=0.5,
        rounds=ROUNDS,
        seeds=SEEDS,
        train={"epochs": 1, "lr": 0.05},
        engine={"backend": "serial"},
        output={"models": "none"},
        out=folder,
    )
    return load(folder)


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


def gain_in(found: Group) -> Gain:
    gain = found.gain(next(m for m in found.methods if m.name == "fedavg-local"))
    assert gain is not None
    return gain


def test_one_method_under_two_seeds_is_not_called_a_gain(data: RunData) -> None:
    """Twelve ordered pairs of seeds, twenty clients each, for both methods."""
    called = by_sign = clients = 0
    for name in METHODS:
        for a, b in itertools.permutations(SEEDS, 2):
            gain = gain_in(against(data, data.runs[name][a], data.runs[name][b]))
            assert gain.gained is not None
            called, clients = called + gain.gained, clients + gain.clients
            by_sign += int((gain.per_client > 0).sum())
    print(f"\nno true gain: {called} of {clients} clients called clearly gained, {by_sign} by sign")
    assert clients == 2 * 12 * 20
    assert called < 0.05 * clients
    assert by_sign > 0.25 * clients  # there is chance enough to be misled by


def weakened(run: SeedRun, points: int) -> SeedRun:
    """The same models, but for so many points of every client's test samples wrong by lot."""
    assert run.evidence is not None
    evidence = whole(run.evidence)
    lot = np.random.default_rng(points).random(len(evidence.outcome))
    share = np.repeat(evidence.scores(), np.diff(evidence.offsets))
    wrong = (lot < points / 100 / np.maximum(share, 1e-9)).astype("float32")
    worse = replace(evidence, outcome=evidence.outcome * (1 - wrong), outputs=None, target=None)
    return replace(run, evidence=worse, scores={**run.scores, "kept": worse.scores()})


def test_a_known_gain_is_seen_the_more_surely_the_larger_it_is(data: RunData) -> None:
    """Power: of twenty clients under four seeds, by how many points they truly gain."""
    called = {}
    for points in (0, 10, 20, 40):
        found = [
            gain_in(against(data, run, weakened(run, points)))
            for run in data.runs["fedavg-local"].values()
        ]
        assert [gain.lost for gain in found] == [0] * len(SEEDS)
        called[points] = sum(gain.gained or 0 for gain in found)
    print(f"\nknown gain: of {20 * len(SEEDS)} clients are called clearly gained {called}")
    assert called[0] == 0
    assert called[0] < called[20] < called[40]
    assert called[40] > 0.7 * 20 * len(SEEDS)


def test_the_verdict_says_that_a_known_gain_helped(data: RunData) -> None:
    run = data.runs["fedavg-local"][0]
    found = judge(against(data, run, weakened(run, 40)))
    assert found.outcome == "helped"
    assert found.gained is not None
    assert found.gained > 10
