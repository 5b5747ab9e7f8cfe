"""Which round's models are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small_runs
from cli.cli_tools import blobs
from pgfed.api import run_setup
from pgfed.config.experiment import from_dict
from pgfed.engine.rounds import Run
from pgfed.engine.setup import prepare
from pgfed.errors import UserError
from pgfed.results.progress import progress_for

ROUNDS = 7


def options(**changed: Any) -> dict[str, Any]:
    # Steps that are too long: accuracy goes up and down.
    given = {"rounds": ROUNDS, "clients": 5, "cohort": 0.4, "epochs": 1, "lr": 1.0, "alpha": 1.0}
    given |= {"min_samples": 10, "validation_share": 0.3, "backend": "serial", "seeds": [1]}
    given |= {"stratify": False}
    return given | changed


def arrays() -> tuple[np.ndarray, np.ndarray]:
    data = blobs(300, classes=6, features=8)
    return data["x"] + np.random.default_rng(3).normal(0, 0.6, data["x"].shape), data["y"]


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "models/manifest.json").read_text())
    return found


@pytest.mark.parametrize("method", ["fedavg", "pgfed"])
def test_best_is_the_best_on_validation_data(method: str, tmp_path: Path) -> None:
    best = small_runs.run(
        arrays(), methods=[method], keep="best", out=tmp_path / "best", **options()
    )
    seed = tmp_path / f"best/{method}/seed-1"
    history = [json.loads(line) for line in (seed / "history.jsonl").read_text().splitlines()]
    validation = [record["mean_validation_score"] for record in history]
    kept = manifest(seed)
    assert (kept["kept"], kept["round"]) == ("best", 1 + int(np.argmax(validation)))
    assert kept["round"] < ROUNDS, "the last round is the best: choose other data"
    assert {path.name for path in seed.iterdir()} - {"alpha.npz"} == {
        *("clients.csv", "evidence.npz", "history.jsonl", "models")
    }
    # They are, to the bit, the models of a run that ends with that round.
    small_runs.run(
        arrays(), methods=[method], out=tmp_path / "short", **options(rounds=kept["round"])
    )
    short = manifest(tmp_path / f"short/{method}/seed-1")
    assert short["kept"] == "last"
    assert short["global"] == kept["global"]
    for ours, theirs in zip(kept["clients"], short["clients"], strict=True):
        for key in ("sha256", "score", "loss", "n_train"):
            assert ours[key] == theirs[key], key
        assert ours["score"] == theirs["final"]
    assert any(c["score"] != c["final"] for c in kept["clients"])
    # Without a folder the same models are kept in memory.
    memory = small_runs.run(arrays(), methods=[method], keep="best", **options())
    for client in range(5):
        state = memory.model(client, method).state_dict()
        for name, value in best.model(client, method).state_dict().items():
            assert torch.equal(state[name], value)


def test_a_method_with_one_result_keeps_its_last(tmp_path: Path) -> None:
    small_runs.run(
        arrays(), methods=["fedbabu"], keep="best", out=tmp_path / "run", **options(rounds=3)
    )
    assert manifest(tmp_path / "run/fedbabu/seed-1")["round"] == 3


def test_models_that_are_not_kept_are_not_written_on_the_way(tmp_path: Path) -> None:
    small_runs.run(
        arrays(),
        methods=["fedavg"],
        keep="best",
        models="last",
        out=tmp_path / "run",
        **options(rounds=2, seeds=[1, 2]),
    )
    assert [p.parent.name for p in (tmp_path / "run").rglob("models*")] == ["seed-2"]


def test_best_without_validation_data_is_one_line(pgfed: Any, tmp_path: Path) -> None:
    done = pgfed("run", "--keep", "best", "--set", "data.clients=4")
    assert done.code == 2
    assert "output.keep" in done.line
    assert "data.validation_share" in done.line
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="'last', 'best'"):
        small_runs.run(arrays(), keep="first")


def test_interrupted_is_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"data": {"clients": 4, "validation_share": 0.3}, "methods": ["pgfed"], "rounds": 6}
    content |= {"output": {"keep": "best"}, "engine": {"backend": "serial"}, "train": {"lr": 0.5}}
    setup = prepare(from_dict(content), tmp_path)

    def go(name: str, *, resume: bool = False) -> dict[str, Any]:
        with progress_for(sys.stderr, 1, 6, quiet=True) as progress:
            run_setup(setup, tmp_path / name, progress, resume=resume)
        return manifest(tmp_path / name / "pgfed/seed-0")

    whole = go("whole")
    step = Run.step

    def fail(run: Run) -> dict[str, Any]:
        if run.round == whole["round"]:
            raise KeyboardInterrupt
        return step(run)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "step", fail)
        with pytest.raises(KeyboardInterrupt):
            go("cut")
    seed = tmp_path / "cut/pgfed/seed-0"
    (best,) = seed.glob("models-round-*")
    assert best.name == f"models-round-{whole['round']:06}"
    # The checkpoint of that round is lost: it is run again, over the models that are there.
    (seed / f"checkpoint/round-{whole['round']:06}.json").unlink(missing_ok=True)
    (best / "manifest.json").unlink()
    assert go("cut", resume=True) == whole
    assert not list(seed.glob("models-round-*"))
