"""The ledger beside a site's data: nothing leaves that is not in it, whatever happens to the site,
and no way round it is found."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from federation import small
from federation.test_site import RUN, ask, greet, start
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder, SiteFolder
from pgfed.federation.site import ledger as ledgers
from pgfed.federation.site.answers import Site
from pgfed.federation.site.house import FAILED
from pgfed.federation.site.ledger import Ledger

EPSILON = "epsilon = 6.0\ndelta = 1e-3\nclip = 0.5\nsize = 60\n"
FIXED = "epsilon = 6.0\ndelta = 1e-3\nnoise_multiplier = 0.9\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> FederationFolder:
    place = tmp_path_factory.mktemp("federation")
    return small.make(place, methods=["fedavg"], cohort=1.0, rounds=5)


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """Site 1 and its data in a place of their own."""
    shutil.copytree(small.site_path(made.path, 1), tmp_path / "site")
    shutil.copy(made.path.parent / "data-1.npz", tmp_path / "data-1.npz")
    private(tmp_path / "site", EPSILON)
    return tmp_path / "site"


def private(site: Path, table: str) -> None:
    file = site / "site.toml"
    text = file.read_text().split("\n[privacy]")[0]
    file.write_text(f"{text}\n[privacy]\n{table}" if table else text)


def opened(folder: Path) -> Site:
    site = Site(SiteFolder(folder), f"npz:{folder.parent / 'data-1.npz'}")
    greet(site)
    return site


def ledger(folder: Path) -> Path:
    return folder.parent / "data-1.npz.privacy" / ledgers.FILE


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in ledger(folder).read_text().splitlines()]


def kinds(folder: Path) -> list[str]:
    return [line["kind"] for line in lines(folder)]


def error(answer: tuple[dict[str, Any], dict[str, Any]]) -> str:
    assert not answer[1], "something left"
    return str(answer[0]["error"])


def test_a_round_is_charged_before_it_leaves_and_told_again_for_nothing(folder):
    site = opened(folder)
    first = ask(site, "train", start(site))
    assert kinds(folder) == ["open", "plan", "charge"]
    again = ask(site, "train", start(site), ticket="another")
    assert small.same(first[1]["update"], again[1]["update"])
    assert kinds(folder) == ["open", "plan", "charge"]
    charge = lines(folder)[-1]
    assert charge["meter"] == [["gradient", 20 / 60, 3]]
    # By hand: 60 of the site's records are declared, three draws in each of five rounds.
    plan = lines(folder)[1]
    assert plan["rounds"] == [["fedavg", 0, 5]]
    assert 0.97 * 6 <= plan["epsilon"] <= 6


def test_another_message_for_an_answered_round_is_refused(folder):
    site = opened(folder)
    ask(site, "train", start(site))
    other = {"w": start(site)["w"] * 2}
    assert "answered, to another message" in error(ask(site, "train", other))
    assert "answered, to another message" in error(ask(opened(folder), "train", other))
    assert kinds(folder).count("charge") == 1


def test_what_is_told_is_what_was_declared(folder):
    site = opened(folder)
    head = greet(site)
    assert head["n_train"] == 60 != site.federation.n_train[1]
    assert head["n_validation"] == 0
    reply, parts = ask(site, "train", start(site))
    assert parts["update"]["n"] == head["n_train"]
    assert (reply["seconds"], reply["alone_seconds"]) == (0.0, 0.0)
    assert "withheld" in error(ask(site, "score", start(site), base=1))
    reply, parts = ask(site, "personal", start(site), base=1, copy=True)
    assert parts == {}
    manifest = next((folder / "models").rglob("manifest.json"))
    kept = json.loads(manifest.read_text())["privacy"]
    assert (kept["covered"], kept["unit"], kept["size"]) == (True, "record", head["n_train"])


def test_no_text_of_an_exception_leaves(folder, monkeypatch):
    site = opened(folder)

    def fail(*_: object) -> None:
        raise ValueError("patient 17 is 212 cm tall")

    monkeypatch.setattr("pgfed.model.private.view.drawn", fail)
    assert error(ask(site, "train", start(site))) == FAILED
    assert kinds(folder) == ["open", "plan"]


def test_rounds_beyond_the_plan_and_rounds_without_a_draw_are_refused(folder):
    private(folder, EPSILON + "participations = 1\n")
    site = opened(folder)
    ask(site, "train", start(site))
    assert "budget of this run is used up" in error(
        ask(site, "train", start(site), round=2, base=1)
    )


def test_fixed_noise_ends_when_the_budget_does(folder):
    private(folder, FIXED)
    site = opened(folder)
    answered = []
    for t in range(1, 6):
        _, parts = ask(site, "train", start(site), round=t, base=t - 1 if t - 1 in answered else 0)
        if parts:
            answered.append(t)
    ((_, _, most),) = lines(folder)[1]["rounds"]
    assert answered == list(range(1, most + 1))
    assert 1 <= most < 5, "the test needs a budget that ends in mid-run"
    assert lines(folder)[1]["epsilon"] <= 6


# -- ways round it -----------------------------------------------------------------------------


def test_a_second_run_gets_what_is_left(folder):
    private(folder, EPSILON + "run_epsilon = 4.0\n")
    other = secrets.token_hex(16)
    site = opened(folder)
    ask(site, "train", start(site))
    greet(site, run=other)
    ask(site, "train", start(site), run=other)
    plans = [line for line in lines(folder) if line["kind"] == "plan"]
    assert plans[0]["epsilon"] <= 4
    assert sum(plan["epsilon"] for plan in plans) <= 6
    assert sum(plan["delta"] for plan in plans) <= 1e-3 * (1 + 1e-9)
    third = secrets.token_hex(16)
    greet(site, run=third)
    left = 6 - sum(plan["epsilon"] for plan in plans)
    if left < 0.01:
        assert "used up" in error(ask(site, "train", start(site), run=third))


def test_a_second_server_meets_the_same_ledger(folder, tmp_path):
    site = opened(folder)
    ask(site, "train", start(site))
    shutil.copytree(folder, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("state"))
    other = opened(tmp_path / "elsewhere")
    assert "answered, to another" in error(ask(other, "train", {"w": start(site)["w"] * 3}))
    run = secrets.token_hex(16)
    greet(other, run=run)
    _, parts = ask(other, "train", start(other), run=run)
    spent = sum(line["epsilon"] for line in lines(folder) if line["kind"] == "plan")
    assert spent <= 6
    assert not parts or spent > lines(folder)[1]["epsilon"]


def test_one_more_row_opens_no_new_budget(folder):
    site = opened(folder)
    ask(site, "train", start(site))
    before = lines(folder)
    data = folder.parent / "data-1.npz"
    with np.load(data) as found:
        x, y = found["x"], found["y"]
    np.savez(data, x=np.concatenate([x, x[:1]]), y=np.concatenate([y, y[:1]]))
    grown = opened(folder)
    assert lines(folder) == before
    assert greet(grown, run=secrets.token_hex(16))["n_train"] == before[0]["size"]
    other = {"w": start(grown)["w"] * 2}
    assert error(ask(grown, "train", other))  # another run's data, or another message


def test_a_changed_experiment_gets_no_second_plan_in_the_same_run(folder):
    ask(site := opened(folder), "train", start(site))
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace("lr = 0.05", "lr = 0.06"))
    changed = Site(SiteFolder(folder), f"npz:{folder.parent / 'data-1.npz'}")
    greet(changed)
    assert "made for another experiment" in error(
        ask(changed, "train", start(changed), round=2, base=1)
    )


def test_switching_it_off_is_refused(folder):
    opened(folder)
    private(folder, "")
    with pytest.raises(UserError, match="holds a ledger of these records"):
        opened(folder)


def test_switching_it_on_in_mid_run_is_refused(folder):
    private(folder, "")
    site = opened(folder)
    ask(site, "train", start(site))
    private(folder, EPSILON)
    site = opened(folder)
    told = error(ask(site, "train", start(site), round=2, base=1))
    assert "data was other than now" in told
    assert site.federation.fingerprint[:8] not in told
    greet(site, accept=True)  # the server's operator goes on
    assert "not in the ledger" in error(ask(site, "train", start(site), round=2, base=1))
    assert "not in the ledger" in error(ask(site, "share", {}, round=2, base=1))


@pytest.mark.parametrize(
    "table", ["epsilon = 60.0\ndelta = 1e-3\n", "epsilon = 6.0\ndelta = 1e-4\n"]
)
def test_another_number_in_the_file_is_no_new_budget(folder, table):
    opened(folder)
    private(folder, table)
    with pytest.raises(UserError, match="the ledger was opened with"):
        opened(folder)


def test_an_old_ledger_is_found_out_and_repaired(folder):
    site = opened(folder)
    backup = ledger(folder).read_bytes()
    ask(site, "train", start(site))
    ledger(folder).write_bytes(backup)
    with pytest.raises(UserError, match="an old backup"):
        opened(folder)
    shutil.rmtree(ledger(folder).parent)
    with pytest.raises(UserError, match="an old backup"):
        opened(folder)
    ledger(folder).write_bytes(backup)
    note = folder / "state" / "ledger.json"
    ledgers.repair(Ledger(ledger(folder).parent, note), "the disk was replaced")
    after = opened(folder)
    assert "used up" in error(ask(after, "train", start(after)))


def test_an_edited_line_stops_everything(folder):
    site = opened(folder)
    ask(site, "train", start(site))
    text = ledger(folder).read_text()
    ledger(folder).write_text(text.replace('"epsilon":6.0', '"epsilon":9.0'))
    assert error(ask(site, "train", start(site), round=2, base=1)) == FAILED
    with pytest.raises(UserError, match="was changed"):
        opened(folder)


def test_a_ledger_that_cannot_be_written_stops_the_site(folder):
    private(folder, EPSILON + 'ledger = "/proc/ledger"\n')
    with pytest.raises(UserError, match="cannot be written"):
        opened(folder)


# -- killed ------------------------------------------------------------------------------------


def killed(folder: Path, at: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The site's process dies by SIGKILL where `at` puts it, in the middle of its answer."""
    child = os.fork()
    if not child:
        try:
            at(pytest.MonkeyPatch())
            ask(site := opened(folder), "train", start(site))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(name: str, where: Any = Ledger, kind: str = "") -> Callable[[pytest.MonkeyPatch], None]:
    """Right after this was done (of `append`: this kind of line)."""

    def put(patch: pytest.MonkeyPatch) -> None:
        done = getattr(where, name)

        def then_die(*args: Any, **options: Any) -> None:
            done(*args, **options)
            if not kind or kind in args:
                die()

        patch.setattr(where, name, then_die)

    return put


def torn(patch: pytest.MonkeyPatch) -> None:
    """In the middle of writing the charge."""
    done = ledgers.canonical

    def half(line: dict[str, Any]) -> bytes:
        if line["kind"] == "charge" and "asked" in line:
            with ledger(Path(os.environ["SITE"])).open("ab") as file:
                file.write(done(line)[:50])
            die()
        return done(line)

    patch.setattr(ledgers, "canonical", half)


@pytest.mark.parametrize(
    ("at", "charged"),
    [
        (after("append", kind="plan"), False),
        (after("save", where="states"), False),
        (after("put"), False),
        (torn, False),
        (after("append", kind="charge"), True),
    ],
    ids=["planned", "computed", "in the outbox", "half a charge", "charged"],
)
def test_killed_at_any_moment(folder, at, charged, monkeypatch):
    from pgfed.federation.site.states import States

    monkeypatch.setenv("SITE", str(folder))
    if at is not torn and at.__closure__[2].cell_contents == "states":
        at = after("save", where=States)
    killed(folder, at)
    site = opened(folder)
    assert kinds(folder) == ["open", "plan", "charge"] if charged else ["open", "plan"]
    outbox = list((ledger(folder).parent / ledgers.OUTBOX).iterdir())
    assert len(outbox) == charged
    _, parts = ask(site, "train", start(site))
    assert kinds(folder) == ["open", "plan", "charge"]
    if charged:  # what it had in mind to send, and not something new
        assert lines(folder)[-1]["sent"] == hashlib.sha256(outbox[0].read_bytes()).hexdigest()
    assert torch.isfinite(parts["update"]["w"]).all()
    _, parts = ask(site, "train", start(site), round=2, base=1)
    assert kinds(folder).count("charge") == 2


def test_a_state_that_was_not_charged_is_not_gone_on_from(folder):
    from pgfed.federation.site.states import States

    site = opened(folder)
    ask(site, "train", start(site))
    states = site._states({"run": RUN, "seed": 0}, "fedavg")
    assert isinstance(states, States)
    states.save(1, {"v": torch.zeros(3)})
    assert error(ask(site, "train", start(site), round=2, base=1)) == FAILED


def test_two_processes_give_one_answer(folder):
    """The second finds the first one's charge, and sends that."""
    one, two = opened(folder), opened(folder)
    found: list[Any] = []
    work = two._private.answer

    def meanwhile(place, base, asked, compute):
        def slow(protection):
            done = compute(protection)
            found.append(ask(one, "train", start(one))[1]["update"])
            return done

        return work(place, base, asked, slow)

    two._private.answer = meanwhile
    _, parts = ask(two, "train", start(two))
    assert small.same(parts["update"], found[0])
    assert kinds(folder) == ["open", "plan", "charge"]
