"""The table and the sentence at the end of a run."""

from __future__ import annotations

import numpy as np
import pytest

from pgfed.engine.runs import Outcome
from pgfed.results import sentence as verdict
from pgfed.results.formats import count, duration, percent, points, size


def outcome(
    method: str,
    last10: list[float],
    alone: list[float] | None,
    seed: int = 0,
    refused: int = 0,
    diverged: int = 0,
) -> Outcome:
    scores = np.array(last10)
    mean = None if np.isnan(scores).all() else float(np.nanmean(scores))
    record = {"round": 1, "mean_score": mean, "samples": 90, "train_seconds": 0.5}
    record |= {"bytes_down": 1000, "bytes_up": 500, "seconds": 1.0, "cohort": [0, 1]}
    record["dropped"] = [{"client": i, "reason": "w: holds NaN"} for i in range(refused)]
    if diverged:
        record["diverged"] = diverged
    return Outcome(
        method=method,
        seed=seed,
        history=[record],
        n_clients=len(last10),
        best=scores,
        final=scores,
        last10=scores,
        best_score=mean,
        best_round=1,
        alpha=None,
        gain=None if alone is None else scores - np.array(alone),
    )


LOCAL = [0.5, 0.5, 0.75, 0.5]
BETTER = [0.75, 0.5, 0.5, 1.0]
SURELY = [0.6, 0.6, 0.75, 0.65]
LOCAL0 = [*LOCAL, float("nan")]


def test_rows_are_means_over_the_seeds() -> None:
    rows = verdict.rows(
        [
            outcome("local", LOCAL, LOCAL),
            outcome("pgfed", BETTER, LOCAL),
            outcome("pgfed", LOCAL, LOCAL, seed=1),
        ]
    )
    assert [row["method"] for row in rows] == ["local", "pgfed"]
    assert rows[0]["gain over Local"] == ""
    assert rows[1] == {
        "method": "pgfed",
        "last 10 rounds": "62.5 %",
        "best (on test)": "62.5 %",
        "gain over Local": "+6.2",
        "clients gained": "2",
        "clients harmed": "1",
        "sent": "1.5 kB",
        "images/s": "180",
    }


def test_the_sentence_counts_clients_by_their_mean_over_the_seeds() -> None:
    said = verdict.sentence(
        [
            outcome("local", LOCAL, LOCAL),
            outcome("local", LOCAL, LOCAL, seed=1),
            outcome("pgfed", BETTER, LOCAL),
            outcome("pgfed", [0.5, 0.75, 0.5, 0.25], LOCAL, seed=1),
        ]
    )
    assert "with pgfed 3 of 4 clients do better than alone, 1 worse" in said


def test_federating_helped() -> None:
    said = verdict.sentence([outcome("local", LOCAL, LOCAL), outcome("pgfed", SURELY, LOCAL)])
    assert said == (
        "Federating helped: with pgfed 3 of 4 clients do better than alone, 0 worse; "
        "on average 56.2 % becomes 65.0 %."
    )


def test_what_may_be_chance_is_not_called_help() -> None:
    said = verdict.sentence([outcome("local", LOCAL, LOCAL), outcome("pgfed", BETTER, LOCAL)])
    assert said.startswith(
        "Federating made no clear difference: with pgfed 2 of 4 clients do better than alone, "
        "1 worse; on average 56.2 % becomes 68.8 % (95 % interval -"
    )


def test_who_helps_surely_comes_before_who_may_help_more() -> None:
    runs = [outcome("local", LOCAL, LOCAL), outcome("apfl", BETTER, LOCAL)]
    said = verdict.sentence([*runs, outcome("fedrod", SURELY, LOCAL)])
    assert said.startswith("Federating helped: with fedrod 3 of 4 clients")


def test_clients_without_test_data_are_not_counted() -> None:
    nan = float("nan")
    said = verdict.sentence(
        [outcome("local", LOCAL0, LOCAL0), outcome("pgfed", [*SURELY, nan], LOCAL0)]
    )
    assert "with pgfed 3 of 4 clients" in said


def test_one_client_has_nobody_to_federate_with() -> None:
    said = verdict.sentence([outcome("local", [0.5], [0.5]), outcome("pgfed", [0.75], [0.5])])
    assert said == "There is one client only, so there is nothing to federate."


def test_methods_that_failed_are_named_and_not_judged() -> None:
    local = outcome("local", LOCAL, LOCAL)
    failed = outcome("pgfed", [0.9] * 4, LOCAL, refused=2)
    runs = [local, failed, outcome("fedavg", SURELY, LOCAL, refused=1)]
    assert verdict.troubles(runs) == [
        "pgfed: 2 of 2 replies did not count (w: holds NaN); lower train.lr.",
        "fedavg: 1 of 2 replies did not count (w: holds NaN); lower train.lr.",
    ]
    assert verdict.sentence(runs).startswith("Federating helped: with fedavg")
    assert verdict.sentence([local, failed]).startswith("Clients that train alone reach")
    once = [outcome("pgfed", SURELY, LOCAL), outcome("pgfed", SURELY, LOCAL, seed=1, refused=2)]
    both = [local, outcome("local", LOCAL, LOCAL, seed=1)]
    assert verdict.sentence([*both, *once]).startswith("Clients that train alone reach")
    alone = outcome("local", LOCAL, LOCAL, diverged=3)
    assert verdict.troubles([alone]) == [
        "local: training diverged to NaN for 3 clients; lower train.lr."
    ]
    said = verdict.sentence([alone, outcome("fedavg", SURELY, LOCAL)])
    assert said.startswith("Training failed (see above)")
    assert verdict.troubles([local]) == []


def test_pgfed_is_held_against_its_control() -> None:
    runs = [outcome("local", LOCAL, LOCAL), outcome("pgfed", BETTER, LOCAL)]
    said = verdict.sentence([*runs, outcome("fedavg-local", BETTER, LOCAL)])
    assert said.endswith("PGFed's own objective adds +0.0 points to its control fedavg-local.")


def test_federating_did_not_help() -> None:
    worse = [value - 0.25 for value in LOCAL]
    said = verdict.sentence([outcome("local", LOCAL, LOCAL), outcome("pgfed", worse, LOCAL)])
    assert said == "Federating did not help here: no method beats Local's 56.2 %."


def test_nothing_to_compare_with() -> None:
    assert "nothing to compare" in verdict.sentence([outcome("local", LOCAL, LOCAL)])
    assert "add 'local'" in verdict.sentence([outcome("pgfed", LOCAL, None)])
    unknown = [float("nan")] * 2
    assert "No client has test data" in verdict.sentence([outcome("local", unknown, unknown)])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (percent(0.12345), "12.3 %"),
        (percent(None), "–"),
        (points(-0.02), "-2.0"),
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
