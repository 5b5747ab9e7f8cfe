"""`pgfed export`: the same logits, in programs that know nothing of pgfed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import pgfed as package
import small_runs
from cli.cli_tools import Done
from pgfed.api import Result
from takehome.pictures import pictures

Command = Callable[..., Done]


class Convolutions(nn.Module):
    """With batch statistics, which are no parameters."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean((2, 3)))
        return out


class Undecided(Convolutions):
    """What it does depends on the values it sees: no graph can say that."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(x.sum() > 0) else x + 1)


OURS = ("--allow-module", __name__)  # its models are in this file


@pytest.fixture(scope="module", params=["cnn", Convolutions])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(request.param, tmp_path_factory.mktemp("export"))


def train(model: object, folder: Path) -> Path:
    given = {"rounds": 1, "epochs": 1, "cohort": 1.0, "backend": "serial", "model": model}
    small_runs.run(pictures(60), methods=["fedavg"], out=folder / "run", **given)
    return folder / "run/fedavg/seed-0/models/client-0001.safetensors"


def inputs(n: int) -> Tensor:
    return torch.randn(n, 1, 28, 28, generator=torch.Generator().manual_seed(n))


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_onnx(trained: Path, pgfed: Command) -> None:
    done = pgfed("export", trained, *OURS)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("client-0001.onnx: gives the same outputs")
    session = onnxruntime.InferenceSession("client-0001.onnx", providers=["CPUExecutionProvider"])
    module, entry = package.load(trained, allow_modules=[__name__])
    for n in (1, 4, 33):  # the size of the batch is free
        x = inputs(n)
        (logits,) = session.run(None, {"x": x.numpy()})
        with torch.no_grad():
            same(module(x), torch.from_numpy(logits))
    about = {p.key: p.value for p in onnx.load("client-0001.onnx").metadata_props}
    found = json.loads(about["pgfed.json"])
    assert found["classes"] == entry["classes"]
    assert found["normalisation"] == entry["normalisation"]
    assert found["sha256"] == entry["sha256"]


def test_for_programs(trained: Path, pgfed: Command) -> None:
    done = pgfed("export", trained, "--format", "torch", "--out", "m.pt2", "--json", *OURS)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["path"], found["format"], found["privacy"]) == ("m.pt2", "torch", None)
    assert 0 <= found["largest_difference"] < 1e-4
    assert Path("m.pt2").is_file()


def test_with_what_comes_before_and_after(trained: Path, pgfed: Command) -> None:
    done = pgfed("export", trained, "--with-normalisation", "--format", "torch", *OURS)
    assert (done.code, done.err) == (0, "")
    module, entry = package.load(trained, allow_modules=[__name__])
    rule = entry["normalisation"]
    program = torch.export.load("client-0001.pt2").module()
    if rule["input"] == "uint8":
        x = (inputs(5) * 127.5 + 127.5).round().to(torch.uint8)
        given = x.float() / rule["divide"] - rule["subtract"]
    else:
        x = given = inputs(5)
    with torch.no_grad():
        same(torch.softmax(module(given), dim=1), program(x))
    refused = pgfed("export", trained, "--format", "torch", *OURS)
    assert (refused.code, "client-0001.pt2: exists" in refused.line) == (2, True)
    assert pgfed("export", trained, "--format", "torch", "--overwrite", *OURS).code == 0


def test_torch(trained: Path, pgfed: Command) -> None:
    done = pgfed("export", trained, "--format", "torch", "--out", "mine.pt2", *OURS)
    assert (done.code, done.err) == (0, "")
    extra = {"pgfed.json": ""}
    program = torch.export.load("mine.pt2", extra_files=extra).module()
    module, entry = package.load(trained, allow_modules=[__name__])
    with torch.no_grad():
        for n in (1, 4, 33):
            same(module(inputs(n)), program(inputs(n)))
    assert json.loads(extra["pgfed.json"])["classes"] == entry["classes"]
    with zipfile.ZipFile("mine.pt2") as archive:
        for name in archive.namelist():  # torch would open such members with pickle
            if name.endswith((".pt", ".pkl")):
                assert archive.read(name) == b""


LOAD = """
import sys, torch
sys.modules["pgfed"] = None
logits = torch.export.load(sys.argv[1]).module()(torch.ones(3, 1, 28, 28))
print(logits.argmax(1).tolist())
"""


def test_torch_without_this_package(tmp_path: Path, pgfed: Command) -> None:
    """In a fresh process that cannot import pgfed, with warnings as errors."""
    file = train("mlp", tmp_path)
    pgfed("export", file, "--format", "torch")
    words = [sys.executable, "-W", "error", "-c", LOAD, "client-0001.pt2"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    with torch.no_grad():
        expected = package.load(file)[0](torch.ones(3, 1, 28, 28)).argmax(1)
    assert json.loads(done.stdout) == expected.tolist()
    assert done.stderr == ""


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, pgfed: Command) -> None:
    done = pgfed("export", train(Undecided, tmp_path), "--format", "torch", *OURS)
    assert done.code == 2
    assert "client-0001.safetensors: cannot be exported as torch" in done.line
    assert not list(tmp_path.glob("*.pt2"))


def test_other_logits_are_refused(
    everything: tuple[Path, Result],
    pgfed: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pgfed.takehome import export

    run = export._run_torch
    monkeypatch.setattr(export, "_run_torch", lambda data: lambda x: run(data)(x) + 0.01)
    file = everything[0] / "pgfed/seed-0/models/client-0000.safetensors"
    done = pgfed("export", file, "--format", "torch")
    assert done.code == 2
    assert "other logits (by 0.01)" in done.line
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_line(
    everything: tuple[Path, Result], pgfed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = everything[0] / "pgfed/seed-0/models/client-0000.safetensors"
    assert "'--format'" in pgfed("export", file, "--format", "tflite").line
    done = pgfed("export", file, "--format", "torch", "--out", "no/where.pt2")
    assert "no/where.pt2: cannot be written" in done.line or "No such file" in done.line
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert "pip install pgfed[onnx]" in pgfed("export", file).line
    np.save("x.npy", np.zeros((2, 6)))
    assert "not a model file" in pgfed("export", "x.npy").line
