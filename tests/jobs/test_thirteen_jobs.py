"""The thirteen jobs of docs/your-data.md, each with the commands that stand there."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.cli_tools import Done
from cli.conftest import pgfed as pgfed  # the command line, as a fixture

ROOT = Path(__file__).parents[2]
# What a run is cut down to where the command does not say: two methods, in this process.
QUICK = ["--set", "engine.backend=serial", "--set", "train.epochs=1"]
TWO = ["--set", 'methods=["local", "pgfed"]']

Call = Callable[..., Done]


def block(job: str, language: str = "sh") -> str:
    """The commands below a heading of the page."""
    text = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^### {job}\. .*?(?=^##)", text + "\n## ", re.MULTILINE | re.DOTALL)
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(found)


def do(pgfed: Call, job: str, monkeypatch: pytest.MonkeyPatch) -> list[Done]:
    """Every command of the job, which must succeed; what those of pgfed said."""
    said = []
    for line in block(job).splitlines():
        program, *words = shlex.split(line)
        if program == "python":
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
            continue
        words = [str(ROOT / "examples") if word == "examples" else word for word in words]
        if words[0] == "run":
            words += QUICK + ([] if "methods=" in line else TWO)
        words, into = (words[:-2], words[-1]) if ">" in words else (words, None)
        done = pgfed(*words)
        assert done.code == 0, f"{line}: {done.err}"
        if into is not None:
            Path(into).write_text(done.out)
        said.append(done)
    return said


def clients(run: str, method: str = "pgfed") -> dict[str, dict[str, str]]:
    """The rows of a run's clients.csv by name."""
    with Path(run, method, "seed-0", "clients.csv").open() as file:
        return {row["client"]: row for row in csv.DictReader(file)}


def metric(run: str) -> str:
    return str(json.loads(Path(run, "metric.json").read_text())["name"])


def test_a_images_in_folders(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, told = do(pgfed, "a", monkeypatch)
    assert list(clients("runs/xrays")) == ["east", "north", "south", "west"]
    assert int(clients("runs/xrays")["west"]["n_train"]) < 12
    assert "2 left out" in ran.err
    assert "4 sites in the data, one client each, all of the 4 clients in each round" in ran.err
    assert "west" in told.out
    words = shlex.split(block("a").splitlines()[1])[1:]
    words[words.index("runs/xrays")] = "runs/strict"
    words.remove("--skip-bad")
    strict = pgfed(*words)
    assert strict.code == 2
    assert "2 images cannot be read: east/healthy/3.png, south/nodule/5.png" in strict.err


def test_b_a_table_per_bank(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = do(pgfed, "b", monkeypatch)
    assert metric("runs/banks") == "auc"
    rows = clients("runs/banks")
    assert list(rows) == ["alpine", "coastal", "urban"]
    assert {"average-precision", "recall@precision=0.9", "balanced-accuracy"} <= set(rows["urban"])
    assert "AUC" in told.out


def test_c_numbers_to_predict(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    do(pgfed, "c", monkeypatch)
    assert metric("runs/houses") == "mae"
    assert float(clients("runs/houses")["harbour"]["final"]) > 1000  # in the unit of prices
    with Path("prices.csv").open() as file:
        prices = [float(row["price"]) for row in csv.DictReader(file)]
    assert len(prices) == 5
    assert np.median(prices) > 50_000


def test_d_several_findings_per_scan(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    do(pgfed, "d", monkeypatch)
    row = clients("runs/findings")["north"]
    assert metric("runs/findings") == "auc"
    assert float(row["auc:nodule"]) > 0


def test_e_text(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    do(pgfed, "e", monkeypatch)
    for run in ("runs/letters", "runs/tied"):
        assert list(clients(run)) == ["east", "north", "south"]


def test_f_time_series(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _, across = do(pgfed, "f", monkeypatch)
    assert list(clients("runs/machines")) == ["east", "north", "south"]
    assert all(across.out.count(name) >= 2 for name in ("east", "north", "south"))


def test_g_a_frozen_backbone(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    dry, *_ = do(pgfed, "g", monkeypatch)
    assert "frozen" in dry.out
    models = Path("runs/adapters/pgfed/seed-0/models")
    assert (models / "frozen.safetensors").stat().st_size > (
        models / "east.safetensors"
    ).stat().st_size
    kept = Path("runs/adapters/experiment.toml").read_text()
    assert all(key in kept for key in ('optimizer = "adamw"', "clip = 1.0", 'schedule = "cosine"'))
    assert 'augment = "flip-crop"' in Path("runs/augmented/experiment.toml").read_text()


def test_h_several_samples_per_patient(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    do(pgfed, "h", monkeypatch)
    honest = np.mean([float(row["final"]) for row in clients("runs/patients", "local").values()])
    with np.load("patients.npz") as whole:
        arrays = {key: whole[key] for key in ("x", "y", "client")}
    np.savez("patients.npz", **arrays)
    line = block("h").splitlines()[1].replace("runs/patients", "runs/mixed")
    assert pgfed(*shlex.split(line)[1:], *QUICK, *TWO).code == 0
    mixed = np.mean([float(row["final"]) for row in clients("runs/mixed", "local").values()])
    assert mixed - honest > 0.2, "patients on both sides: far too good"


def test_i_masks_to_draw(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _, told = do(pgfed, "i", monkeypatch)
    assert metric("runs/wounds") == "dice"
    assert 'name = "unet-small"' in Path("runs/wounds/experiment.toml").read_text()
    assert "Dice" in told.out


def test_j_a_method_of_your_own(
    pgfed: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    do(pgfed, "j", monkeypatch)
    summary = json.loads(Path("runs/own/summary.json").read_text())
    assert len({row["method"] for row in summary}) == 3


def test_k_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(block("k", "python"), names)
    table = names["result"].table()  # type: ignore[attr-defined]
    assert list(table["method"]) == ["local", "pgfed"]
    assert "object at 0x" not in repr(names["result"])


def test_l_a_model_to_serve(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    do(pgfed, "l", monkeypatch)
    with Path("predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "3.png"]
    for row in rows:
        shares = [float(row[f"p:{name}"]) for name in ("effusion", "healthy", "nodule")]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
    again = pgfed(*shlex.split(block("l").splitlines()[-1])[1:])
    assert again.code == 2
    assert "north.onnx" in again.line
    assert "--overwrite" in again.line


def test_m_next_month(pgfed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, new = do(pgfed, "m", monkeypatch)
    assert len(Path("runs/april/pgfed/seed-0/history.jsonl").read_text().splitlines()) == 3
    assert "machines-new" in new.out
    # Without one of the plants the others' draws are what they were.
    with np.load("machines.npz") as whole:
        at = whole["client"] != "east"
        np.savez("two.npz", **{key: whole[key][at] for key in ("x", "y", "client")})
    quick = ["--set", "rounds=1", *QUICK, "--set", 'methods=["local"]']
    for data in ("machines", "two"):
        assert (
            pgfed("run", "--set", f"data.dataset=npz:{data}.npz", *quick, "--out", data).code == 0
        )
    whole_run, two = clients("machines", "local"), clients("two", "local")
    assert [two[name]["final"] for name in two] == [whole_run[name]["final"] for name in two]
