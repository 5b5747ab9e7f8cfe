"""What a site with privacy tells, stage by stage: charged, declared, or nothing at all."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from federation import small
from federation.test_ledger import EPSILON, error, kinds, ledger, lines, private
from federation.test_site import RUN, ask, greet, start
from pgfed.cli import privacy as command
from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder, SiteFolder
from pgfed.federation.site import ledger as ledgers
from pgfed.federation.site.answers import Site
from pgfed.federation.site.house import FAILED
from pgfed.federation.site.ledger import Ledger

END = EPSILON + 'scores = "end"\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> FederationFolder:
    place = tmp_path_factory.mktemp("federation")
    methods = ["local", "fedavg", "ditto"]
    return small.make(place, methods=methods, cohort=1.0, rounds=2)


def placed(made: FederationFolder, at: Path, table: str = EPSILON) -> Path:
    """Site 1 and its data in a place of their own."""
    shutil.copytree(small.site_path(made.path, 1), at / "site")
    shutil.copy(made.path.parent / "data-1.npz", at / "data-1.npz")
    private(at / "site", table)
    file = at / "site" / "site.toml"
    file.write_text(file.read_text().replace("../../../data-1", "../data-1"))
    return at / "site"


@pytest.fixture
def folder(made, tmp_path) -> Path:
    return placed(made, tmp_path)


def opened(folder: Path, data: str = "data-1.npz") -> Site:
    site = Site(SiteFolder(folder), f"npz:{folder.parent / data}")
    greet(site)
    return site


def grow(folder: Path) -> None:
    data = folder.parent / "data-1.npz"
    with np.load(data) as found:
        x, y = found["x"], found["y"]
    np.savez(data, x=np.concatenate([x, x[:1]]), y=np.concatenate([y, y[:1]]))


def trained(site: Site, rounds: int = 2, **more: Any) -> None:
    for t in range(1, rounds + 1):
        head, parts = ask(site, "train", start(site), round=t, base=t - 1, **more)
        assert parts, head


# -- greeting ----------------------------------------------------------------------------------


def test_one_more_row_is_not_told(folder):
    before = greet(opened(folder))
    grow(folder)
    after = greet(opened(folder))
    same = ("n_train", "n_test", "data", "privacy", "ledger")
    assert {k: before[k] for k in same} == {k: after[k] for k in same}
    trained(opened(folder), 1)  # a run goes on with data that has grown


def test_consent_tells_of_the_declared_size_alone(folder):
    file = folder / "site.toml"
    file.write_text("min_batch = 10000\n" + file.read_text())
    experiment = folder / "experiment.toml"
    text = experiment.read_text().replace("batch_size = 20", "batch_size = 0")
    experiment.write_text(text)
    site = Site(SiteFolder(folder), f"npz:{folder.parent / 'data-1.npz'}")
    assert "trains in batches of 60;" in greet(site)["error"]
    assert site.federation.n_train[1] != 60


def test_an_old_backup_is_found_out_by_what_the_server_saw(folder):
    """Ledger and site folder were put back together: only the server remembers."""
    site = opened(folder)
    backup = ledger(folder).read_bytes(), (folder / "state" / "ledger.json").read_bytes()
    head, _ = ask(site, "train", start(site))
    assert head["ledger"] == greet(site, ledger=head["ledger"])["ledger"]
    ledger(folder).write_bytes(backup[0])
    (folder / "state" / "ledger.json").write_bytes(backup[1])
    restored = opened(folder)
    told = greet(restored, ledger=head["ledger"])["error"]
    assert "older than the server knows it" in told
    for nonsense in ("7", "9 ff", "x", "999999999999 00"):
        assert "older than the server" in greet(restored, ledger=nonsense)["error"]


# -- scores ------------------------------------------------------------------------------------


def test_scores_leave_once_noisy_and_charged_where_the_site_says_so(made, tmp_path):
    folder = placed(made, tmp_path, END)
    site = opened(folder)
    trained(site)
    assert "withheld" in error(ask(site, "score", start(site), base=1, round=1))
    _, parts = ask(site, "score", start(site), base=2, round=2)
    score = parts["score"]
    assert parts.keys() == {"score"}, "alone's score has left"
    assert kinds(folder).count("score") == 1
    assert lines(folder)[-1]["meter"] == [["scores", 1.0, 1]]
    assert score["test_n"] == greet(site)["n_test"]
    (exact,) = site._side("fedavg", 0).call("score", 1, 2, None, start(site))
    assert score["test_score"] != exact["test_score"]
    # Again, from a new process: the same bytes, free. Of another model: refused.
    assert ask(opened(folder), "score", start(site), base=2, round=2)[1]["score"] == score
    other = {"w": start(site)["w"] * 2}
    assert "answered, to another message" in error(ask(site, "score", other, base=2, round=2))
    # What was trained at home has no score that may leave, with whatever noise.
    for t in (1, 2):
        ask(site, "train", start(site), method="ditto", round=t, base=t - 1)
    told = error(ask(site, "score", {}, method="ditto", base=2, round=2))
    assert "withheld" in told
    assert kinds(folder).count("score") == 1
    plan = next(line for line in lines(folder) if line["kind"] == "plan")
    assert plan["scores"] == ["fedavg"]
    assert plan["noise"].keys() == {"gradient", "scores"}


def test_the_noise_of_scores_is_the_plans(made, tmp_path, monkeypatch):
    """Of a model that is always wrong in a known way: the spread over many answers."""
    site = opened(placed(made, tmp_path, END))
    trained(site)
    own, task = site._private, site._side("fedavg", 0).task
    monkeypatch.setattr(Ledger, "put", lambda *_: "")
    monkeypatch.setattr(own, "_again", lambda *_: None)
    monkeypatch.setattr(own, "_charge", lambda *_, **__: None)
    w = start(site)["w"]
    found = [own.scores((RUN, "fedavg", 0, 2), "", lambda: w, task) for _ in range(300)]
    losses = np.array([one["test_loss"] for one in found])
    plan = next(line for line in own.ledger.locked().__enter__().of("plan"))
    # A sum of vectors (right, loss / L) / sqrt 2 with noise sigma, times sqrt 2 L.
    expected = plan["noise"]["scores"] * np.sqrt(2) * plan["loss_scale"]
    assert losses.std() == pytest.approx(expected, rel=0.2)
    total = task.score(w, site.federation.test(1)).loss
    assert losses.mean() == pytest.approx(total, abs=4 * expected / np.sqrt(300))


def test_scores_that_are_no_sums_are_refused(made, tmp_path):
    folder = placed(made, tmp_path, END)
    experiment = folder / "experiment.toml"
    text = experiment.read_text()
    assert "[task]\n" in text
    experiment.write_text(text.replace("[task]\n", '[task]\nmetric = "auc"\n'))
    with pytest.raises(UserError, match=r"privacy\.scores: found 'end'; auc is no sum"):
        opened(folder)


def test_what_goes_wrong_at_home_is_not_told(folder, monkeypatch):
    site = opened(folder)
    trained(site)
    before = [
        ask(site, "score", start(site), base=2, round=2),
        ask(site, "personal", start(site), base=2, round=2),
    ]

    def fail(*_: object, **__: object) -> None:
        raise UserError("patient 17 is 212 cm tall")

    monkeypatch.setattr("pgfed.federation.site.keeping.Model.write", fail)
    monkeypatch.setattr("pgfed.federation.site.keeping.Alone.write", fail)
    after = [
        ask(site, "score", start(site), base=2, round=2),
        ask(site, "personal", start(site), base=2, round=2),
    ]
    assert after == before
    monkeypatch.setattr("pgfed.engine.client.ClientSide.train", fail)
    assert error(ask(site, "train", start(site), method="ditto")) == FAILED


def test_a_round_is_not_trained_once_more_on_demand(folder):
    """On exact gradients, in the place of what was charged: it would break the run."""
    site = opened(folder)
    trained(site, 1)
    told = error(ask(site, "refresh", start(site), round=1, base=0))
    assert "once more" in told
    trained(site, 2)


def test_a_model_that_is_trained_once_more_stays(tmp_path):
    personal = {"refresh": True}
    made = small.make(tmp_path, methods=["fedavg-local"], cohort=1.0, rounds=2, personal=personal)
    folder = placed(made, tmp_path / "own")
    file = folder / "site.toml"
    file.write_text(file.read_text().replace("share_model = false", "share_model = true"))
    site = opened(folder)
    begin = {"w": site._side("fedavg-local", 0).w0}
    method = {"method": "fedavg-local", "alone": False}
    for t in (1, 2):
        assert ask(site, "train", begin, round=t, base=t - 1, **method)[1]
    charged = kinds(folder)
    assert ask(site, "refresh", begin, round=3, base=2, **method)[1] == {"refresh": {}}
    head, parts = ask(site, "personal", {}, round=2, base=3, copy=True, **method)
    assert "error" not in head
    assert parts == {}, "a model that was trained on exact gradients has left"
    (manifest,) = (folder / "models").rglob("manifest.json")
    assert json.loads(manifest.read_text())["privacy"]["covered"] is False
    assert kinds(folder) == charged


# -- class counts ------------------------------------------------------------------------------


def test_class_counts_are_released_once_for_all_runs(tmp_path):
    frame = {"frame": "serving"}
    made = small.make(tmp_path, methods=["fedavg"], cohort=1.0, rounds=2, personal=frame)
    folder = placed(made, tmp_path / "own", EPSILON + "run_epsilon = 3.0\n")
    site = opened(folder)
    message = {**start(site), "personal.counts": 1}
    _, parts = ask(site, "train", message)
    counts = parts["update"]["personal.counts"]
    exact = site.federation.train(1).class_counts(len(counts)).float()
    assert not torch.equal(counts, exact)
    assert bool((counts >= 1).all())
    assert kinds(folder) == ["open", "plan", "once", "charge"]
    assert ["counts", 1.0, 1] in lines(folder)[-1]["meter"]
    # The next round, and the next run, tell the same numbers, and the run's plan has none of it.
    _, parts = ask(site, "train", message, round=2, base=1)
    assert torch.equal(parts["update"]["personal.counts"], counts)
    run = secrets.token_hex(16)
    greet(site, run=run)
    _, parts = ask(site, "train", message, run=run)
    assert torch.equal(parts["update"]["personal.counts"], counts)
    assert kinds(folder).count("once") == 1
    assert "counts" not in lines(folder)[-2]["noise"]


# -- the ledger --------------------------------------------------------------------------------


def test_after_a_repair_nothing_is_answered_in_older_runs(folder):
    """The backup has the plan, and not what was answered under it."""
    site = opened(folder)
    trained(site, 1)
    backup = ledger(folder).read_bytes()
    trained(site, 2)
    ledger(folder).write_bytes(backup)
    ledgers.repair(Ledger(ledger(folder).parent, folder / "state" / "ledger.json"), "a new disk")
    after = opened(folder)
    told = error(ask(after, "train", {"w": start(after)["w"] * 2}, round=2, base=1))
    assert "repaired after this run's plan" in told
    # What the ledger still knows is told again.
    assert ask(after, "train", start(after), round=1)[1]


def test_a_larger_budget_has_a_larger_delta(folder, capsys):
    """All of delta went to the first run: epsilon alone would be of no use."""
    trained(opened(folder), 1)
    command.open_(folder, epsilon=12.0, reason="agreed in March")
    private(folder, EPSILON.replace("6.0", "12.0"))
    file = folder / "site.toml"
    site = opened(folder)
    run = secrets.token_hex(16)
    greet(site, run=run)
    assert "used up" in error(ask(site, "train", start(site), run=run))
    with pytest.raises(UserError, match=r"privacy\.delta: found 0\.5; allowed: below 1 / size"):
        command.open_(folder, epsilon=12.0, delta=0.5, reason="agreed in March")
    command.open_(folder, epsilon=12.0, delta=2e-3, reason="agreed in March")
    assert "privacy.delta = 0.002" in capsys.readouterr().out
    file.write_text(file.read_text().replace("delta = 1e-3", "delta = 2e-3"))
    assert ask(opened(folder), "train", start(site), run=run)[1]
    plans = [line for line in lines(folder) if line["kind"] == "plan"]
    assert sum(plan["epsilon"] for plan in plans) <= 12
    assert sum(plan["delta"] for plan in plans) <= 2e-3 * (1 + 1e-9)


def test_the_same_data_by_another_name_has_the_same_ledger(folder):
    (folder.parent / "link.npz").symlink_to(folder.parent / "data-1.npz")
    opened(folder)
    other = opened(folder, "link.npz")
    assert other._private.ledger.folder == ledger(folder).parent.resolve()


def test_another_place_for_the_ledger_is_refused_where_there_is_one(folder):
    opened(folder)
    private(folder, EPSILON + 'ledger = "elsewhere"\n')
    with pytest.raises(UserError, match="holds a ledger of these records"):
        opened(folder)
