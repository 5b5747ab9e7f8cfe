"""Folders that 0.1 wrote (format 1) stay readable. `format1/` is one, made by 0.1.0:

pgfed run mini.toml --out format1        (three clients, which the data calls 10, 20 and 30)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import pgfed as package
from cli.cli_tools import Done
from pgfed.report.rendering import read
from pgfed.report.tables.results import control
from pgfed.results.folder.reader import load
from pgfed.results.verdict import judge

Command = Callable[..., Done]
HERE = Path(__file__).parent / "format1"
# What 0.1 called the keys of a summary that had another name.
CALLED = {"best_score": "best_accuracy", "final_score": "final_accuracy"}
CALLED |= {"mean_score": "last10_accuracy", "rounds_to_target": "rounds_to_70"}
CALLED |= {"samples_per_second": "images_per_second"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE, tmp_path / "old"))


def test_what_is_read_is_what_it_summed_up(old: Path) -> None:
    result = package.open(old)
    then = json.loads((old / "summary.json").read_text())
    assert [row["method"] for row in result.summary] == [row["method"] for row in then]
    for now, before in zip(result.summary, then, strict=True):
        kept = set(now) - {"metric", "window", "target", "baseline", "kept_score"}
        # 0.1 counted clients by the sign, and gains on the last rounds.
        counted = {"clients_gained", "clients_harmed"}
        assert all(now[key] is None for key in counted)
        assert now["kept_score"] == pytest.approx(now["final_score"])
        kept -= counted | {"gain_mean", "gain_std"}
        before = {k: v for k, v in before.items() if k not in ("clients_harmed",)}
        before = {k: v for k, v in before.items() if not k.startswith("gain_")}
        kept -= {"median_score", "clients_undefined", "metrics"}
        assert (now["metric"], now["clients_undefined"], now["metrics"]) == ("accuracy", 0, {})
        assert {CALLED.get(key, key) for key in kept} == set(before)
        for key in kept:
            assert now[key] == before[CALLED.get(key, key)], key
    assert result.clients("pgfed")["client"].tolist() == ["10", "20", "30"]
    history = result.history("pgfed")
    assert history["mean_score"].notna().all()
    assert {client for cohort in history["cohort"] for client in cohort} <= {0, 1, 2}
    assert result.alpha("pgfed").shape == (3, 3)


def test_its_models(old: Path) -> None:
    result = package.open(old, data_root=old)
    for client in range(3):
        x, y = result.federation.test(client).batch(slice(None))
        model = result.model(client, "pgfed")
        with torch.no_grad():
            score = float((model(x).argmax(1) == y).double().mean())
        assert score == result.clients("pgfed")["final"][client]
    module, about = package.load(old, 1, method="pgfed")
    assert (about["client"], about["id"], about["format"]) == ("20", 1, 2)
    assert about["score"] == result.clients("pgfed")["final"][1]
    same = package.load(old / "pgfed/seed-0/models/client-0001.safetensors")[0]
    assert torch.equal(same.fc1.weight, module.fc1.weight)


def test_its_report(old: Path) -> None:
    (group,) = read([old])
    assert [m.label for m in group.methods] == ["local", "fedbabu", "fedavg-local", "pgfed"]
    assert group.clients.names == ["10", "20", "30"]
    (trial,) = control(group).records()
    assert (trial["method"].text, trial["control"].text) == ("pgfed", "fedavg-local")
    assert group.methods[-1].without == {"mu": 0.0}
    verdict = judge(group)
    assert (verdict.outcome, verdict.comparable) == ("cannot-be-told", False)  # it is short
    gain = group.gain(group.methods[-1])
    assert gain is not None
    assert (gain.known, gain.gained, gain.statements) == (False, None, [None] * 3)
    assert load(old).runs["fedbabu"][0].evidence is None
    assert np.isfinite(group.methods[0].scores("last")).all()


@pytest.mark.parametrize(
    "words",
    [
        ("report", "."),
        ("watch", "."),
        ("evaluate", ".", "--client", 1),
        ("why", ".", "--client", 1),
        ("onboard", ".", "--data", "npz:mini.npz", "--epochs", 1, "--out", "new"),
        ("export", "pgfed/seed-0/models/client-0001.safetensors", "--format", "torch"),
    ],
    ids=lambda words: words[0],
)
def test_every_command(
    old: Path, pgfed: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    monkeypatch.chdir(old)
    monkeypatch.setenv("PGFED_DATA", str(old))
    done = pgfed(*words)
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_it_is_not_gone_on_with_but_can_be_repeated(
    old: Path, pgfed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGFED_DATA", str(old))
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    (old / "pgfed/seed-0/clients.csv").unlink()
    done = pgfed("resume", old)
    assert done.code == 2
    assert "written by pgfed 0.1" in done.err
    assert f"`pgfed run {old / 'experiment.toml'} --out DIR` repeats it" in done.err
    assert done.err.count("\n") == 1
    done = pgfed("run", old / "experiment.toml", "--out", "again", "--quiet")
    assert (done.code, done.err) == (0, "")
    ours, theirs = package.open("again"), json.loads(before[old / "summary.json"])
    for now, then in zip(ours.summary, theirs, strict=True):
        assert now["best_score"] == then["best_accuracy"]
        assert now["final_score"] == then["final_accuracy"]


def test_its_methods_are_those_of_todays_folders(old: Path, pgfed: Command) -> None:
    """The same experiment under another seed, in a folder of today: one method, two seeds."""
    text = (old / "experiment.toml").read_text().replace("seeds = [\n    0,\n]", "seeds = [1]")
    assert "seeds = [1]" in text
    (old.parent / "again.toml").write_text(text)
    done = pgfed("run", str(old.parent / "again.toml"), "--out", str(old.parent / "new"),
                 "--set", f"data.dataset=npz:{old / 'mini.npz'}")  # fmt: skip
    assert done.code == 0, done.err
    (group,) = read([old, old.parent / "new"])
    assert [(m.label, m.seeds) for m in group.methods if m.name == "pgfed"] == [("pgfed", [0, 1])]
    (method,) = [m for m in group.methods if m.name == "pgfed"]
    control = group.control(method)
    assert control is not None
    assert (control.label, control.seeds) == ("fedavg-local", [0, 1])


def test_a_folder_given_twice_is_refused(old: Path, pgfed: Command) -> None:
    done = pgfed("report", str(old), str(old), "--format", "md")
    assert done.code == 2
    assert "given twice" in done.err
