"""A site: its data, its states on disk, and what it does when asked."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from safetensors.torch import load_file

from federation import small
from federation.flower_private import TaskIdentity
from pgfed.errors import UserError
from pgfed.federation.flower.records import MESSAGE, pack, unpack
from pgfed.federation.folders import making
from pgfed.federation.folders.folder import SiteFolder, digest, load_experiment
from pgfed.federation.folders.keys import holds_claim, load_public
from pgfed.federation.site import process
from pgfed.federation.site import states as site_states
from pgfed.federation.site.answers import Site
from pgfed.federation.site.states import States
from pgfed.methods.randomness import draw_cohort
from pgfed.results.folder.evidence import read_evidence

RUN = secrets.token_hex(16)
NODE = 1001


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small.make(
        tmp_path_factory.mktemp("federation"), methods=["fedavg"], cohort=1.0, rounds=5
    )


@pytest.fixture
def site(made, tmp_path):
    """Site 1 in a folder of its own, so that states do not mix."""
    place = tmp_path / "site"
    shutil.copytree(small.site_path(made.path, 1), place)
    site = Site(SiteFolder(place), f"npz:{made.path.parent / 'data-1.npz'}")
    greet(site)
    return site


def greet(site, run=RUN, **more):
    head = {"stage": "hello", "run": run, "nonce": "n", "digest": site._digest, **more}
    return unpack(site.answer(pack(head), NODE))[0]


def ask(site, stage, message=None, **changes):
    head = {
        "stage": stage,
        "run": RUN,
        "method": "fedavg",
        "seed": 0,
        "round": 1,
        "client": 1,
        "base": 0,
        "alone": True,
        "copy": False,
        "ticket": "t",
        **changes,
    }
    return unpack(site.answer(pack(head, message=message or {}), NODE))


def start(site):
    return {"w": site._side("fedavg", 0).w0}


def test_the_data_is_divided_as_in_simulation(made, site):
    _, federation = small.simulated(made)
    for part in ("train", "validation", "test"):
        here, there = getattr(site.federation, part)(1), getattr(federation, part)(1)
        assert torch.equal(here.x, there.x)
        assert torch.equal(here.y, there.y)
    assert site.federation.n_train.tolist()[0::2] == [0, 0]


def test_hello_proves_who_it_is(made, site):
    experiment, _ = load_experiment(made.experiment_file)
    agreed = digest(made.agreement, experiment)
    content = pack({"stage": "hello", "run": RUN, "nonce": "n", "digest": agreed})
    head, _ = unpack(site.answer(content, NODE))
    assert head["client"] == 1
    assert holds_claim(load_public(made.key(1)), head["signature"], 1, NODE, RUN, "n")
    assert head["n_train"] == int(site.federation.n_train[1])


def test_another_experiment_than_agreed_is_refused(site):
    content = pack({"stage": "hello", "run": RUN, "nonce": "n", "digest": "0" * 64})
    assert "another agreement or experiment" in unpack(site.answer(content, NODE))[0]["error"]


def test_the_same_round_asked_twice_gives_the_same_reply(site):
    first, again = (ask(site, "train", start(site))[1]["update"] for _ in range(2))
    assert small.same(first, again)


def test_a_later_round_goes_on_from_the_round_that_counted(site):
    w = start(site)
    ask(site, "train", w)
    two = ask(site, "train", w, round=2, base=1)[1]["update"]
    # Round 2 was not counted: round 3 starts from round 1's state, as if 2 had never been.
    three = ask(site, "train", w, round=3, base=1)[1]["update"]
    assert small.same(two, ask(site, "train", w, round=2, base=1)[1]["update"])
    assert small.same(three, ask(site, "train", w, round=3, base=1)[1]["update"])
    after_two = ask(site, "train", w, round=2, base=1) and ask(site, "train", w, round=3, base=2)
    assert not small.same(three, after_two[1]["update"])  # momentum of round 2 is in it


def test_restarted_in_between_it_answers_the_same(made, site, tmp_path):
    w = start(site)
    ask(site, "train", w)
    wanted = ask(site, "train", w, round=2, base=1)[1]["update"]
    again = Site(SiteFolder(tmp_path / "site"), f"npz:{made.path.parent / 'data-1.npz'}")
    assert small.same(wanted, ask(again, "train", w, round=2, base=1)[1]["update"])


def test_scoring_changes_nothing(site):
    w = start(site)
    ask(site, "train", w)
    wanted = ask(site, "train", w, round=2, base=1)[1]["update"]
    parts = ask(site, "score", w, round=1, base=1)[1]
    assert set(parts) == {"score", "alone"}
    assert small.same(wanted, ask(site, "train", w, round=2, base=1)[1]["update"])


def test_states_of_the_last_rounds_that_counted_are_kept(site, tmp_path, monkeypatch):
    monkeypatch.setattr(site_states, "KEPT", 2)
    w = start(site)
    for round in range(1, 6):
        ask(site, "train", w, round=round, base=round - 1)
    place = tmp_path / "site" / "state" / RUN
    for method in ("fedavg", "local"):
        kept = sorted(p.name[:6] for p in (place / method / "seed-0").iterdir())
        assert kept == ["000003", "000004", "000005"]


def test_a_lost_state_is_told_and_not_made_up(site, tmp_path):
    w = start(site)
    ask(site, "train", w)
    head, _ = ask(site, "train", w, round=9, base=7)
    assert "round 9; the experiment has 5" in head["error"]
    head, _ = ask(site, "train", w, round=3, base=2)
    assert "no sound state of round 2" in head["error"]
    (file,) = (tmp_path / "site" / "state" / RUN / "fedavg" / "seed-0").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    head, _ = ask(site, "train", w, round=2, base=1)
    assert "no sound state of round 1" in head["error"]
    file.unlink()
    head, parts = ask(site, "train", w, round=2, base=1)
    assert "its state of this run is lost: put state/ back" in head["error"]
    assert not parts
    greet(site, accept=True)  # the server's operator goes on with it
    head, parts = ask(site, "train", w, round=2, base=1)
    assert head["afresh"] is True
    assert set(parts) == {"update"}


def test_it_does_only_what_its_own_experiment_holds(site):
    w = start(site)
    asked = (
        ({"method": "pgfed"}, "not in this site's experiment"),
        ({"seed": 7}, "not in this site's experiment"),
        ({"client": 2}, "a message for client 2"),
        ({"run": "../../etc"}, "run: found"),
        ({"round": 6}, "round 6"),
        ({"round": 0}, "train round 0 on top of round 0"),
        ({"stage": "shell"}, "stage: found"),
        ({"base": "1"}, "base: found"),
    )
    for change, said in asked:
        head, parts = ask(site, **{"stage": "train", "message": w, **change})
        assert said in head["error"], change
        assert not parts


def test_rubbish_is_answered_and_not_raised(site):
    from flwr.app import Array

    content = RecordDict({"m.arrays": ArrayRecord({"w": Array("object", (1,), "x", b"")})})
    assert "serialised as" in unpack(site.answer(content, NODE))[0]["error"]
    assert "stage" in unpack(site.answer(RecordDict(), NODE))[0]["error"]
    head, _ = ask(site, "train", {"w": torch.zeros(3)})
    assert "message.w: shape (3,)" in head["error"]


def test_the_model_and_what_it_gained_stay_at_the_site(site, tmp_path):
    w = start(site)
    ask(site, "train", w)
    ask(site, "score", w, base=1)
    for _ in range(2):  # asked twice, told once
        head, parts = ask(site, "personal", w, base=1, copy=True)
        assert "error" not in head
        assert set(parts) == {"metrics"}  # share_model is off
    place = tmp_path / "site" / "models" / "small" / "fedavg" / "seed-0"
    manifest = json.loads((place / "manifest.json").read_text())
    (row,) = manifest["clients"]
    assert manifest["classes"] == [str(k) for k in range(10)]
    assert small.same(load_file(place / row["file"]), site._side("fedavg", 0).task.named(w["w"]))
    assert row["gain"] == pytest.approx(row["final"] - row["local"])
    evidence = read_evidence(place / "evidence.npz", 1, outputs=True)
    assert evidence.scores().tolist() == [row["final"]]
    assert evidence.outputs.shape == (row["n_test"], 10)
    lines = (tmp_path / "site" / "report.csv").read_text().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("run,method,seed,round,client,n_train,n_test,final,local,gain")


def test_a_copy_leaves_only_if_the_site_allows_it(made, site, tmp_path):
    file = tmp_path / "site" / "site.toml"
    file.write_text(file.read_text().replace("share_model = false", "share_model = true"))
    open_ = Site(SiteFolder(tmp_path / "site"), f"npz:{made.path.parent / 'data-1.npz'}")
    w = start(open_)
    assert "personal" not in ask(open_, "personal", w, copy=False)[1]
    assert torch.equal(ask(open_, "personal", w, copy=True)[1]["personal"]["w"], w["w"])


def test_a_module_that_the_experiment_names_is_imported_only_if_the_site_allows_it(
    made, tmp_path, monkeypatch
):
    place = tmp_path / "site"
    shutil.copytree(small.site_path(made.path, 1), place)
    own = tmp_path / "own"
    own.mkdir()
    (own / "server_net.py").write_text(
        "from pathlib import Path\nfrom pgfed.model.networks import MLP as Net\n"
        "Path(__file__).with_suffix('.ran').touch()\n"
    )
    monkeypatch.syspath_prepend(own)
    data = f"npz:{made.path.parent / 'data-1.npz'}"
    text = (place / "experiment.toml").read_text()
    for key, named in (("methods", '"fedavg"'), ("model.name", '"mlp"')):
        assert named in text
        (place / "experiment.toml").write_text(text.replace(named, '"server_net:Net"', 1))
        with pytest.raises(UserError, match=f"experiment.toml: {key}: 'server_net:Net'") as error:
            Site(SiteFolder(place), data)
        assert 'allow_modules = ["server_net"] in ' in str(error.value)
        assert not (own / "server_net.ran").exists()
    file = place / "site.toml"
    allowing = file.read_text().replace("allow_modules = []", 'allow_modules = ["server_net"]')
    file.write_text(allowing)
    site = Site(SiteFolder(place), data)
    start(site)
    assert (own / "server_net.ran").exists()


def test_nothing_in_the_sites_folder_is_imported(made, tmp_path):
    """It is started there by start.sh."""
    place = tmp_path / "site"
    shutil.copytree(small.site_path(made.path, 1), place)
    for name in ("tomli_w", "json", "httpx"):
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pgfed", "federation", "site", ".", "--data", "npz:site.toml"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "site.toml" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "disk full at site-01"), (errno.EIO, "Input/output error at the site")],
)
def test_a_disk_that_fails_is_named_and_no_path_is_told(site, monkeypatch, caplog, number, said):
    def fail(self, round, state):
        raise OSError(number, os.strerror(number), "/secret/place")

    monkeypatch.setattr(States, "save", fail)
    head, parts = ask(site, "train", start(site))
    assert said in head["error"]
    assert "secret" not in head["error"]
    assert "/secret/place" in caplog.text
    assert not parts


def test_states_name_their_checksum(tmp_path):
    states = States(tmp_path / "s")
    assert states.lost
    states.save(3, {"w": torch.arange(3.0), "n": 2})
    assert not states.lost
    assert small.same(states.load(3), {"w": torch.arange(3.0), "n": 2})


# -- data --------------------------------------------------------------------------------------


def refused(made, data: str) -> str:
    with pytest.raises(UserError) as error:
        Site(small.site_folder(made, 0), data)
    return str(error.value)


def test_data_that_does_not_fit_the_agreement(made, tmp_path):
    x = np.zeros((6, 8, 8), dtype=np.uint8)
    y = np.array([0, 1, 2, 3, 4, 9])

    def save(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return f"npz:{tmp_path / name}"

    assert "class: unknown '10'" in refused(made, save("a.npz", x=x, y=y + 1))
    assert "holds 9x9 grey images (uint8); expected: 8x8 grey images (uint8)" in refused(
        made, save("b.npz", x=np.zeros((6, 9, 9), "u1"), y=y)
    )
    assert "holds 8x8 grey images (float32)" in refused(made, save("c.npz", x=x.astype("f4"), y=y))
    assert "y has type float64" in refused(made, save("d.npz", x=x, y=y * 1.0))
    assert "npz:PATH, folder:PATH, csv:PATH" in refused(made, "digits")
    assert "does not exist" in refused(made, f"npz:{tmp_path / 'none.npz'}")
    names = np.array([f"digit {k}" for k in range(10)])
    assert "class: unknown 'digit 0'" in refused(made, save("e.npz", x=x, y=y, class_names=names))


def test_one_class_is_enough_for_a_site(made, tmp_path):
    x = np.zeros((8, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", x=x, y=np.full(8, 7))
    site = Site(small.site_folder(made, 0), f"npz:{tmp_path / 'one.npz'}")
    assert set(site.federation.y.tolist()) == {7}
    assert site.federation.class_names == tuple(map(str, range(10)))


def test_folders_of_images_by_class_name(tmp_path):
    from PIL import Image

    making.init(
        tmp_path / "f",
        sites=1,
        experiment=None,
        server="127.0.0.1:9",
        classes=["cat", "dog", "owl"],
        shape=[3, 8, 8],
        insecure=False,
        with_keys=True,
    )
    for k, name in enumerate(("dog", "owl")):  # this site has no cats
        (tmp_path / "images" / name).mkdir(parents=True)
        for n in range(4):
            Image.new("RGB", (10, 10), (60 * k, n, 0)).save(tmp_path / "images" / name / f"{n}.png")
    place = SiteFolder(tmp_path / "f" / "sites" / "site-00")
    site = Site(place, f"folder:{tmp_path / 'images'}")
    assert sorted(set(site.federation.y.tolist())) == [1, 2]
    assert site.federation.input_shape == (3, 8, 8)


def test_every_site_trains_alone_as_in_simulation(made, site):
    """`local` alongside has the bits of `local` by itself."""
    w = start(site)
    base = 0
    for round in range(1, 6):
        assert 1 in draw_cohort(0, round, 3, 3)
        ask(site, "train", w, round=round, base=base)
        base = round
    run = small.serial(made, "local")
    (scores,) = (ask(site, "score", w, round=5, base=5)[1]["alone"],)
    assert scores["test_score"] == run.score[1]
    assert scores["test_loss"] / scores["test_n"] == run.loss[1]


def test_a_site_with_other_frozen_values_is_refused(made, site):
    experiment, _ = load_experiment(made.experiment_file)
    agreed = digest(made.agreement, experiment)
    content = {"stage": "hello", "run": RUN, "nonce": "n", "digest": agreed}
    head, _ = unpack(site.answer(pack({**content, "frozen": "0" * 64}), NODE))
    assert "frozen values are others here" in head["error"]


class Asking:
    """A connection on which there is always one more message."""

    node = 1000

    def __init__(self) -> None:
        self.answered = 0

    def come(self) -> None:
        pass

    def receive(self, seconds: float, most: int) -> Message:
        return Message(pack({"stage": "hello"}), dst_node_id=1, message_type=MESSAGE, ttl=60)

    def answer(self, reply: Message) -> None:
        self.answered += 1
        assert self.answered < 10, "it goes on"

    def go(self) -> None:
        pass


@pytest.mark.parametrize("lost", [False, True])
def test_a_site_that_is_told_to_stop_at_its_work_stops(site, monkeypatch, lost):
    """What it does then has not failed; and it stops even where the exception got lost."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def told(head, parts, node):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            if not lost:
                raise
        return {}, {}

    monkeypatch.setattr(site, "_hello", told)
    monkeypatch.setattr(site, "_note", lambda *words: None)
    fleet, before = Asking(), signal.getsignal(signal.SIGTERM)
    with process._stoppable() as stopping:
        process.Attendance(site, fleet, lambda text: None, stopping).go_on()
    assert stopping.is_set()
    assert fleet.answered == lost
    assert signal.getsignal(signal.SIGTERM) is before
