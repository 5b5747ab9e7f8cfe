"""[engine] availability: some of the clients that are drawn do not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_runs
from cli.cli_tools import blobs
from pgfed.engine.runs import _absences
from pgfed.methods.randomness import answers
from pgfed.methods.registry import METHODS, get
from pgfed.testing import CLIENTS, make, started, trivial_federation

SMALL: dict[str, Any] = {
    "clients": 6,
    "min_samples": 8,
    "cohort": 1.0,
    "rounds": 4,
    "epochs": 1,
    "backend": "serial",
    "availability": 0.5,
}


def test_the_share_that_answers_is_the_one_asked_for() -> None:
    there = [answers(0, t, i, 0.8) for t in range(400) for i in range(10)]
    # 3,200 of 4,000 on average, with a standard deviation of 25.3
    assert abs(sum(there) - 3200) < 5 * 25.3
    assert all(answers(0, t, i, 1.0) for t in range(50) for i in range(10))


def test_who_answers_at_less_answers_at_more() -> None:
    """One lot per client and round: a study over availabilities compares the same clients."""
    for t in range(30):
        some = {i for i in range(20) if answers(7, t, i, 0.5)}
        more = {i for i in range(20) if answers(7, t, i, 0.9)}
        assert some <= more


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on_without_those_who_are_away(method: str) -> None:
    gone = _absences(trivial_federation(), 3, 0.6)
    with started(make(get(method), {}), rounds=5, away=gone) as run:
        away = 0
        while not run.finished:
            record = run.step()
            absent = [i for i in record["cohort"] if gone(record["round"], i)]
            assert record["dropped"] == [{"client": i, "reason": "no reply"} for i in absent]
            assert sorted(record["client_seconds"]) == [
                i for i in record["cohort"] if i not in absent
            ]
            away += len(absent)
        assert away
        assert np.isfinite(np.delete(run.score, 3)).all()
        assert len(run.score) == CLIENTS


def test_an_experiment_has_it_for_all_methods_alike(tmp_path: Path) -> None:
    data = blobs(160)
    methods = ["local", "fedavg", "scaffold"]
    small_runs.run((data["x"], data["y"]), methods=methods, out=tmp_path, **SMALL)
    lost = [
        [sorted(drop["client"] for drop in json.loads(line)["dropped"]) for line in lines]
        for lines in (
            (tmp_path / method / "seed-0/history.jsonl").read_text().splitlines()
            for method in methods
        )
    ]
    assert lost[0] == lost[1] == lost[2]
    assert any(lost[0])
