"""The table and the verdict at the end of a run: the terminal says what the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgfed.cli.terminal.experiment import outcome_rows, outcomes
from pgfed.config.experiment import from_dict
from pgfed.methods import registry as algorithms
from pgfed.model.metrics import ACCURACY, METRICS
from pgfed.results.comparison import Group, group
from pgfed.results.formats import count, duration, gain, percent, score, size
from pgfed.results.history import history_of
from pgfed.results.runs import Clients, RunData, SeedRun, method_info
from pgfed.results.verdict import Verdict, judge


def outcome(
    method: str, last10: list[float], seed: int = 0, refused: int = 0, diverged: int = 0
) -> SeedRun:
    scores = np.array(last10)
    mean = None if np.isnan(scores).all() else float(np.nanmean(scores))
    record = {"round": 1, "mean_score": mean, "samples": 90, "train_seconds": 0.5}
    record |= {"bytes_down": 1000, "bytes_up": 500, "seconds": 1.0, "cohort": [0, 1]}
    record["dropped"] = [{"client": i, "reason": "w: holds NaN"} for i in range(refused)]
    if diverged:
        record["diverged"] = diverged
    each = {"best": scores, "final": scores, "mean": scores}
    return SeedRun(method, seed, history_of([record]), each)


def data(*outcomes: SeedRun) -> RunData:
    methods = list(dict.fromkeys(run.method for run in outcomes))
    seeds = sorted({run.seed for run in outcomes})
    runs: dict[str, dict[int, SeedRun]] = {method: {} for method in methods}
    for run in outcomes:
        runs[run.method][run.seed] = run
    final = outcomes[0].scores["final"]
    n_test = np.where(np.isnan(final), 0, 4)
    n = len(final)
    return RunData(
        path=Path("run"),
        experiment=from_dict({"methods": methods, "seeds": seeds, "rounds": 1, "cohort": 0.5}),
        environment={},
        clients=Clients(np.full(n, 10), n_test, [str(i) for i in range(n)], None, None, []),
        metric=ACCURACY,
        methods={m: method_info(m, algorithms.get(m), algorithms.summary(m)) for m in methods},
        runs=runs,
    )


def grouped(*outcomes: SeedRun) -> Group:
    (found,) = group([data(*outcomes)])
    return found


def verdict(*outcomes: SeedRun) -> Verdict:
    return judge(grouped(*outcomes))


LOCAL = [0.5, 0.5, 0.75, 0.5]
BETTER = [0.75, 0.5, 0.5, 1.0]
SURELY = [0.6, 0.6, 0.75, 0.65]
LOCAL0 = [*LOCAL, float("nan")]


def test_rows_are_means_over_the_seeds() -> None:
    found = grouped(
        outcome("local", LOCAL),
        outcome("local", LOCAL, seed=1),
        outcome("pgfed", BETTER),
        outcome("pgfed", LOCAL, seed=1),
    )
    rows = outcome_rows(found)
    assert [row[0] for row in rows] == ["local", "pgfed"]
    gain_over_local = 3
    assert rows[0][gain_over_local] == ""
    assert rows[1] == ["pgfed", "62.5 %", "62.5 %", "+6.2", "2", "1", "1.5 kB", "180"]


def test_clients_are_counted_by_their_mean_over_the_seeds() -> None:
    found = verdict(
        outcome("local", LOCAL),
        outcome("local", LOCAL, seed=1),
        outcome("pgfed", BETTER),
        outcome("pgfed", [0.5, 0.75, 0.5, 0.25], seed=1),
    )
    assert "3 clients gained, 1 lost, 0 unchanged" in found.sentences[0]


def test_federating_helped() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", SURELY))
    assert found.headline == "Federating helped 3 of 4 clients."
    assert found.sentences[0].startswith(
        "With pgfed, 56.2 % alone (local) becomes 65.0 %: +8.8 points"
    )


def test_what_may_be_chance_is_not_called_help() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", BETTER))
    assert found.headline == "Federating made no clear difference on average."
    assert "(95 % interval −" in found.sentences[0]


def test_who_helps_surely_comes_before_who_may_help_more() -> None:
    runs = [outcome("local", LOCAL), outcome("apfl", BETTER)]
    found = verdict(*runs, outcome("fedrod", SURELY))
    assert found.headline == "Federating helped 3 of 4 clients."
    assert found.sentences[0].startswith("With fedrod,")


def test_clients_without_test_data_are_not_counted() -> None:
    found = verdict(outcome("local", LOCAL0), outcome("pgfed", [*SURELY, float("nan")]))
    assert found.headline == "Federating helped 3 of 4 clients."
    assert "1 client without test data left out of every mean." in found.caveats


def test_one_client_has_nobody_to_federate_with() -> None:
    found = verdict(outcome("local", [0.5]), outcome("pgfed", [0.75]))
    assert found.headline == "One client: there is nothing to federate."


def test_methods_that_failed_are_named_and_not_judged() -> None:
    local = outcome("local", LOCAL)
    failed = outcome("pgfed", [0.9] * 4, refused=2)
    found = verdict(local, failed, outcome("fedavg", SURELY, refused=1))
    assert "pgfed: 2 of 2 replies did not count (w: holds NaN); lower train.lr." in found.caveats
    assert "fedavg: 1 of 2 replies did not count (w: holds NaN); lower train.lr." in found.caveats
    assert found.sentences[0].startswith("With fedavg,")
    assert verdict(local, failed).headline.startswith("Training alone (local) reaches")
    once = [outcome("pgfed", SURELY), outcome("pgfed", SURELY, seed=1, refused=2)]
    both = [local, outcome("local", LOCAL, seed=1)]
    assert verdict(*both, *once).headline.startswith("Training alone (local) reaches")
    alone = outcome("local", LOCAL, diverged=3)
    found = verdict(alone, outcome("fedavg", SURELY))
    assert found.headline.startswith("Training failed")
    assert "local: training diverged to NaN for 3 clients; lower train.lr." in found.caveats


def test_a_method_is_held_against_its_control_with_an_interval() -> None:
    runs = [outcome("local", LOCAL), outcome("pgfed", BETTER)]
    found = verdict(*runs, outcome("fedavg-local", SURELY))
    assert found.sentences[-1].startswith(
        "What pgfed's own objective adds: pgfed minus its control fedavg-local (mu = 0) is +3.8 "
        "points (95 % interval −"
    )


def test_federating_did_not_help() -> None:
    found = verdict(outcome("local", LOCAL), outcome("pgfed", [v - 0.25 for v in LOCAL]))
    assert (
        found.headline == "Federating did not help: nothing beats training alone (local, 56.2 %)."
    )


def test_nothing_to_compare_with() -> None:
    assert "nothing else was run" in verdict(outcome("local", LOCAL)).headline
    assert "add alone or local" in verdict(outcome("pgfed", LOCAL)).sentences[0]
    unknown = [float("nan")] * 2
    assert "No client has test data" in verdict(outcome("local", unknown)).headline


def test_the_terminal_says_the_whole_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [outcome("local", LOCAL), outcome("fedavg-local", SURELY), outcome("pgfed", BETTER)]
    found = data(*runs)
    outcomes(found)
    said = capsys.readouterr().out.splitlines()
    expected = judge(group([found])[0])
    assert said[1 + len(runs) : -1] == expected.lines
    assert len(expected.sentences) > 1
    assert said[-1] == "Run folder: run"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (percent(0.12345), "12.3 %"),
        (percent(None), "–"),
        (gain(-0.02, ACCURACY), "−2.0"),
        (gain(-0.0001, ACCURACY), "+0.0"),
        (gain(-0.0204, METRICS["auc"]), "−0.020"),
        (gain(-1234.5, METRICS["mae"]), "−1.23e+03"),
        (gain(None, METRICS["mae"]), "–"),
        (score(0.12345, ACCURACY), "12.3 %"),
        (score(0.12345, METRICS["auc"]), "0.123"),
        (score(-0.5, METRICS["r2"]), "−0.500"),
        (score(1234.5, METRICS["mae"]), "1,234"),
        (score(float("nan"), METRICS["mae"]), "–"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1_234_000), "1.23 MB"),
        (size(5e13), "50 TB"),
        (duration(59), "59 s"),
        (duration(61), "1 min"),
        (duration(7200), "2.0 h"),
        (duration(200_000), "2.3 days"),
        (count(1, "client"), "1 client"),
        (count(1200, "client"), "1,200 clients"),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected


def test_the_rows_are_in_the_order_that_was_asked_for() -> None:
    """As in the experiment file; the page sorts by kind."""
    asked = ["pgfed", "local", "fedavg-local"]
    found = grouped(*(outcome(method, [0.5, 0.6]) for method in asked))
    assert [row[0] for row in outcome_rows(found)] == asked
    assert [method.name for method in found.methods] != asked


def test_one_client_is_told_nothing_of_intervals() -> None:
    said = verdict(outcome("local", [0.5]), outcome("fedavg", [0.6]))
    assert said.lines == ["One client: there is nothing to federate."]
