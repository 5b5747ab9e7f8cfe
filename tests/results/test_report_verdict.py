"""The first screen in words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgfed.model.metrics import ACCURACY, METRICS
from pgfed.report.rendering import read
from pgfed.results.formats import gain, meaning, probability
from pgfed.results.statistics import Comparison
from pgfed.results.verdict import Verdict, judge
from report.folders import edit_clients, make_folder

NOTHING = {"n_test": "0", "best": "", "final": "", "mean": ""}  # of a client without test data


def verdict(folder: Path) -> Verdict:
    (group,) = read([folder])
    return judge(group)


def said(found: Verdict) -> str:
    return " ".join([found.headline, *found.sentences, *found.caveats])


def test_federating_helped(folder: Path) -> None:
    found = verdict(folder)
    assert found.headline == (
        "Federating helped: 5 of 12 clients clearly gained, none clearly lost; for 7 it cannot be "
        "told."
    )
    text = said(found)
    assert (
        "Against its control fedavg-local, the same without what it claims, pgfed itself adds"
        in text
    )
    assert "no measurable difference" in text
    assert "cannot be told apart from it here" in text


def test_federating_harmed(tmp_path: Path) -> None:
    levels = {"fedavg": -0.2, "fedper": -0.1}
    folder = make_folder(tmp_path / "a", methods=["local", "fedavg", "fedper"], levels=levels)
    found = verdict(folder)
    assert found.headline.startswith("Federating harmed: 0 of 12 clients clearly gained, ")
    assert "With fedper" in said(found)


def test_no_clear_difference(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", methods=["local", "fedper"], levels={"fedper": 0.002})
    found = verdict(folder)
    assert found.outcome == "no-clear-difference"
    assert found.headline.startswith("No clear difference: ")


def test_a_high_mean_that_is_not_sure_does_not_hide_a_sure_gain(tmp_path: Path) -> None:
    """fedavg: better on average, but it ruins a third of the clients; fedper: a little for all."""
    methods = ["local", "fedavg", "fedper"]
    folder = make_folder(tmp_path / "a", methods=methods, levels={"fedper": 0.05})
    for seed in (0, 1):
        path = folder / "fedavg" / f"seed-{seed}" / "clients.csv"
        shutil.copy(folder / "local" / f"seed-{seed}" / "clients.csv", path)

        def shift(i: int, row: dict[str, str]) -> None:
            row["final"] = str(float(row["final"]) + (-0.4 if i % 3 == 0 else 0.35))

        edit_clients(path, shift)
    found = verdict(folder)
    assert found.headline.startswith("Federating helped")
    assert found.sentences[0].startswith("With fedper")
    assert any(s.startswith("Highest, but less surely: with fedavg") for s in found.sentences)


def test_without_local_nobody_can_say_who_gained(tmp_path: Path) -> None:
    found = verdict(make_folder(tmp_path / "a", methods=["fedavg", "fedper"]))
    assert "scores highest" in found.headline
    assert "add alone or local" in said(found)


def test_without_the_control_it_is_said(tmp_path: Path) -> None:
    found = verdict(make_folder(tmp_path / "a", methods=["local", "pgfed"]))
    assert "add fedavg-local to the methods" in said(found)


def test_local_alone(tmp_path: Path) -> None:
    found = verdict(make_folder(tmp_path / "a", methods=["local"]))
    assert "nothing else was run" in found.headline


def test_who_lost_most_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", methods=["local", "fedper"], labels=list("abcdefghijkl"))
    for seed in (0, 1):

        def ruin(i: int, row: dict[str, str]) -> None:
            if row["client"] == "c":
                row["final"] = "0.01"

        edit_clients(folder / "fedper" / f"seed-{seed}" / "clients.csv", ruin)
    assert "Worst off: c (−" in said(verdict(folder))


def test_caveats(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "a",
        clients=6,
        seeds=[0],
        settings={"method": {"pgfed": {"lr": 0.01}}},
    )
    (folder / "fedavg" / "seed-0" / "clients.csv").unlink()
    for path in folder.rglob("clients.csv"):
        edit_clients(path, lambda i, row: i or row.update(NOTHING))
    caveats = verdict(folder).caveats
    assert "One seed: intervals speak about other clients, not about other seeds." in caveats
    assert "Only 6 clients: take the intervals as rough." in caveats
    assert "pgfed and its control fedavg-local also differ in lr." in caveats
    assert "1 client without test data left out of every mean." in caveats
    assert "Not finished, and left out: fedavg, seed 0 (20 rounds of 20)." in caveats


def test_nobody_has_test_data(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", clients=3, seeds=[0])
    for path in folder.rglob("clients.csv"):
        edit_clients(path, lambda i, row: row.update(NOTHING))
    assert "No client has test data" in verdict(folder).headline


@pytest.mark.parametrize(
    ("low", "mean", "high", "expected"),
    [
        (0.01, 0.02, 0.03, "better"),
        (-0.03, -0.02, -0.01, "worse"),
        (0.001, 0.002, 0.003, "better, by less than half a point"),
        (-0.01, 0.02, 0.05, "no measurable difference"),
        (0.0, 0.0, 0.0, "the same at every client"),
    ],
)
def test_what_an_interval_means(low: float, mean: float, high: float, expected: str) -> None:
    assert meaning(Comparison(mean, low, high, 0, 0, 0, 1), ACCURACY) == expected


def test_half_a_point_is_a_word_for_shares_only() -> None:
    assert meaning(Comparison(0.002, 0.001, 0.003, 0, 0, 0, 1), METRICS["r2"]) == "better"


def test_numbers_for_people() -> None:
    assert gain(0.0123, ACCURACY) == "+1.2"
    assert gain(-0.0123, ACCURACY, 2) == "−1.23"
    assert gain(-0.00001, ACCURACY) == "+0.0"
    assert gain(float("nan"), ACCURACY) == "–"
    assert [probability(p) for p in (0.0001, 0.0222, 0.52)] == [
        "p < 0.001",
        "p = 0.022",
        "p = 0.52",
    ]
