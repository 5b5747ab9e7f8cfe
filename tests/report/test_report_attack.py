"""Attack and defence: who attacked, what it cost the honest clients, and what a defence saved."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import small_runs
from pgfed.engine.exchange.attacks import Attack
from pgfed.report.pages.page import render
from pgfed.report.tables.federation import attack
from pgfed.report.tables.results import results
from pgfed.report.text import markdown_report
from pgfed.results.comparison import Group, group
from pgfed.results.folder.reader import load

RUNS = {
    "calm": {},
    "attacked": {"attack": "sign-flip"},
    "defended": {"attack": "sign-flip", "aggregation": "krum", "attackers": 0.3},
}
ATTACKERS = {seed: Attack("sign-flip", 0.2).attackers(seed, 8) for seed in (0, 1)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same clients left alone, attacked, and attacked but defended."""
    place = tmp_path_factory.mktemp("attack")
    for name, options in RUNS.items():
        small_runs.run(
            "digits",
            clients=8,
            min_samples=20,
            methods=["local", "fedavg"],
            seeds=[0, 1],
            rounds=4,
            cohort=1.0,
            epochs=1,
            backend="serial",
            models="none",
            out=place / name,
            **options,
        )
    return {name: place / name for name in RUNS}


@pytest.fixture(scope="module")
def attacked(folders: dict[str, Path]) -> Group:
    (found,) = group([load(path) for path in folders.values()])
    return found


def rows_of(folder: Path, method: str, seed: int) -> list[dict[str, str]]:
    with (folder / method / f"seed-{seed}" / "clients.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_attackers_are_named_and_means_are_over_the_others(folders: dict[str, Path]) -> None:
    summaries = json.loads((folders["attacked"] / "summary.json").read_text())
    for summary in summaries:
        found = ATTACKERS[summary["seed"]]
        assert summary["attackers"] == [str(i) for i in sorted(found)]
        rows = rows_of(folders["attacked"], summary["method"], summary["seed"])
        assert {i for i, row in enumerate(rows) if row["attacker"] == "yes"} == found
        assert {row["attacker"] for row in rows} == {"yes", "no"}
        honest = [row for i, row in enumerate(rows) if i not in found]
        mean = np.mean([float(row["mean"]) for row in honest])
        assert summary["mean_score"] == pytest.approx(mean)
        gains = np.array([float(row["gain"]) for row in honest])
        assert summary["gain_mean"] == pytest.approx(gains.mean())
        assert summary["clients_harmed"] == [row["clearly"] for row in honest].count("lost")


def test_without_an_attack_nothing_is_said_of_attackers(folders: dict[str, Path]) -> None:
    assert "attackers" not in json.loads((folders["calm"] / "summary.json").read_text())[0]
    assert "attacker" not in rows_of(folders["calm"], "fedavg", 0)[0]
    (alone,) = group([load(folders["calm"])])
    assert not attack(alone)
    assert "Attack and defence" not in render([alone])


def test_who_is_left_out_by_krum_is_on_record(folders: dict[str, Path]) -> None:
    def left_out(run: str) -> list[list[int]]:
        path = folders[run] / "fedavg" / "seed-0" / "history.jsonl"
        lines = path.read_text().splitlines()
        return [[int(name) for name in json.loads(line)["left_out"]] for line in lines]

    assert left_out("attacked") == [[]] * 4
    for clients in left_out("defended"):
        assert len(clients) == 2  # 8 replies are enough to leave out two
        assert ATTACKERS[0] <= set(clients)


def test_a_finished_run_remembers_its_attackers(folders: dict[str, Path]) -> None:
    from pgfed.config.experiment import of_run
    from pgfed.engine.setup import prepare
    from pgfed.results.folder.writer import RunWriter

    setup = prepare(of_run(folders["attacked"]), Path())
    with RunWriter(folders["attacked"], setup, resume=True) as kept:
        assert kept.finished("fedavg", 1) is not None
    assert kept.runs["fedavg", 1].attackers == ATTACKERS[1]


def test_the_table(attacked: Group, folders: dict[str, Path]) -> None:
    found = {(row["run"].text, row["method"].text): row for row in attack(attacked).records()}
    assert len(found) == 6
    calm, bare, krum = (found[run, "fedavg"] for run in RUNS)
    assert [r["attack"].text for r in (calm, bare)] == ["none", "sign-flip x10 by 20 %"]
    assert [r["defence"].text for r in (calm, bare, krum)] == ["mean", "mean", "krum"]
    for run, row in (("attacked", bare), ("defended", krum)):
        means, against = [], []
        for seed, attackers in ATTACKERS.items():
            honest = [i for i in range(8) if i not in attackers]
            own = np.array([float(r["final"]) for r in rows_of(folders[run], "fedavg", seed)])
            other = np.array([float(r["final"]) for r in rows_of(folders["calm"], "fedavg", seed)])
            means.append(own[honest].mean())
            against.append((own - other)[honest].mean())
        assert row["honest"].value == pytest.approx(np.mean(means))
        assert row["against"].value == pytest.approx(np.mean(against))
    assert calm["against"].text == "–"
    assert bare["left_out"].text == "0"
    assert (
        krum["left_out"].text == f"16, {4 * sum(map(len, ATTACKERS.values()))} of them attackers'"
    )
    assert float(krum["honest"].value or 0) > float(bare["honest"].value or 0) + 0.1


def test_the_rest_of_the_page_is_about_the_honest(attacked: Group) -> None:
    labels = {method.label for method in attacked.methods}
    assert {"fedavg [1]", "fedavg [2]", "fedavg [3]"} < labels
    assert len(labels) == 6
    method = next(m for m in attacked.methods if m.settings["attack"] != "none")
    assert np.isnan(method.runs[0].last[sorted(ATTACKERS[0])]).all()
    assert "Attackers are left out" in results(attacked).caption
    assert "## Attack and defence" in markdown_report([attacked])
    page = render([attacked])
    assert '<section id="attack">' in page
    assert "Attack and defence</h2>" in page
