"""The rounds of a federation, site by site in this process: the same bits as one simulation."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Error, RecordDict
from safetensors.torch import load_file

from any_model import ANY_MODEL
from federation import small
from federation.local_grid import LocalGrid, grid_of
from federation.small import assert_same_as_serial, checkpoint, history, model_at
from pgfed.engine.exchange.robust import make_mean
from pgfed.errors import UserError
from pgfed.federation.flower.records import pack, unpack
from pgfed.federation.server.backend import QuorumError
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site.answers import Site
from pgfed.report import rendering as report
from pgfed.report.tables import federation as tables
from pgfed.results.folder.writer import RunWriter
from pgfed.results.runs import evidence_of

QUICK = Options(round_timeout=1.0)


@pytest.fixture(autouse=True, scope="module")
def checkpoints_stay():
    """So that the server's state can be compared after the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunWriter, "_forget", lambda self, folder: None)
        yield


def sites_of(folder):
    return [Site(small.site_folder(folder, i)) for i in range(small.SITES)]


METHODS = [name for name in ANY_MODEL if name != "local"]


@pytest.fixture(scope="module")
def every_method(tmp_path_factory):
    """A federation that has run all methods."""
    folder = small.make(tmp_path_factory.mktemp("all"), methods=METHODS)
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_as_serial(every_method, method):
    assert_same_as_serial(every_method, method)
    assert checkpoint(every_method, method) is not None


def test_local_alongside_is_local_by_itself(tmp_path: Path):
    folder = small.make(tmp_path)
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, QUICK)
    run = small.serial(folder, "local")
    told = history(folder, "local")
    assert [r["mean_score"] for r in told] == [r["mean_score"] for r in run.history]
    assert all(r["bytes_down"] == r["bytes_up"] == 0 for r in told)
    methods = {unpack(m.content)[0].get("method") for m in grid.sent}
    assert methods == {None, "pgfed"}  # greetings name no method; nothing was sent for local
    summary = {row["method"]: row for row in json.loads((folder.run / "summary.json").read_text())}
    assert summary["local"]["gain_mean"] == 0
    assert summary["pgfed"]["gain_mean"] is not None


def test_the_run_folder_is_as_in_simulation(tmp_path: Path):
    folder = small.make(tmp_path, seeds=[0, 3], methods=["fedavg", "pgfed"])
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    for seed in (0, 3):
        for method in ("fedavg", "pgfed"):
            assert_same_as_serial(folder, method, seed)
        assert (folder.run / "pgfed" / f"seed-{seed}" / "alpha.npz").is_file()
    names = {path.name for path in folder.run.iterdir()}
    assert names >= {"experiment.toml", "environment.json", "summary.json", "local", "fedavg"}
    rows = json.loads((folder.run / "summary.json").read_text())
    assert [(r["method"], r["seed"]) for r in rows] == [
        (m, s) for m in ("local", "fedavg", "pgfed") for s in (0, 3)
    ]
    facts = json.loads((folder.run / "environment.json").read_text())
    assert facts["sites"]["1"]["torch"] == torch.__version__
    models = folder.run / "pgfed" / "seed-0" / "models"
    assert sorted(path.name for path in models.glob("*.safetensors")) == ["global.safetensors"]
    record = history(folder, "pgfed")[1]
    busy = record["sites"][record["cohort"][0]]
    assert busy["bytes_up"] == 4 * (2 * 9610 + 2)  # model, gradient, and two alphas: float32
    assert 0 < busy["work_seconds"] <= busy["seconds"]


def test_a_reply_may_have_the_bytes_that_it_has(tmp_path: Path):
    """What the server allows is known before the reply; what came is counted after."""
    folder = small.make(tmp_path, cohort=1.0)
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, QUICK)
    came = {
        (r["round"], i): f["bytes_up"]
        for r in history(folder, "pgfed")
        for i, f in r["sites"].items()
    }
    allowed = {}
    for message, most in zip(grid.sent, grid.most.values(), strict=True):
        head, _ = unpack(message.content)
        if head["stage"] == "train":
            allowed[head["round"], head["client"]] = most
        else:
            assert most == 0
    assert allowed == came


def test_sites_may_let_the_server_keep_their_model(tmp_path: Path):
    folder = small.make(tmp_path)
    file = small.site_path(folder.path, 1) / "site.toml"
    file.write_text(file.read_text().replace("share_model = false", "share_model = true"))
    conduct(grid_of(sites_of(folder)), folder, Options(keep_personal_models=True))
    models = folder.run / "pgfed" / "seed-0" / "models"
    files = sorted(path.name for path in models.glob("site-*"))
    assert files == ["site-01.safetensors"]
    assert small.same(load_file(models / files[0]), model_at(folder, 1, "pgfed"))


def test_the_servers_aggregation_is_the_experiments(tmp_path: Path):
    folder = small.make(tmp_path, cohort=1.0, engine={"aggregation": "median"})
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    plain = small.serial(folder, "pgfed")
    mean = make_mean("median", plain.algorithm.leaves)
    robust = small.serial(folder, "pgfed", mean=mean)
    assert small.same(checkpoint(folder, "pgfed"), robust.server)
    assert not small.same(plain.server, robust.server)


# -- what can go wrong -------------------------------------------------------------------------


def disturbed(site: Site, stage: str, rounds: set[int], do):
    """The site, whose answers in this stage and these rounds are passed through ``do``."""

    def answer(content, node):
        head, _ = unpack(content)
        reply = site.answer(content, node)
        return (
            do(reply)
            if (head["stage"], head.get("round")) in {(stage, r) for r in rounds}
            else reply
        )

    return answer


def poisoned(reply):
    head, parts = unpack(reply)
    parts["update"]["w"][5] = float("nan")
    return pack(head, **parts)


def changed(**changes):
    def change(reply):
        head, parts = unpack(reply)
        return pack({**head, **changes}, **parts)

    return change


def without_update(reply):
    return pack(unpack(reply)[0])


FAULTS = {
    "lost": (lambda reply: None, "no reply within 1 s"),
    "NaN": (poisoned, "w: holds NaN or infinite values"),
    "old ticket": (changed(ticket="0" * 32), "ticket: found"),
    "other round": (changed(round=1), "round: found 1, asked for 2"),
    "empty": (without_update, "holds no update"),
    "site gone": (lambda reply: Error(5, "x"), "the site went away"),
    "site failed": (lambda reply: Error(8, "x"), "x (Flower's error 8)"),
    "rubbish": (lambda reply: RecordDict({"x": ConfigRecord({})}), "unexpected record"),
    "negative time": (changed(seconds=-1.0), "seconds: -1.0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_costs_its_site_the_round_and_nothing_else(tmp_path: Path, fault):
    do, said = FAULTS[fault]
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    grid = grid_of(sites)
    grid.answers[1001] = disturbed(sites[1], "train", {2}, do)
    conduct(grid, folder, QUICK)
    run = small.serial(folder, "pgfed", lose=lambda t, i: (t, i) == (2, 1))
    assert small.same(checkpoint(folder, "pgfed"), run.server)
    (dropped,) = history(folder, "pgfed")[1]["dropped"]
    assert dropped["client"] == 1
    assert said in dropped["reason"]
    status = json.loads((folder.run / "status.json").read_text())
    assert [site["missed"] for site in status["sites"]] == [0, 1, 0]
    assert any(said in message for message in status["messages"])
    alone = history(folder, "local")[1]["dropped"]
    assert [d["client"] for d in alone] == [1]
    with (folder.run / "pgfed" / "seed-0" / "sites.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["asked"], row["counted"], row["missed"]) for row in rows] == [
        ("3", "3", "0"), ("3", "2", "1"), ("3", "3", "0")
    ]  # fmt: skip
    assert said in rows[1]["last_failure"]
    (group,) = report.read([folder.run])
    (site,) = [row for row in tables.sites(group).records() if row["site"].text == "site-01"]
    assert [site[key].text for key in ("method", "asked", "counted")] == ["pgfed", "3", "2"]
    assert said in site["failures"].text


class Twice(LocalGrid):
    """Delivers every reply again and again."""

    def pull_message(self, name):
        return self.replies.get(name)


def test_a_reply_that_comes_twice_counts_once(tmp_path: Path):
    folder = small.make(tmp_path)
    grid = grid_of(sites_of(folder))
    grid.__class__ = Twice
    conduct(grid, folder, QUICK)
    assert_same_as_serial(folder, "pgfed")


def test_a_round_below_the_quorum_is_asked_for_again(tmp_path: Path):
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    grid = grid_of(sites)
    failures = iter([True, True])
    grid.answers[1001] = disturbed(
        sites[1], "train", {2}, lambda reply: Error(8, "x") if next(failures, False) else reply
    )
    conduct(grid, folder, Options(round_timeout=1.0, min_replies=3))
    assert_same_as_serial(folder, "pgfed")
    assert all(not record["dropped"] for record in history(folder, "pgfed"))


def test_without_a_quorum_the_run_stops_and_can_go_on(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pgfed.federation.server.backend.ATTEMPTS", 2)
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    grid = grid_of(sites)
    grid.answers[1001] = disturbed(sites[1], "train", {2}, lambda reply: Error(8, "x"))
    with pytest.raises(QuorumError, match="round 2: 2 of 3 sites replied"):
        conduct(grid, folder, Options(round_timeout=0.3, min_replies=3))
    assert json.loads((folder.run / "status.json").read_text())["state"] == "failed"
    conduct(grid_of(sites), folder, Options(resume=True, min_replies=3))
    assert_same_as_serial(folder, "pgfed")


def test_a_site_joins_while_the_run_goes_on(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pgfed.federation.server.seats.LOOK", 0.0)
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    grid = grid_of(sites[:2])

    def arrive(reply):
        grid.answers[1002] = sites[2].answer
        return reply

    grid.answers[1000] = disturbed(sites[0], "score", {1}, arrive)
    conduct(grid, folder, Options(round_timeout=0.3))
    told = history(folder, "pgfed")
    assert told[0]["dropped"] == [{"client": 2, "reason": "not connected"}]
    assert told[0]["sites"][2]["not_scored"] == "not connected"
    assert all(not record["dropped"] for record in told[1:])
    run = small.serial(folder, "pgfed", lose=lambda t, i: (t, i) == (1, 2))
    assert small.same(checkpoint(folder, "pgfed"), run.server)


# -- who is who --------------------------------------------------------------------------------


def seated(folder) -> list[str]:
    return json.loads((folder.run / "status.json").read_text())["messages"]


def test_a_node_with_another_sites_id_gets_no_seat(tmp_path: Path):
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    file = small.site_path(folder.path, 1) / "site.toml"
    file.write_text(file.read_text().replace("client = 1", "client = 0"))
    impostor = Site(small.site_folder(folder, 1))
    grid = LocalGrid({1000: sites[0].answer, 1001: impostor.answer, 1002: sites[2].answer})
    conduct(grid, folder, Options(round_timeout=0.3))
    assert any("claims to be site-00 but does not hold" in line for line in seated(folder))
    for message in grid.sent:  # it was greeted and never told anything
        if message.metadata.dst_node_id == 1001:
            assert unpack(message.content)[0]["stage"] == "hello"
    run = small.serial(folder, "pgfed", lose=lambda t, i: i == 1)
    assert small.same(checkpoint(folder, "pgfed"), run.server)


def test_a_claim_recorded_from_another_node_is_worthless(tmp_path: Path):
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)

    def relay(content, node):  # shows what site 0 would sign for its own node
        return sites[0].answer(content, 1000)

    grid = LocalGrid({1001: relay, 1002: sites[2].answer})
    conduct(grid, folder, Options(round_timeout=0.3))
    assert any("claims to be site-00 but does not hold" in line for line in seated(folder))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": 7}, "seat 7 of 3"),
        ({"client": "0"}, "client: found"),
        ({"signature": b""}, "does not hold that site's key"),
        ({"n_train": -1}, "n_train is -1"),
        ({"n_train": 0}, "no training data"),
        ({"n_train": 10**12}, "n_train is 1000000000000, allowed at most 100000000"),
        ({"n_test": 10**8 + 1}, "n_test is 100000001, allowed at most"),
        ({"error": "not today"}, "not today"),
    ],
)
def test_bad_greetings(tmp_path: Path, changes, said):
    folder = small.make(tmp_path, rounds=1)
    sites = sites_of(folder)
    grid = grid_of(sites)
    grid.answers[1001] = lambda c, n: changed(**changes)(sites[1].answer(c, n))
    conduct(grid, folder, Options(round_timeout=0.3))
    assert any(said in line for line in seated(folder))


def test_a_site_that_comes_back_under_a_new_node_takes_its_seat(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pgfed.federation.server.seats.LOOK", 0.0)
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    grid = grid_of(sites)

    def move(reply):
        grid.answers[2001] = grid.answers.pop(1001)
        return reply

    grid.answers[1001] = disturbed(sites[1], "score", {1}, move)
    conduct(grid, folder, QUICK)
    assert_same_as_serial(folder, "pgfed")


# -- stopping and going on ---------------------------------------------------------------------


class Crash(BaseException):
    """As SIGKILL: nobody catches it."""


class CrashingGrid(LocalGrid):
    left = 0

    def push_message(self, message, most):
        if self.left == 0:
            raise Crash
        self.left -= 1
        return super().push_message(message, most)


def crash_and_resume(tmp_path: Path, message: int) -> bool:
    """Crash before this message, go on; False if the run has no such message."""
    folder = small.make(tmp_path / str(message))
    grid = grid_of(sites_of(folder))
    grid.__class__ = CrashingGrid
    grid.left = message
    try:
        conduct(grid, folder, QUICK)
        return False
    except Crash:
        pass
    done = sorted((folder.run / "pgfed" / "seed-0" / "checkpoint").glob("round-*.json"))
    # The sites were restarted too.
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, Options(round_timeout=1.0, resume=True))
    assert_same_as_serial(folder, "pgfed")
    assert [r["round"] for r in history(folder, "pgfed")] == [1, 2, 3]
    asked = (unpack(message.content)[0] for message in grid.sent)
    trained = {head["round"] for head in asked if head["stage"] == "train"}
    assert trained == {1, 2, 3} - {int(path.stem[-6:]) for path in done} - ({1} if done else set())
    return True


@pytest.mark.parametrize("message", [4, 6, 9, 15])
def test_the_same_bits_after_a_crash(tmp_path: Path, message):
    assert crash_and_resume(tmp_path, message)


@pytest.mark.nightly
def test_the_same_bits_after_a_crash_anywhere(tmp_path: Path):
    message = 0
    while crash_and_resume(tmp_path, message):
        message += 1
    assert message > 15


def test_a_damaged_checkpoint_costs_one_round(tmp_path: Path):
    folder = small.make(tmp_path, cohort=1.0)
    grid = grid_of(sites_of(folder))
    grid.__class__ = CrashingGrid
    grid.left = 3 + 2 * 6
    with pytest.raises(Crash):
        conduct(grid, folder, QUICK)
    place = folder.run / "pgfed" / "seed-0" / "checkpoint"
    last = sorted(place.glob("server-*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, Options(round_timeout=1.0, resume=True))
    assert_same_as_serial(folder, "pgfed")
    asked = (unpack(message.content)[0] for message in grid.sent)
    assert {head["round"] for head in asked if head["stage"] == "train"} == {2, 3}


def test_a_new_run_needs_an_empty_place_and_resume_a_run(tmp_path: Path):
    folder = small.make(tmp_path, rounds=1)
    grid = grid_of(sites_of(folder))
    with pytest.raises(UserError, match="holds no run to go on with"):
        conduct(grid, folder, Options(resume=True))
    conduct(grid, folder, QUICK)
    with pytest.raises(UserError, match="holds a run"):
        conduct(grid, folder, QUICK)
    text = folder.experiment_file.read_text()
    folder.experiment_file.write_text(text.replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(UserError, match="begun with another"):
        conduct(grid, folder, Options(resume=True))


def test_every_metric_of_the_kept_models_is_told(tmp_path: Path):
    folder = small.make(tmp_path)
    sites = sites_of(folder)
    conduct(grid_of(sites), folder, QUICK)
    run = small.serial(folder, "pgfed")
    metrics = evidence_of(run)[1]
    names = run.task.objective.names
    assert len(names) > 1
    with (folder.run / "pgfed" / "seed-0" / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in names:
        assert [float(row[name]) for row in rows] == pytest.approx(metrics[name].tolist()), name
    assert "majority" not in rows[0]  # the share of a class is the site's own affair
    with (sites[1].folder.path / "report.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert all(float(row[name]) == pytest.approx(metrics[name][1]) for name in metrics)


@pytest.mark.parametrize(
    "numbers", [{"accuracy": float("nan")}, {"accuracy": 1}, {"client": 0.5}, {"majority": 0.5}]
)
def test_made_up_metrics_are_refused(tmp_path: Path, numbers):
    folder = small.make(tmp_path)
    sites = sites_of(folder)
    grid = grid_of(sites)

    def lie(reply):
        reply["metrics.numbers"] = ConfigRecord(numbers)
        return reply

    grid.answers[1001] = disturbed(sites[1], "personal", {3}, lie)
    conduct(grid, folder, QUICK)
    (line,) = [line for line in seated(folder) if "site-01 has not written its model" in line]
    assert f"metrics: found {next(iter(numbers))!r}" in line


def test_a_finished_run_asks_again_only_for_models_that_are_missing(tmp_path: Path):
    folder = small.make(tmp_path)
    sites = sites_of(folder)
    grid = grid_of(sites)
    grid.answers[1001] = disturbed(sites[1], "personal", {3}, lambda reply: Error(5, "x"))
    conduct(grid, folder, QUICK)
    assert any("site-01 has not written its model" in line for line in seated(folder))
    grid = grid_of(sites)
    conduct(grid, folder, Options(round_timeout=1.0, resume=True))
    asked = [unpack(m.content)[0] for m in grid.sent]
    assert [h["client"] for h in asked if h["stage"] == "personal"] == [1]
    assert not [h for h in asked if h["stage"] in ("train", "score")]
    assert_same_as_serial(folder, "pgfed")


BLENDED = {
    "half": {"base": "pgfed", "personal": {"blend": 0.5, "frame": "serving"}},
    "fresh": {"base": "fedavg-local", "personal": {"refresh": True}},
}


def carried(grid: LocalGrid, stage: str) -> dict[tuple[str, int], int]:
    """(method, round) -> bytes in the arrays of the messages of a stage."""
    found: dict[tuple[str, int], int] = {}
    for message in grid.sent:
        head, _ = unpack(message.content)
        if head["stage"] == stage:
            at = (head["method"], head["round"])
            arrays = message.content["message.arrays"].values()
            found[at] = found.get(at, 0) + sum(len(array.data) for array in arrays)
    return found


def test_blends_and_refreshes_are_as_in_simulation(tmp_path: Path):
    folder = small.make(tmp_path, methods=list(BLENDED), method=BLENDED)
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, QUICK)
    for method in BLENDED:
        assert_same_as_serial(folder, method)
    # What is counted is what travelled: the global model to be blended with, and the last download.
    scored, trained = carried(grid, "score"), carried(grid, "train")
    for record in history(folder, "half"):
        assert record["bytes_eval"] == scored["half", record["round"]] > 0
    *before, last = history(folder, "fresh")
    for record in before:
        assert record["bytes_down"] == trained["fresh", record["round"]]
    once_more = carried(grid, "refresh")["fresh", last["round"] + 1]
    assert once_more > 0
    assert last["bytes_down"] == trained["fresh", last["round"]] + once_more


def test_local_that_is_refreshed_is_trained_by_itself(tmp_path: Path):
    content = {"personal": {"refresh": True}, "methods": ["local", "fedavg"]}
    folder = small.make(tmp_path, **content)
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    told = [r["mean_score"] for r in history(folder, "local")]
    assert told == [r["mean_score"] for r in small.serial(folder, "local").history]


FRAMED = {
    "served": {"base": "fedavg", "personal": {"frame": "serving"}},
    "framed": {"base": "fedavg", "personal": {"frame": "training"}},
}


def test_frames_are_as_in_simulation(tmp_path: Path):
    folder = small.make(tmp_path, methods=list(FRAMED), method=FRAMED)
    grid = grid_of(sites_of(folder))
    conduct(grid, folder, QUICK)
    for method in FRAMED:
        assert_same_as_serial(folder, method)
    run = small.serial(folder, "served")
    for record, told in zip(run.history, history(folder, "served"), strict=True):
        up = sum(facts.get("bytes_up", 0) for facts in told["sites"].values())
        assert up == record["bytes_up"]  # what travelled is what is counted
    assert run.history[0]["bytes_by_key"]["up"]["personal.counts"] == 2 * 4 * 10
    manifest = json.loads((folder.run / "served/seed-0/models/manifest.json").read_text())
    assert manifest["class_shares"] == run.class_shares()
