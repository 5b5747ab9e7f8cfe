"""Modules of one's own: where they are found, and that a stranger's file imports none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.cli_tools import SMALL, Done, blobs

NET = """
from pathlib import Path

from torch import nn

Path(__file__).with_suffix(".ran").touch()


def Net(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, classes))
"""
METHOD = """
from dataclasses import dataclass

from pgfed.methods import Algorithm, sgd


@dataclass(frozen=True, kw_only=True)
class Mine(Algorithm):
    name = "mine"
    summary = "as FedAvg"
    leaves = {"w": "model", "n": "count"}

    def local_update(self, task, state, message, data, rng):
        w, kept = sgd(task, message["w"], data, rng, self.train, state)
        return self.keep(**kept), {"w": w, "n": len(data)}
"""
NIGHTLY_RAY = pytest.param("ray", marks=pytest.mark.nightly)
TRAP = "open({!r}, 'w').close()\nraise SystemExit('the trap ran')\n"


def command(*words: object, at: Path, python_path: Path | None = None) -> Done:
    """`python -m pgfed` in a process of its own, in this folder."""
    known = [path for path in (python_path, os.environ.get("PYTHONPATH")) if path]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    env["PYTHONPATH"] = os.pathsep.join(map(str, known))
    call = [sys.executable, "-m", "pgfed", *map(str, words)]
    done = subprocess.run(call, cwd=at, env=env, capture_output=True, text=True, timeout=300)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command in this process adds to the path is gone afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's folder: a run whose model is in evil.py, which lies beside it."""
    place = tmp_path_factory.mktemp("stranger")
    (place / "evil.py").write_text(NET)
    np.savez(place / "data.npz", **blobs(120))
    done = command(
        *("run", *SMALL, "--set", "rounds=1", "--set", "data.dataset=npz:data.npz"),
        *("--set", "data.min_samples=5", "--set", "model.name=evil:Net"),
        *("--set", 'methods=["local", "fedavg"]', "--out", "run", "--quiet", "--module-path", "."),
        at=place,
    )
    assert done.code == 0, done.err
    np.save(place / "images.npy", blobs(3)["x"])
    (place / "evil.ran").unlink()
    return place


@pytest.fixture
def stranger(made: Path, tmp_path: Path) -> Path:
    place = tmp_path / "stranger"
    shutil.copytree(made, place, ignore=shutil.ignore_patterns("__pycache__"))
    return place


MODEL = "run/fedavg/seed-0/models/global.safetensors"
ASKING = {
    "export": ("export", MODEL, "--format", "torch"),
    "predict": ("predict", MODEL, "images.npy"),
    "evaluate": ("evaluate", "run", "--client", "1", "--data", "npz:data.npz"),
    "onboard": ("onboard", "run", "--data", "npz:data.npz", "--epochs", "1"),
    "resume": ("resume", "run", "--quiet"),
    "study": ("study", "new-clients", "--from", "run", "--quiet"),
}


@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_what_a_strangers_folder_names_is_not_imported(
    pgfed: Callable[..., Done], stranger: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str]
) -> None:
    monkeypatch.chdir(stranger)
    for found in ((), ("--module-path", "."), ("--module-path", ".", "--allow-module", "another")):
        done = pgfed(*words, *found)
        assert done.code == 2, done
        source = "experiment.toml" if words[0] in ("resume", "study") else "manifest.json"
        for said in (source, "'evil:Net'", "import the Python module", "--allow-module evil"):
            assert said in done.line
        assert not (stranger / "evil.ran").exists()


@pytest.mark.parametrize("name", ["predict", pytest.param("export", marks=pytest.mark.nightly)])
def test_not_even_where_it_can_be_found_and_then_when_allowed(stranger: Path, name: str) -> None:
    words = ASKING[name]
    refused = command(*words, at=stranger, python_path=stranger)
    assert (refused.code, "--allow-module evil" in refused.line) == (2, True)
    lost = command(*words, "--allow-module", "evil", at=stranger)  # the folder is not searched
    assert lost.code == 2
    assert "--module-path" in lost.line
    assert not (stranger / "evil.ran").exists()
    done = command(*words, "--allow-module", "evil:Net", "--module-path", ".", at=stranger)
    assert done.code == 0, done.err
    assert name != "predict" or len(done.out.splitlines()) == 4
    assert (stranger / "evil.ran").exists()


@pytest.mark.parametrize("name", ["evaluate", "onboard", "resume"])
def test_what_is_allowed_is_imported(
    pgfed: Callable[..., Done], stranger: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(stranger)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    done = pgfed(*ASKING[name], "--allow-module", "evil", "--module-path", ".")
    assert done.code == 0, done.err
    assert (stranger / "evil.ran").exists()
    sys.modules.pop("evil")


def test_a_name_that_is_none(pgfed: Callable[..., Done], stranger: Path) -> None:
    for name in (".evil:Net", "evil; rm -rf .:Net", ":Net", "../evil:Net"):
        for manifest in stranger.glob("run/*/*/models/manifest.json"):
            content = json.loads(manifest.read_text())
            manifest.write_text(json.dumps({**content, "model": name}))
        done = pgfed("predict", stranger / MODEL, stranger / "images.npy")
        assert done.code == 2
        assert "allowed: package.module:Name" in done.line


@pytest.mark.parametrize("backend", ["serial", "process", NIGHTLY_RAY])
def test_modules_in_the_current_folder_do_not_run(tmp_path: Path, backend: str) -> None:
    if backend == "ray":
        pytest.importorskip("ray")
    traps = ("tomli_w", "json", "torch", "typer", "dataclasses", "pickle", "safetensors")
    for name in traps:
        (tmp_path / f"{name}.py").write_text(TRAP.format(str(tmp_path / f"{name}.ran")))
    small = (
        "--set",
        "rounds=1",
        "--set",
        f"engine.backend={backend}",
        "--set",
        'methods=["local"]',
    )
    done = command("run", "--smoke", *small, "--quiet", at=tmp_path)
    assert done.code == 0, done.err
    assert list(tmp_path.glob("*.ran")) == []
    if backend == "serial":  # nor where the folder is searched: it comes last
        done = command("run", "--smoke", *small, "--quiet", "--module-path", ".", at=tmp_path)
        assert done.code == 0, done.err
        assert list(tmp_path.glob("*.ran")) == []


def test_nor_does_a_model_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(NET)
    done = command("run", *SMALL, "--set", "model.name=evil:Net", at=tmp_path)
    assert done.code == 2
    assert "model.name: cannot import 'evil'" in done.line
    assert not (tmp_path / "evil.ran").exists()


@pytest.mark.parametrize("backend", ["process", pytest.param("serial", marks=pytest.mark.nightly)])
def test_an_own_method_in_a_run_and_when_it_goes_on(tmp_path: Path, backend: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(METHOD)
    found = ("--module-path", "own")
    words = ("--set", 'methods=["local", "mine:Mine"]', "--set", f"engine.backend={backend}")
    done = command("run", *SMALL, *words, *found, "--out", "run", "--quiet", at=tmp_path)
    assert done.code == 0, done.err
    clients = tmp_path / "run/mine/seed-0/clients.csv"
    before = clients.read_text()
    shutil.rmtree(tmp_path / "run/mine")  # as if it had been cut short
    refused = command("resume", "run", *found, at=tmp_path)
    assert refused.code == 2
    assert "experiment.toml: methods: 'mine:Mine'" in refused.line
    assert "--allow-module mine" in refused.line
    done = command("resume", "run", *found, "--allow-module", "mine", "--quiet", at=tmp_path)
    assert done.code == 0, done.err
    assert clients.read_text() == before


def test_a_folder_that_is_not_there(pgfed: Callable[..., Done]) -> None:
    done = pgfed("run", *SMALL, "--module-path", "nowhere")
    assert (done.code, done.line) == (2, "pgfed: --module-path: nowhere: no such folder")


def test_the_folder_comes_last(pgfed: Callable[..., Done], tmp_path: Path) -> None:
    before = [*sys.path]
    (tmp_path / "own").mkdir()
    assert pgfed("methods", "--module-path", "own").code == 0
    assert sys.path == [*before, str(tmp_path / "own")]
    assert "PYTHONSAFEPATH" not in os.environ
