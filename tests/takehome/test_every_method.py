"""Every registered method: its models are loaded, evaluated, exported and onboarded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import pgfed as package
from any_model import ANY_MODEL
from cli.cli_tools import Done
from pgfed.api import Result

Command = Callable[..., Done]
Everything = tuple[Path, Result]


@pytest.mark.parametrize("method", ANY_MODEL)
def test_loaded_evaluated_and_onboarded(
    everything: Everything, pgfed: Command, method: str
) -> None:
    folder, result = everything
    module, entry = package.load(folder, 2, method=method)
    x, y = result.federation.test(2).batch(slice(None))
    with torch.no_grad():
        logits = module(x)
        assert torch.equal(logits, result.model(2, method)(x))
    done = pgfed("evaluate", folder, "--client", 2, "--method", method, "--json")
    scores = {(m["method"], m["model"]): m for m in json.loads(done.out)["models"]}
    correct = float((logits.argmax(1) == y).double().mean())
    assert scores[method, "personal"]["metrics"]["accuracy"] == correct == entry["score"]
    assert ("local", "personal") in scores
    assert ((method, "global") in scores) == (method != "local")

    data = f"npz:{folder.parent / 'new.npz'}"
    words = ["--method", method, "--epochs", 2, "--out", "home", "--json"]
    joined = json.loads(pgfed("onboard", folder, "--data", data, *words).out)
    assert {m["method"] for m in joined["methods"]} == {"local", method}
    mine = next(m for m in joined["methods"] if m["method"] == method)
    newcomer, about = package.load(f"home/{method}/model.safetensors")
    assert about["onboarded"]["epochs"] == mine["recommended_epochs"]
    assert about["score"] == mine["curve"][mine["recommended_epochs"]]["test_score"]
    start = result.global_model(method).state_dict()
    if mine["recommended_epochs"] == 0:
        assert all(torch.equal(start[k], v) for k, v in newcomer.state_dict().items())


def exported(everything: Everything, method: str, pgfed: Command, kind: str) -> None:
    folder, result = everything
    _, entry = package.load(folder, 1, method=method)
    file = folder / method / "seed-0/models" / entry["file"]
    done = pgfed("export", file, "--format", kind, "--out", "model")
    assert (done.code, done.err) == (0, "")
    x, _ = result.federation.test(1).batch(slice(None))
    with torch.no_grad():
        ours = result.model(1, method)(x).numpy()
        if kind == "torch":
            theirs = torch.export.load("model").module()(x).numpy()
        else:
            import onnxruntime

            session = onnxruntime.InferenceSession("model", providers=["CPUExecutionProvider"])
            (theirs,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ANY_MODEL)
def test_exported(everything: Everything, pgfed: Command, method: str) -> None:
    exported(everything, method, pgfed, "torch")


@pytest.mark.nightly
@pytest.mark.parametrize("method", ANY_MODEL)
def test_exported_as_onnx(everything: Everything, pgfed: Command, method: str) -> None:
    exported(everything, method, pgfed, "onnx")
