"""docs/take-home.md, from its first command to its last."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import pgfed as package
import small_runs
from cli.cli_tools import Done

ROOT = Path(__file__).parents[2]
Command = Callable[..., Done]


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs/take-home.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def pixels(files: list[str]) -> torch.Tensor:
    x = np.stack([np.asarray(Image.open(file)) for file in files])
    return torch.from_numpy(x)[:, None].float() / 127.5 - 1


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_documented_walk(pgfed: Command, tmp_path: Path) -> None:
    (experiment,) = blocks("toml")
    (tmp_path / "sites.toml").write_text(experiment)
    printed: dict[str, str] = {}
    for line in "".join(blocks("sh")).splitlines():
        program, *words = shlex.split(line)
        if program == "python":
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
            continue
        assert program == "pgfed"
        # The engine changes no result; one process is quicker here.
        quick = ["--set", "engine.backend=serial"] if words[0] == "run" else []
        done = pgfed(*words, *quick)
        assert done.code == 0, f"{line}: {done.err}"
        printed[line] = done.out
    commands = {line.split()[1] for line in printed}
    assert commands == {"run", "evaluate", "why", "export", "predict", "onboard"}

    # What the Python block says: the file and the run folder give the same model.
    (python,) = blocks("python")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(python, {})
    model, about = package.load("run/pgfed/seed-0/models/clinic.safetensors")
    assert shown.getvalue() == f"{about['score']} {about['classes']}\n"
    assert about["kept"] == "best"
    assert about["domain"] == "clinic"

    # Predictions are those of the model, file by file, and so are the exported models' logits.
    found = rows(tmp_path / "predictions.csv")
    x = pixels([row["file"] for row in found])
    with torch.no_grad():
        logits = model(x)
        p, best = logits.double().softmax(1).max(1)
        same = torch.export.load("clinic.pt2").module()(x)
    assert [row["class"] for row in found] == [about["classes"][k] for k in best.tolist()]
    assert [float(row["probability"]) for row in found] == pytest.approx(p.tolist(), abs=1e-6)
    torch.testing.assert_close(same, logits, rtol=1e-4, atol=1e-5)
    runtime = onnxruntime.InferenceSession("clinic.onnx", providers=["CPUExecutionProvider"])
    (theirs,) = runtime.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(theirs, logits.numpy(), rtol=1e-4, atol=1e-5)

    # It has learned what the folders say, and the new site does better than alone.
    right = np.mean([Path(row["file"]).parent.name == row["class"] for row in found])
    assert right > 0.95
    alone, joined = (
        package.load(f"home/{method}/model.safetensors")[1] for method in ("local", "pgfed")
    )
    assert joined["score"] > alone["score"]
    assert joined["gain"] == pytest.approx(joined["score"] - alone["score"])
    assert len(rows(tmp_path / "new.csv")) == sum(1 for _ in tmp_path.glob("new-site/*/*.png"))


def test_predictions_equal_those_of_the_model_in_memory(pgfed: Command, tmp_path: Path) -> None:
    """The run in this process, its files in the command line's hands."""
    runpy.run_path(str(ROOT / "examples/digits_to_folders.py"), run_name="__main__")
    result = small_runs.run(
        "folder:sites",
        methods=["pgfed"],
        rounds=3,
        partition="domain",
        clients=6,
        cohort=1.0,
        backend="serial",
        out="run",
    )
    file = "run/pgfed/seed-0/models/client-0004.safetensors"
    assert pgfed("predict", file, "new-site", "--out", "p.csv").code == 0
    found = rows(tmp_path / "p.csv")
    with torch.no_grad():
        logits = result.model(4, "pgfed")(pixels([row["file"] for row in found]))
    p, best = logits.double().softmax(1).max(1)
    names = result.federation.class_names
    assert [row["class"] for row in found] == [names[k] for k in best.tolist()]
    assert [float(row["probability"]) for row in found] == pytest.approx(p.tolist(), abs=1e-6)
