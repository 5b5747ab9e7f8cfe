"""A site is master of its house: consent, limits, its models, and a record of what left."""

from __future__ import annotations

import csv
import errno
import json
import os
import resource
import secrets
import shutil

import pytest
import torch
from safetensors.torch import load_file

from federation import small
from federation.local_grid import grid_of
from federation.test_commands import mistake, pgfed
from federation.test_site import RUN, ask, greet, start
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder, SiteFolder
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site import record
from pgfed.federation.site.answers import Site

OTHER = secrets.token_hex(16)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> FederationFolder:
    place = tmp_path_factory.mktemp("federation")
    return small.make(place, approved=False, methods=["fedavg"], cohort=1.0, rounds=5)


@pytest.fixture
def folder(made, tmp_path) -> SiteFolder:
    shutil.copytree(small.site_path(made.path, 1), tmp_path / "site")
    return SiteFolder(tmp_path / "site")


def opened(made: FederationFolder, folder: SiteFolder, **limits) -> Site:
    """The site with these lines in its site.toml."""
    file = folder.path / "site.toml"
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in limits.items())
    kept = [line for line in file.read_text().splitlines() if line.split(" = ")[0] not in limits]
    file.write_text(lines + "\n".join(kept) + "\n")
    return Site(SiteFolder(folder.path), f"npz:{made.path.parent / 'data-1.npz'}")


# -- consent -----------------------------------------------------------------------------------


def test_a_site_waits_until_somebody_approves_and_says_so_once(made, folder, capsys, caplog):
    site = opened(made, folder)
    for _ in range(3):
        assert "waits for this site's approval" in greet(site)["error"]
    assert len([r for r in caplog.records if "approval" in r.getMessage()]) == 1
    assert "no seat in run" in ask(site, "train", start(site))[0]["error"]
    code, said = pgfed(capsys, "approve", folder.path, "--yes")
    assert code == 0
    assert "rounds      5" in said
    assert "fedavg: 1 epochs a round in batches of 20; 38.4 kB leave in each round" in said
    assert "local: trained beside; no model leaves" in said
    assert greet(site)["client"] == 1
    assert set(ask(site, "train", start(site))[1]) == {"update"}


def test_no_is_no(folder, capsys, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda text: False)
    assert pgfed(capsys, "approve", folder.path)[0] == 1
    assert not (folder.path / "approved.json").exists()


def test_consent_is_to_one_experiment(made, folder, capsys):
    assert pgfed(capsys, "approve", folder.path, "--yes")[0] == 0
    file = folder.experiment_file
    file.write_text(file.read_text().replace("lr = 0.05", "lr = 0.06"))
    assert "waits for this site's approval" in greet(opened(made, folder))["error"]
    assert greet(opened(made, folder, auto_approve=True))["client"] == 1


def test_the_server_names_the_site_that_waits(tmp_path, capsys):
    place = small.make(tmp_path, approved=False, rounds=1, cohort=1.0)
    for client in (0, 2):
        assert pgfed(capsys, "approve", small.site_path(place.path, client), "--yes")[0] == 0
    sites = [Site(small.site_folder(place, i)) for i in range(small.SITES)]
    conduct(grid_of(sites), place, Options(round_timeout=1.0))
    status = json.loads((place.run / "status.json").read_text())
    told = [line for line in status["messages"] if "site-01 was not seated" in line]
    assert len(told) == 1
    assert "waits for this site's approval" in told[0]
    assert [site["n_train"] > 0 for site in status["sites"]] == [True, False, True]


# -- limits ------------------------------------------------------------------------------------


def test_rounds_and_kinds_of_request_are_limited(made, folder):
    site = opened(made, folder, auto_approve=True, max_rounds=4)
    assert "5 rounds; this site allows 4" in greet(site)["error"]
    site = opened(made, folder, max_rounds=5, max_runs=2, requests=["train"])
    assert [greet(site, run=run).get("client") for run in (RUN, OTHER, RUN)] == [1, 1, 1]
    assert "2 runs of this experiment, and allows no more" in greet(site, run="c" * 32)["error"]
    assert "no seat in run" in ask(site, "train", start(site), run="c" * 32)[0]["error"]
    assert set(ask(site, "train", start(site))[1]) == {"update"}
    for kind in ("score", "share", "personal"):
        head, parts = ask(site, kind, start(site), base=1)
        assert f"does not answer {kind!r}" in head["error"]
        assert not parts
    file = folder.path / "site.toml"
    file.write_text(file.read_text().replace('["train"]', '["shell"]'))
    with pytest.raises(UserError, match="requests"):
        SiteFolder(folder.path)


def test_one_round_is_not_asked_for_again_and_again_with_other_models(made, folder):
    """What a malicious server does to learn more: crafted models, one after the other."""
    site = opened(made, folder, auto_approve=True, answers_per_round=2)
    greet(site)
    w = start(site)["w"]
    for k in (0, 1, 0, 1, 1):  # the same question may be repeated: an answer was lost
        assert "error" not in ask(site, "train", {"w": w + k})[0]
    assert "2 different questions" in ask(site, "train", {"w": w + 2})[0]["error"]
    again = opened(made, folder)  # it remembers
    assert "2 different questions" in ask(again, "train", {"w": w + 2})[0]["error"]
    assert "error" not in ask(again, "train", {"w": w}, round=2, base=1)[0]


# -- models ------------------------------------------------------------------------------------


def test_an_invented_run_gets_nothing_and_changes_nothing(made, folder):
    site = opened(made, folder, auto_approve=True)
    greet(site)
    ask(site, "train", start(site))
    assert "error" not in ask(site, "personal", start(site), base=1)[0]
    place = folder.models / "small" / "fedavg" / "seed-0" / "model.safetensors"
    before = load_file(place)
    zeros = {"w": torch.zeros_like(start(site)["w"])}
    for kind in ("personal", "share", "train", "score"):
        head, parts = ask(site, kind, zeros, run=OTHER)
        assert "no seat in run" in head["error"]
        assert not parts
    assert small.same(before, load_file(place))
    assert [path.name for path in folder.models.iterdir()] == ["small"]
    # Within its own run, too: the model that was written stays.
    assert "not written over" in ask(site, "personal", zeros)[0]["error"]
    assert "no sound state of round 4" in ask(site, "personal", zeros, base=4)[0]["error"]
    assert small.same(before, load_file(place))


def test_a_second_run_of_the_same_experiment_has_a_folder_of_its_own(made, folder):
    site = opened(made, folder, auto_approve=True)
    for run in (RUN, OTHER):
        greet(site, run)
        ask(site, "train", start(site), run=run)
        ask(site, "personal", {"w": start(site)["w"] + (run == OTHER)}, run=run, base=1)
    places = sorted(path.name for path in folder.models.iterdir())
    assert places == ["small", "small-2"]
    first, second = (
        load_file(folder.models / name / "fedavg" / "seed-0" / "model.safetensors")
        for name in places
    )
    assert not small.same(first, second)
    with (folder.path / "report.csv").open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == [RUN, OTHER]


# -- the record --------------------------------------------------------------------------------


@pytest.fixture
def recorded(made, folder) -> SiteFolder:
    """A site that has answered four times."""
    site = opened(made, folder, auto_approve=True)
    greet(site)
    update = ask(site, "train", start(site))[1]["update"]
    ask(site, "score", start(site), base=1)
    ask(site, "personal", start(site), base=1)
    entry = record.read(folder.path)[1]
    assert entry["norm"] == pytest.approx(float(update["w"].norm()))
    assert entry["bytes"] == 4 * len(update["w"])
    return folder


def test_everything_that_left_is_on_record(recorded, capsys):
    entries = record.read(recorded.path)
    assert [entry["kind"] for entry in entries] == ["hello", "train", "score", "personal"]
    assert all(entry["run"] == RUN for entry in entries)
    assert {"update.w", "update.n"} <= set(entries[1]["keys"])
    assert "metrics.accuracy" in entries[3]["keys"]
    code, said = pgfed(capsys, "log", recorded.path)
    assert code == 0
    assert "4 answers, none changed or missing" in said
    code, said = pgfed(capsys, "log", recorded.path, "--json")
    assert json.loads(said) == entries


def test_what_was_refused_is_not_on_record(made, recorded):
    site = opened(made, recorded)
    ask(site, "train", start(site), run=OTHER)
    assert len(record.read(recorded.path)) == 4


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (lambda lines: [lines[0], lines[1].replace('"round": 1', '"round": 2'), *lines[2:]],
         "line 2 was changed"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 was changed, or one before it is missing"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "line 2 was changed"),
        (lambda lines: lines[:-1], "3 lines, but 4 were written"),
        (lambda lines: [], "0 lines, but 4 were written"),
        (lambda lines: [*lines[:2], "nonsense\n", *lines[2:]], "line 3 is not a line"),
    ],
)  # fmt: skip
def test_tampering_is_found(made, recorded, capsys, tamper, said):
    path = recorded.path / "record.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    changed = tamper(lines)
    assert changed != lines
    path.write_text("".join(changed))
    assert said in mistake(capsys, "log", recorded.path)
    with pytest.raises(UserError, match=r"record\.jsonl"):
        opened(made, recorded)


def test_lines_that_were_added_are_found(recorded):
    """Chained rightly, but not by the site."""
    own = record.Record(recorded.path)
    head = (recorded.path / "record.head").read_text()
    for _ in range(2):
        own.add(run=RUN, kind="hello", keys=[], bytes=0, norm=0.0)
    (recorded.path / "record.head").write_text(head)
    with pytest.raises(UserError, match="6 lines, but 4 were written; some were added"):
        record.read(recorded.path)


def test_a_site_killed_while_it_writes_goes_on(made, recorded):
    path = recorded.path / "record.jsonl"
    with path.open("a") as file:
        file.write('{"when": "2026-')  # this answer has not left
    site = opened(made, recorded)
    greet(site)
    assert [e["kind"] for e in record.read(recorded.path)][-2:] == ["personal", "hello"]


def full(path, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["in the midst of a line", "before the head"])
def test_a_full_disk_leaves_the_record_as_it_was(recorded, monkeypatch, where):
    """Again and again, as a server asks; then there is room, and the site is started anew."""
    own = record.Record(recorded.path)
    entry = {"run": RUN, "kind": "hello", "keys": [], "bytes": 0, "norm": 0.0}
    path = recorded.path / "record.jsonl"
    before, limit = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(3):
        if where == "before the head":
            monkeypatch.setattr(record, "write_atomic", full)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limit[1]))
        try:
            with pytest.raises(OSError, match=r"No space left|File too large"):
                own.add(**entry)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            monkeypatch.undo()
        assert path.read_bytes() == before
    assert len(record.read(recorded.path)) == 4
    own.add(**entry)
    record.Record(recorded.path)  # a site that is started again reads it
    assert [e["kind"] for e in record.read(recorded.path)][-2:] == ["personal", "hello"]


# -- crafted models ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "score", "personal"])
def test_a_crafted_model_with_values_that_are_none_is_refused(made, folder, kind):
    site = opened(made, folder, auto_approve=True)
    greet(site)
    w = start(site)["w"].clone()
    w[3] = float("inf")
    head, parts = ask(site, kind, {"w": w})
    assert "message.w: holds NaN or infinite values" in head["error"]
    assert not parts
    assert "error" in ask(site, kind, {"w": w[:-1].nan_to_num(0, 0, 0)})[0]  # nor another shape


def test_the_server_writes_no_lines_into_a_sites_log(made, folder, caplog):
    site = opened(made, folder, auto_approve=True)
    greet(site)
    forged = "x\n2026-11-17 12:00:00 approved by the data protection officer \x1b[2K"
    head, _ = ask(site, "train", {**start(site), forged: float("nan")})
    assert "message.x\\n2026" in head["error"]
    assert all(message.isprintable() for message in [head["error"], *caplog.messages])


def test_small_batches_are_refused(made, folder):
    site = opened(made, folder, auto_approve=True, min_batch=21)
    assert "batches of 20; this site allows none below 21" in greet(site)["error"]
    assert greet(opened(made, folder, min_batch=20))["client"] == 1
