"""Two percent of a class: accuracy must not be taken for learning."""

from __future__ import annotations

import numpy as np

import small_runs
from pgfed.results.comparison import group
from pgfed.results.verdict import Verdict, judge


def said(kind: str, rounds: int = 3, **options: object) -> Verdict:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 4)).astype(np.float32)
    rare = np.argsort(-x[:, 0] - 0.5 * rng.normal(size=len(x)))[:24]
    y = np.full(len(x), "fine")
    y[rare] = "fraud"
    client = np.array(["a", "b", "c"])[np.arange(len(x)) % 3]
    methods = ["local", "fedavg", "pgfed"]
    result = small_runs.run(
        (x, y, client), methods=methods, rounds=rounds, kind=kind, backend="serial", **options
    )
    (found,) = group([result.data])
    for run in result.runs:
        majority = run.metrics["majority"]
        assert ((majority > 0.95) & (majority < 1)).all()
    return judge(found)


def test_all_models_say_no_and_no_verdict_is_given_on_accuracy() -> None:
    verdict = said("classes", lr=0.001, epochs=1)
    assert verdict.headline.startswith("Nothing was learned that accuracy can see")
    assert "task.metric" in verdict.sentences[0]
    assert not any("gained" in line for line in verdict.lines)


def test_judged_by_another_number_there_is_one() -> None:
    verdict = said("binary", rounds=8, lr=0.01, epochs=1)
    assert "AUC" in " ".join(verdict.lines)
    assert "Nothing was learned" not in verdict.headline


def test_weights_let_models_say_yes() -> None:
    verdict = said("classes", class_weights="balanced", lr=0.05, epochs=5)
    assert "Nothing was learned" not in verdict.headline
