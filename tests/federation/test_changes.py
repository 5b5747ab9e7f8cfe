"""A site that changes, claims too much or spoils the model, and the way back."""

from __future__ import annotations

import json
import secrets

import numpy as np
import pytest

from federation import small
from federation.local_grid import grid_of
from federation.small import assert_same_as_serial, history
from federation.test_commands import mistake, pgfed
from federation.test_rounds import disturbed
from federation.test_site import greet
from pgfed.federation.flower.grid import Stopped
from pgfed.federation.flower.records import pack, unpack
from pgfed.federation.server.backend import QuorumError
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site.answers import Site
from pgfed.results.folder.reader import load

QUICK = Options(round_timeout=1.0)
AGAIN = Options(round_timeout=1.0, resume=True)


def sites_of(folder):
    return [Site(small.site_folder(folder, i)) for i in range(small.SITES)]


def messages(folder) -> list[str]:
    return json.loads((folder.run / "status.json").read_text())["messages"]


def fewer(folder, client: int) -> Site:
    """The site after its data was changed and it was started again."""
    path = folder.path.parent / f"data-{client}.npz"
    with np.load(path) as data:
        np.savez(path, x=data["x"][:30], y=data["y"][:30])
    return Site(small.site_folder(folder, client))


def stopped_after(grid, round: int):
    """The grid, which stops the server when it would ask for a round after this one."""
    push = grid.push_message

    def push_message(message, most):
        if unpack(message.content)[0].get("round", 0) > round:
            raise Stopped("the server was stopped")
        return push(message, most)

    grid.push_message = push_message
    return grid


# -- data and versions -------------------------------------------------------------------------


def test_data_changed_in_mid_run_is_refused_by_the_site_itself(tmp_path):
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    grid = grid_of(sites)
    restarted: list[Site] = []

    def answer(content, node):
        if unpack(content)[0].get("round") == 2 and not restarted:
            restarted.append(fewer(folder, 1))
        return (restarted or [sites[1]])[0].answer(content, node)

    grid.answers[1001] = answer
    conduct(grid, folder, QUICK)
    first, *others = history(folder, "pgfed")
    assert not first["dropped"]
    for record in others:
        ((client, reason),) = [(d["client"], d["reason"]) for d in record["dropped"]]
        assert client == 1
        assert "this site has changed since the run began: data was" in reason


def test_a_changed_site_comes_back_only_if_the_operator_accepts_it(tmp_path):
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    with pytest.raises(Stopped):
        conduct(stopped_after(grid_of(sites), 1), folder, QUICK)
    sites[1] = fewer(folder, 1)
    with pytest.raises(QuorumError, match="missing: site-01"):
        conduct(grid_of(sites), folder, Options(round_timeout=1.0, resume=True, min_replies=3))
    assert any("site-01 was not seated: this site has changed" in m for m in messages(folder))
    accept = Options(round_timeout=1.0, resume=True, min_replies=3, accept_changes=True)
    conduct(grid_of(sites), folder, accept)
    (change,) = load(folder.run).environment["changes"]
    assert "site-01 has changed since the run began: data was" in change
    assert not history(folder, "pgfed")[-1]["dropped"]


def test_a_site_writes_no_lines_into_the_servers_log(tmp_path, caplog):
    """Not with the name of its version, nor of its machine, which the report shows."""
    folder = small.make(tmp_path, cohort=1.0, rounds=2)
    sites = sites_of(folder)
    with pytest.raises(Stopped):
        conduct(stopped_after(grid_of(sites), 1), folder, QUICK)
    forged = "1\n2026-11-17 12:00:00 site-00 removed \x1b[2K"

    def changed(content, node):
        head, parts = unpack(sites[1].answer(content, node))
        told = {k: forged for k in ("torch", "machine") if k in head}
        return pack({**head, **told}, **parts)

    grid = grid_of(sites)
    grid.answers[1001] = changed
    caplog.set_level("INFO", "pgfed")
    conduct(grid, folder, Options(round_timeout=1.0, resume=True, accept_changes=True))
    (change,) = load(folder.run).environment["changes"]
    assert "is 1\\n2026" in change
    said = [*messages(folder), *caplog.messages, change]
    said += load(folder.run).environment["sites"]["1"].values()
    assert all(text.isprintable() for text in said)


@pytest.mark.parametrize("fact", ["data", "pgfed", "torch", "flower"])
def test_the_server_does_not_take_the_sites_word_for_it(tmp_path, fact):
    """A site that forgot what it was like: the server has it on record."""
    folder = small.make(tmp_path, cohort=1.0)
    sites = sites_of(folder)
    with pytest.raises(Stopped):
        conduct(stopped_after(grid_of(sites), 1), folder, QUICK)

    def changed(content, node):
        head, parts = unpack(sites[1].answer(content, node))
        return pack({**head, **({fact: "another"} if fact in head else {})}, **parts)

    grid = grid_of(sites)
    grid.answers[1001] = changed
    with pytest.raises(QuorumError, match="missing: site-01"):
        conduct(grid, folder, Options(round_timeout=1.0, resume=True, min_replies=3))
    (said,) = [m for m in messages(folder) if "not seated" in m]
    assert f"site-01 has changed since the run began: {fact} was" in said
    assert "--accept-changes" in said


def test_a_fingerprint_tells_nothing_of_the_data(tmp_path):
    """Equal within a run; in another run, or at another site with the same data, it differs."""
    folder = small.make(tmp_path)
    site = Site(small.site_folder(folder, 0))
    runs = [secrets.token_hex(16) for _ in range(2)]
    told = [greet(site, run)["data"] for run in (runs[0], runs[0], runs[1])]
    assert told[0] == told[1] != told[2]
    assert site.federation.fingerprint not in told


# -- claims ------------------------------------------------------------------------------------


def test_a_site_may_not_claim_more_samples_than_agreed(tmp_path):
    folder = small.make(tmp_path, cohort=1.0)
    file = folder.path / "federation.toml"
    file.write_text(file.read_text() + '\n[max_samples]\n"site-02" = 5\n')
    folder = type(folder)(folder.path)
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    (said,) = [m for m in messages(folder) if "not seated" in m]
    assert "site-02 was not seated: it says it has " in said
    assert "max_samples is 5" in said


def scaled(reply):
    head, parts = unpack(reply)
    parts["update"]["w"] *= 1000
    return pack(head, **parts)


def test_a_reply_that_is_too_long_is_dropped_and_named(tmp_path):
    engine = {"max_update_norm": 50.0}
    folder = small.make(tmp_path, cohort=1.0, methods=["fedavg"], engine=engine)
    sites = sites_of(folder)
    grid = grid_of(sites)
    grid.answers[1001] = disturbed(sites[1], "train", {2}, scaled)
    conduct(grid, folder, QUICK)
    dropped = {r["round"]: r["dropped"] for r in history(folder, "fedavg")}
    assert dropped[1] == dropped[3] == []
    assert dropped[2][0]["client"] == 1
    assert "allowed at most 50" in dropped[2][0]["reason"]


# -- the way back ------------------------------------------------------------------------------


def test_back_to_a_round_before_the_model_was_spoiled(tmp_path, capsys):
    folder = small.make(tmp_path, cohort=1.0, rounds=6)
    sites = sites_of(folder)
    grid = stopped_after(grid_of(sites), 5)
    grid.answers[1001] = disturbed(sites[1], "train", {4, 5}, scaled)
    with pytest.raises(Stopped):
        conduct(grid, folder, QUICK)
    spoiled = history(folder, "pgfed")
    capsys.readouterr()
    said = mistake(capsys, "rollback", folder.path, "--round", 7)
    assert "--round: found 7; allowed: 1, 2, 3, 4, 5" in said
    code, said = pgfed(capsys, "rollback", folder.path, "--round", 3)
    assert (code, "pgfed, seed-0: back after round 3" in said) == (0, True)
    conduct(grid_of(sites), folder, AGAIN)
    capsys.readouterr()
    assert_same_as_serial(folder, "pgfed")
    assert history(folder, "pgfed")[4]["mean_score"] != spoiled[4]["mean_score"]
    (noted,) = json.loads((folder.run / "federation.json").read_text())["rollbacks"]
    assert "pgfed, seed-0: from round 5 back to 3" in noted
    assert "no method is in the midst" in mistake(capsys, "rollback", folder.path, "--round", 3)


def test_rollback_needs_a_run(tmp_path, capsys):
    folder = small.make(tmp_path)
    assert "holds no run" in mistake(capsys, "rollback", folder.path, "--round", 1)
