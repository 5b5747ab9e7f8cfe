"""More ways round a ledger: another place for it, counts taken twice, budgets and ends that were
lost, what a class says of itself, a disk that is full."""

from __future__ import annotations

import errno
import hashlib
import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from federation import small
from federation.test_ledger import EPSILON, error, kinds, ledger, lines, private
from federation.test_private_answers import END, opened, placed, trained
from federation.test_site import ask, greet, start
from pgfed.cli import privacy as command
from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder, SiteFolder
from pgfed.federation.site import house, states
from pgfed.federation.site import ledger as ledgers
from pgfed.federation.site.answers import Site
from pgfed.federation.site.house import FAILED
from pgfed.federation.site.ledger import Ledger
from pgfed.methods import ClientInfo, Message, Rng, State, Task, Update, sgd
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.local import Local
from pgfed.results.kept import manifest as manifests


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> FederationFolder:
    place = tmp_path_factory.mktemp("federation")
    return small.make(place, methods=["local", "fedavg"], cohort=1.0, rounds=2)


@pytest.fixture
def folder(made, tmp_path) -> Path:
    return placed(made, tmp_path)


# -- another ledger for the same records -------------------------------------------------------


def test_who_comes_without_the_place_of_the_ledger_is_told_of_it(folder, tmp_path):
    """The first federation has its ledger elsewhere; a second on the same data knows nothing."""
    private(folder, EPSILON + 'ledger = "../books"\n')
    trained(opened(folder), 1)
    second = tmp_path / "second"
    shutil.copytree(folder, second, ignore=shutil.ignore_patterns("state"))
    for table in (EPSILON, EPSILON + 'ledger = "../others"\n', ""):
        private(second, table)
        with pytest.raises(UserError, match=r"books holds a ledger of these records; name that"):
            opened(second)
    private(second, EPSILON + 'ledger = "../books"\n')
    site = opened(second)
    assert "answered, to another" in error(ask(site, "train", {"w": start(site)["w"] * 2}))


def test_a_part_of_the_records_has_no_budget_of_its_own(folder):
    """A folder around the data, or within it, is the same data."""
    file = SiteFolder(folder)
    around = folder.parent.with_name(f"{folder.parent.name}.privacy")
    within = folder.parent / "data-1.npz" / "inner.privacy"
    for other in (around, within):
        data = folder.parent / "data-1.npz"
        if other is within:  # a data set of files
            data.unlink()
        other.mkdir(parents=True)
        (other / ledgers.FILE).write_text("")
        with pytest.raises(UserError, match="hold the same records, which have one budget"):
            ledgers.ledger_of(file, f"npz:{data}")
        shutil.rmtree(other)


def test_next_years_file_of_the_same_records_opens_no_new_budget(folder):
    """Under another name: this site's folder remembers its ledger, and a key names it."""
    trained(opened(folder), 1)
    shutil.copy(folder.parent / "data-1.npz", folder.parent / "data-2.npz")
    with pytest.raises(UserError, match=r"was the data moved without data-2\.npz\.privacy"):
        opened(folder, "data-2.npz")
    private(folder, EPSILON + 'ledger = "../data-1.npz.privacy"\n')
    site = opened(folder, "data-2.npz")
    assert "answered, to another" in error(ask(site, "train", {"w": start(site)["w"] * 2}))
    assert not (folder.parent / "data-2.npz.privacy" / ledgers.FILE).exists()
    private(folder, EPSILON)  # whoever comes without the key is told of it from now on
    with pytest.raises(UserError, match=r"data-1\.npz\.privacy holds a ledger of these records"):
        opened(folder, "data-2.npz")


# -- class counts ------------------------------------------------------------------------------


def test_two_processes_tell_one_count_of_classes(tmp_path):
    """Both have drawn noisy counts when the first one's leave: the second draws no others."""
    frame = {"frame": "serving"}
    made = small.make(tmp_path, methods=["fedavg", "fedprox"], cohort=1.0, rounds=2, personal=frame)
    folder = placed(made, tmp_path / "own")
    one, two = opened(folder), opened(folder)
    message = {**start(one), "personal.counts": 1}
    found: list[Any] = []
    answer = two._private.answer

    def meanwhile(place, base, asked, compute):
        def slow(protection):
            done = compute(protection)
            found.append(ask(one, "train", message)[1]["update"]["personal.counts"])
            return done

        return answer(place, base, asked, slow)

    two._private.answer = meanwhile
    told = error(ask(two, "train", message, method="fedprox"))
    assert "class counts were released meanwhile" in told
    two._private.answer = answer
    _, parts = ask(two, "train", message, method="fedprox")
    assert torch.equal(parts["update"]["personal.counts"], found[0])
    assert kinds(folder).count("once") == 1


# -- what was lost -----------------------------------------------------------------------------


def test_a_budget_that_was_lost_with_the_ledger_is_not_given_again(folder):
    opened(folder)
    backup = ledger(folder).read_bytes()
    command.open_(folder, epsilon=20.0, delta=5e-3, reason="agreed in March")
    private(folder, EPSILON.replace("6.0", "20.0").replace("1e-3", "5e-3"))
    trained(opened(folder), 1)
    assert lines(folder)[-2]["epsilon"] > 15
    ledger(folder).write_bytes(backup)
    command.repair(folder, reason="a new disk")
    command.open_(folder, epsilon=20.0, delta=5e-3, reason="as it was")
    site, run = opened(folder), secrets.token_hex(16)
    greet(site, run=run)
    assert "used up" in error(ask(site, "train", start(site), run=run))


def test_a_repair_satisfies_a_server_that_knew_more(folder):
    """It counted as spent all that this server had seen; a loss after it is found out again."""
    site = opened(folder)
    old = ledger(folder).read_bytes(), (folder / "state" / "ledger.json").read_bytes()
    head, _ = ask(site, "train", start(site))
    back = placed_back(folder, old)
    assert "older than the server" in greet(back, ledger=head["ledger"])["error"]
    command.repair(folder, reason="a new disk")
    command.open_(folder, epsilon=12.0, delta=2e-3, reason="agreed in May")
    private(folder, EPSILON.replace("6.0", "12.0").replace("1e-3", "2e-3"))
    after, run = opened(folder), secrets.token_hex(16)
    assert "error" not in greet(after, run=run, ledger=head["ledger"])
    again = ledger(folder).read_bytes(), (folder / "state" / "ledger.json").read_bytes()
    later, parts = ask(after, "train", start(after), run=run)
    assert parts
    assert int(later["ledger"].split()[0]) > int(head["ledger"].split()[0])
    back = placed_back(folder, again)
    assert "older than the server" in greet(back, run=run, ledger=later["ledger"])["error"]


def placed_back(folder: Path, old: tuple[bytes, bytes]) -> Site:
    """Ledger and the note of its length, as they were."""
    ledger(folder).write_bytes(old[0])
    (folder / "state" / "ledger.json").write_bytes(old[1])
    return opened(folder)


# -- what a class says of itself ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tunes(FedAvg):
    """FedAvg that is fine-tuned in the end: "covered" is its parent's word."""

    name = "tunes"

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return sgd(task, public["w"], data, rng, self.train)[0]


@dataclass(frozen=True, kw_only=True)
class TunesLater(Tunes):
    """Behaves in the dry run."""

    name = "tunes-later"

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public["w"]
        return super().personal_model(task, state, public, data, rng) if rng.round == 2 else w


@dataclass(frozen=True, kw_only=True)
class SendsNothing(Local):
    """Says that nothing of it leaves, so that nothing is charged; and is asked to share."""

    name = "sends-nothing"

    def share(self, state: State, client: ClientInfo) -> Update:
        return {"w": state["w"], "n": client.n}


def own(tmp_path: Path, cls: type, table: str = EPSILON, **changes: Any) -> Path:
    name = f"{__name__}:{cls.__name__}"
    made = small.make(tmp_path, methods=[name], cohort=1.0, rounds=2, **changes)
    folder = placed(made, tmp_path / "own", table)
    file = folder / "site.toml"
    text = file.read_text().replace("share_model = false", "share_model = true")
    text = text.replace("allow_modules = []", f'allow_modules = ["{__name__}"]')
    file.write_text(text)
    return folder


def test_a_model_of_samples_is_not_covered_because_its_class_says_so(tmp_path):
    folder = own(tmp_path, Tunes)
    with pytest.raises(UserError, match="makes it of samples in personal_model; say covered"):
        opened(folder)
    assert not ledger(folder).exists(), "refused, and a ledger is open"


def test_a_class_that_deceives_the_dry_run_gives_no_model_and_no_score(tmp_path):
    folder = own(tmp_path, TunesLater, END)
    site = opened(folder)
    (name,) = (m for m in site.methods if m != "local")
    begin = {"w": site._side(name, 0).w0}
    for t in (1, 2):
        assert ask(site, "train", begin, method=name, round=t, base=t - 1, alone=False)[1]
    asked = {"method": name, "base": 2, "round": 2, "alone": False}
    assert ask(site, "personal", begin, copy=True, **asked)[1] == {}
    assert error(ask(site, "score", begin, **asked)) == FAILED
    assert "score" not in kinds(folder)


def test_a_class_that_is_not_charged_shares_nothing(tmp_path):
    """It is trained on exact gradients: its model must not leave by another door."""
    folder = own(tmp_path, SendsNothing)
    site = opened(folder)
    (name,) = (m for m in site.methods if m != "local")
    for method in (name, "local"):
        asked = {"method": method, "alone": False}
        assert "error" not in ask(site, "train", {}, **asked)[0]
        told = error(ask(site, "share", {}, base=1, round=2, **asked))
        assert told in ("of this method nothing is shared after the last round", FAILED)
        assert ask(site, "personal", {}, base=1, copy=True, **asked)[1] == {}
    assert kinds(folder) == ["open"]


@dataclass(frozen=True, kw_only=True)
class OnlyAFrame(Local):
    """Sends no model; but the engine asks for class counts, to correct a global one."""

    name = "only-a-frame"
    role = "method"
    personal_from = "global"

    def public(self, server: State) -> Message:
        return {"w": server["w0"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public["w"]
        return w


def test_class_counts_are_charged_where_nothing_else_leaves(tmp_path):
    folder = own(tmp_path, OnlyAFrame, personal={"frame": "serving"})
    site = opened(folder)
    (name,) = (m for m in site.methods if m != "local")
    _, parts = ask(site, "train", {"personal.counts": 1}, method=name, alone=False)
    told = parts["update"]["personal.counts"]
    assert not torch.equal(told, site.federation.train(1).class_counts(len(told)).float())
    assert kinds(folder) == ["open", "plan", "once", "charge"]


# -- the rest of what leaves -------------------------------------------------------------------


def test_how_the_ledger_ends_tells_nothing_of_what_is_exact_at_home(tmp_path):
    """Ditto's own part follows from records and messages alone: whoever guesses the records can
    compute the state, its hash, and the ledger's line with it; all else in the line is known."""
    train = {**small.EXPERIMENT["train"], "reset_momentum": True}
    made = small.make(tmp_path, methods=["ditto"], cohort=1.0, rounds=2, train=train)
    truth, guess = (placed(made, tmp_path / name) for name in ("truth", "guess"))
    heads = []
    for folder in (truth, guess):
        site = opened(folder)
        begin = {"w": site._side("ditto", 0).w0}
        heads.append(ask(site, "train", begin, method="ditto", alone=False)[0])
    charge, guessed = lines(truth)[-1], lines(guess)[-1]
    assert charge["state"] == guessed["state"], "the test needs a guess that can be right"
    line = {**charge, "state": guessed["state"]}
    _, end = heads[0]["ledger"].split()
    assert end != hashlib.sha256(ledgers.canonical(line)).hexdigest()
    assert end != heads[1]["ledger"].split()[1]
    assert lines(truth)[0]["id"] not in str(heads[0]), "the key has left"


def test_no_time_is_told_of_a_method_that_sends_nothing(folder):
    site = opened(folder)
    head, _ = ask(site, "train", {}, method="local", alone=False)
    assert head["seconds"] == 0.0


def test_a_covered_model_leaves_whatever_becomes_of_it_at_home(folder, monkeypatch):
    """Else its absence would tell that something of the records' made it fail."""
    file = folder / "site.toml"
    file.write_text(file.read_text().replace("share_model = false", "share_model = true"))
    site = opened(folder)
    trained(site)

    def fail(*_: object, **__: object) -> None:
        raise UserError("patient 17 is 212 cm tall")

    monkeypatch.setattr("pgfed.federation.site.keeping.Model.write", fail)
    _, parts = ask(site, "personal", start(site), base=2, round=2, copy=True)
    assert parts.keys() == {"personal"}


def test_noise_of_scores_that_no_run_may_spend_is_refused(made, tmp_path):
    table = "epsilon = 6.0\ndelta = 1e-3\nrun_epsilon = 0.2\nnoise_multiplier = 0.9\n"
    folder = placed(made, tmp_path, table + 'scores = "end"\n')
    site = opened(folder)
    assert "more than a run may spend" in error(ask(site, "train", start(site)))
    assert kinds(folder) == ["open"]


def test_a_declared_number_of_test_units_stays(folder):
    opened(folder)
    private(folder, EPSILON + "size_test = 7\n")
    with pytest.raises(UserError, match=r"privacy\.size_test: found 7, and the ledger was opened"):
        opened(folder)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("run_epsilon = 7.0\n", r"privacy\.run_epsilon: found 7; allowed: up to privacy\.epsilon"),
        ('without = ["fedavg"]\n', r"privacy\.without: is for simulations"),
    ],
)
def test_a_key_that_a_site_cannot_have_is_refused(folder, key, named):
    private(folder, EPSILON + key)
    with pytest.raises(UserError, match=named):
        opened(folder)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"delta": 1e-4}, "--epsilon: missing"),
        ({"epsilon": 9.0}, "--reason: missing"),
        ({"epsilon": 9.0, "reason": "agreed"}, "no ledger is open; `pgfed privacy open`"),
    ],
)
def test_a_command_that_is_refused_makes_nothing(folder, arguments, named):
    for call in (command.ledger, command.repair):
        with pytest.raises(UserError):
            call(folder)
    with pytest.raises(UserError, match=named):
        command.open_(folder, **arguments)
    assert not ledger(folder).parent.exists()


def test_what_is_agreed_to_says_what_leaves_under_privacy(folder):
    def asked() -> str:
        place = SiteFolder(folder)
        site = Site(place, f"npz:{folder.parent / 'data-1.npz'}")
        return "\n".join(house.asks(place, site.experiment, site.methods))

    said = asked()
    assert "a run may spend epsilon 6, delta 0.001" in said
    assert "the declared number of records; no scores; versions" in said
    private(folder, END + "run_epsilon = 2.0\n")
    assert "epsilon 2 of 6" in asked()
    assert "noisy and charged, accuracy" in asked()
    assert "seconds" not in asked()


def test_what_stays_says_what_privacy_covers(folder):
    """The manifest, for `pgfed export`, and the site's own page."""
    site = opened(folder)
    trained(site)
    ask(site, "score", start(site), base=2, round=2)  # of the model that was trained alone
    ask(site, "personal", start(site), base=2, round=2)
    (place,) = (folder / "models").rglob("manifest.json")
    found = manifests.read(place.parent)
    spent = lines(folder)[1]["epsilon"]
    assert found.promised == f"covered by privacy: epsilon {spent}, delta 0.001, per record"
    open_to_all = found.model_copy(update={"privacy": {**found.privacy, "covered": False}})
    assert "may reveal training records" in open_to_all.promised
    assert found.model_copy(update={"privacy": None}).promised is None
    assert "who publishes them" in (folder / "report.html").read_text()


# -- a full disk -------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["state", "outbox", "ledger", "note", "record"])
def test_a_disk_that_is_full_lets_nothing_out_that_is_not_charged(folder, at, monkeypatch):
    """At each step of an answer; with room again the run goes on, and the round is charged once."""
    site = opened(folder)
    greet(site)
    with monkeypatch.context() as patch:
        _full(patch, at, ledger(folder))
        told = error(ask(site, "train", start(site)))
    assert told == FAILED
    site = opened(folder)  # which cuts off half a line
    assert kinds(folder).count("charge") == (at in ("note", "record"))
    _, parts = ask(site, "train", start(site))
    assert kinds(folder).count("charge") == 1
    sent = json.loads(ledger(folder).read_text().splitlines()[-1])["sent"]
    assert (ledger(folder).parent / ledgers.OUTBOX / f"{sent}.safetensors").is_file()
    assert parts


def _full(patch: pytest.MonkeyPatch, at: str, file: Path) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if at == "state":
        patch.setattr(states, "write_atomic", no_room)
    if at == "outbox":
        patch.setattr(Ledger, "put", no_room)
    if at == "note":
        write = ledgers.write_atomic

        def later(path: Path, data: Any) -> None:
            if path.name == ledgers.NOTE and '"kind":"charge"' in file.read_text():
                no_room()
            write(path, data)

        patch.setattr(ledgers, "write_atomic", later)
    if at == "record":
        patch.setattr("pgfed.federation.site.record._write", no_room)
    if at == "ledger":
        append = Ledger.append

        def half(self: Ledger, entries: Any, kind: str, **content: Any) -> None:
            if kind == "charge":
                with file.open("ab") as torn:
                    torn.write(b'{"asked":')
                no_room()
            append(self, entries, kind, **content)

        patch.setattr(Ledger, "append", half)
