"""Class shares put on the models of a finished run: as if it had run with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import pgfed as package
from pgfed.cli.app import main
from pgfed.results.folder.reader import load
from pgfed.results.kept.models import kept_models
from pgfed.takehome.personalize import personalize

SETTINGS = {
    "rounds": 3,
    "cohort": 1.0,
    "data": {"dataset": "digits", "clients": 8, "test_share": 0.5},
    "train": {"lr": 0.02, "epochs": 1},
    "engine": {"backend": "serial"},
}


def run(folder: Path, **content: object) -> Path:
    file = folder / "experiment.toml"
    file.write_text(tomli_w.dumps({"format": 2, **SETTINGS, **content}))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--out", str(folder / "run"), "--quiet"])
    assert ended.value.code == 0
    return folder / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("personalize")
    return run(folder, methods=["fedavg", "fedavg-local", "fedper"])


def test_it_is_the_run_with_a_serving_frame(finished: Path, tmp_path: Path) -> None:
    found = personalize(load(finished), method=None, seed=None, blend=0.5, data_root=tmp_path)
    assert [m.method for m in found.methods] == ["fedavg", "fedavg-local"]
    assert found.left_out == {"fedper": "its classifier is each client's own"}
    how = {"fedavg-local": {"personal": {"blend": 0.5}}}
    methods = ["fedavg", "fedavg-local"]
    ran = run(tmp_path, methods=methods, method=how, personal={"frame": "serving"})
    for made in found.methods:
        kept = kept_models(ran, made.method, 0).personal(0)
        again = found.task.named(made.models[0])
        for name, value in kept.items():
            assert np.allclose(value.numpy(), again[name].numpy(), atol=1e-5)


def test_the_command_writes_models_that_can_be_used(finished: Path, pgfed, tmp_path: Path) -> None:
    out = tmp_path / "new"
    told = json.loads(pgfed("personalize", finished, "--out", out, "--json").out)
    assert [row["method"] for row in told["methods"]] == ["fedavg", "fedavg-local"]
    models = out / "fedavg" / "seed-0" / "models"
    about = json.loads((models / "manifest.json").read_text())
    assert about["hyperparameters"]["personal"]["frame"] == "serving"
    assert len(about["class_shares"]) == 10
    assert package.load(models / about["clients"][0]["file"]) is not None
    shown = pgfed("personalize", finished)
    assert "fedper: left as it is; its classifier is each client's own" in shown.out
    again = pgfed("personalize", finished, "--out", out)
    assert again.code == 2
    assert "is there already" in again.line
