"""A model whose training diverged is named, and never answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import pgfed as package
from cli.cli_tools import Done
from pgfed.api import Result
from pgfed.engine.storage.durable import sha256
from pgfed.errors import UserError
from takehome.pictures import pictures

Command = Callable[..., Done]
Grey = tuple[Path, Result]

SAYS = "holds NaN or infinite values: its training diverged (lower train.lr)"


def spoil(models: Path, file: str, value: float) -> Path:
    """One number of a model, and the checksum, as a diverged run writes them."""
    values = load_file(models / file)
    next(v for v in values.values() if v.is_floating_point()).view(-1)[0] = value
    save_file(values, models / file)
    place = models / "manifest.json"
    manifest = json.loads(place.read_text())
    for row in [manifest["global"], *manifest["clients"]]:
        if row["file"] == file:
            row["sha256"] = sha256((models / file).read_bytes())
    place.write_text(json.dumps(manifest))
    return models / file


@pytest.fixture
def run(grey: Grey, tmp_path: Path) -> Path:
    shutil.copytree(grey[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_predict_export_and_load_refuse_it(run: Path, pgfed: Command, value: float) -> None:
    file = spoil(run / "pgfed/seed-0/models", "client-0001.safetensors", value)
    np.save("x.npy", pictures(3)[0])
    for words in (["predict", file, "x.npy"], ["export", file, "--format", "torch"]):
        done = pgfed(*words)
        assert (done.code, done.out) == (2, "")
        assert done.line == f"pgfed: pgfed's model of client 1 {SAYS}"
    assert not Path("client-0001.pt2").exists()
    with pytest.raises(UserError, match="pgfed's model of client 1 holds NaN"):
        package.load(run, 1, method="pgfed")


def test_onboard_refuses_a_global_one(run: Path, pgfed: Command) -> None:
    spoil(run / "fedavg/seed-0/models", "global.safetensors", float("nan"))
    x, y, _ = pictures(60, seed=3)
    np.savez("new.npz", x=x, y=y, class_names=np.array(["up", "down", "no"]))
    words = ["onboard", run, "--data", "npz:new.npz", "--epochs", 1, "--out", "new"]
    assert pgfed(*words).line == f"pgfed: fedavg's global model {SAYS}"
    assert not Path("new").exists()
    assert pgfed(*words, "--method", "pgfed").code == 0


def test_evaluate_leaves_it_out(run: Path, pgfed: Command) -> None:
    spoil(run / "local/seed-0/models", "client-0001.safetensors", float("nan"))
    done = pgfed("evaluate", run, "--client", 1, "--json")
    assert done.code == 0
    assert done.line == f"pgfed: left out: local's model of client 1 {SAYS}"
    found = json.loads(done.out)
    assert found["left_out"] == [f"local's model of client 1 {SAYS}"]
    names = [(row["method"], row["model"]) for row in found["models"]]
    assert names == [(m, kind) for m in ("fedavg", "pgfed") for kind in ("personal", "global")]
    whole = json.loads(pgfed("evaluate", run, "--client", 2, "--json").out)
    assert whole["left_out"] == []


def test_evaluate_where_only_global_models_are_left(run: Path, pgfed: Command) -> None:
    for method in ("local", "fedavg", "pgfed"):
        spoil(run / method / "seed-0/models", "client-0001.safetensors", float("nan"))
    done = pgfed("evaluate", run, "--client", 1)
    assert done.code == 0
    assert done.out.startswith("client 1, seed 0: ")
    assert len(done.err.splitlines()) == 3
    done = pgfed("evaluate", run, "--client", 1, "--method", "local")
    assert done.code == 2
    assert done.line == f"pgfed: local's model of client 1 {SAYS}"
