"""Three sites, each with a privacy of its own; one's budget ends in mid-run."""

from __future__ import annotations

import json

import pytest

from federation import small
from federation.local_grid import grid_of
from federation.running import Running, until
from federation.test_ledger import private
from pgfed.federation.folders.folder import FederationFolder
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site import record
from pgfed.federation.site.answers import Site
from pgfed.report.tables import privacy as tables
from pgfed.report.tables.federation import dropped
from pgfed.results.comparison import group
from pgfed.results.folder.reader import load

TABLES = {
    0: "epsilon = 8.0\ndelta = 1e-3\n",
    1: "epsilon = 3.0\ndelta = 1e-3\nclip = 0.5\n",
    2: "epsilon = 5.0\ndelta = 1e-3\nnoise_multiplier = 1.0\n",  # ends before the run does
}


def protect(folder: FederationFolder) -> None:
    for client, table in TABLES.items():
        private(small.site_path(folder.path, client), table)


def charges(folder: FederationFolder, client: int) -> list[dict]:
    path = folder.path.parent / f"data-{client}.npz.privacy" / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(folder: FederationFolder, rounds: int, *, killed: bool = False) -> None:
    """Everybody's epsilon is its own; the run went on without the third. Where a site was killed,
    what it told again, to a server that had not heard it, is on record twice."""
    plans = []
    for client in TABLES:
        (plan,) = [line for line in charges(folder, client) if line["kind"] == "plan"]
        assert plan["epsilon"] <= [8.0, 3.0, 5.0][client]
        answered = [line for line in charges(folder, client) if line["kind"] == "charge"]
        assert len(answered) == sum(times for _, _, times in plan["rounds"])
        plans.append(plan)
        left = [e for e in record.read(small.site_path(folder.path, client)) if "method" in e]
        trained = [entry for entry in left if entry["kind"] == "train"]
        assert {entry["round"] for entry in trained} == {line["round"] for line in answered}
        assert len(trained) == len(answered) or killed
        assert {entry["epsilon"] for entry in trained} == {plan["epsilon"]}
    ((_, _, most),) = plans[2]["rounds"]
    assert 1 <= most < 4, "the test needs a budget that ends in mid-run"
    records = small.history(folder, "fedavg")
    assert len(records) == rounds
    for told in records:
        lost = {d["client"]: d["reason"] for d in told["dropped"]}
        assert (2 in lost) == (told["round"] > most)
        assert "privacy budget of this run is used up" in lost.get(
            2, "used up: privacy budget of this run is used up"
        )
        assert told["mean_score"] is None, "a score has left"
    (found,) = group([load(folder.run)])
    said = [row[2].text for row in tables.spent(found).rows]
    assert [text.split(",")[0] for text in said] == ["epsilon 8", "epsilon 3", "epsilon 5"]
    # What the run has taken, and not what was taken when the sites greeted.
    for text, plan in zip(said, plans, strict=True):
        assert f"of which {plan['epsilon']:.2f} reserved" in text
    assert "used up" in str(dropped(found).rows)


def test_three_sites_with_three_budgets(tmp_path) -> None:
    folder = small.make(tmp_path, methods=["fedavg"], cohort=1.0, rounds=4)
    protect(folder)
    sites = [Site(small.site_folder(folder, i)) for i in range(small.SITES)]
    conduct(grid_of(sites), folder, Options(round_timeout=600.0))
    check(folder, rounds=4)


@pytest.mark.nightly
def test_three_processes_and_one_that_is_killed(tmp_path) -> None:
    """Killed in mid-run and started again, a site's ledger is what it was."""
    rounds = 8
    with Running(tmp_path, methods=["fedavg"], cohort=1.0, rounds=rounds) as running:
        protect(running.folder)
        running.all()
        until(running.are_here, "all sites are there")
        run = running.run("--round-timeout", "240", "--min-replies", "2")
        # From then on rounds wait for both of the others, however long one takes to come back.
        until(lambda: _refused(running, 2), "the third site refuses by itself")
        running.kill("site-1")
        assert run.poll() is None, "the run was over before a site was killed"
        before = charges(running.folder, 1)
        running.site(1)
        assert run.wait(600) == 0, running.said("run")
        after = charges(running.folder, 1)
        assert after[: len(before)] == before
        assert len(after) > len(before), "the site was not killed in mid-run"
        check(running.folder, rounds, killed=True)


def _refused(running: Running, client: int) -> bool:
    """In a round that is over."""
    history = running.folder.run / "fedavg" / "seed-0" / "history.jsonl"
    told = history.read_text().splitlines() if history.is_file() else []
    lost = [one["client"] for line in told for one in json.loads(line)["dropped"]]
    return running.folder.agreement.names[client] in lost
