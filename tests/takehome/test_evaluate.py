"""`pgfed evaluate`: the numbers, and whose they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix, recall_score, roc_auc_score
from torch import nn

import small_runs
from cli.cli_tools import Done, blobs
from pgfed.api import Result
from pgfed.data.federation import Shard
from pgfed.model.kinds import Classes
from pgfed.takehome.metrics import Scores, score
from takehome.pictures import CLASSES, pictures

Command = Callable[..., Done]
Grey = tuple[Path, Result]


def scored(probability: np.ndarray, y: np.ndarray) -> Scores:
    """A model whose logits are its inputs, on samples of these probabilities."""
    logits = torch.tensor(np.log(probability), dtype=torch.float32)
    objective = Classes([str(k) for k in range(probability.shape[1])])
    return score(nn.Identity(), objective, Shard(logits, torch.tensor(y)))


def test_scores_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 200)
    logits = rng.normal(size=(200, 4)) + 1.5 * np.eye(4)[y]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = scored(p, y)
    predicted = p.argmax(1)
    assert found.samples == 200
    assert next(iter(found.metrics)) == "accuracy"
    assert found.metrics["accuracy"] == pytest.approx((predicted == y).mean())
    assert found.recall == pytest.approx(recall_score(y, predicted, average=None))
    assert found.metrics["balanced-accuracy"] == pytest.approx(np.mean(found.recall))
    area = roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert found.metrics["auc"] == pytest.approx(area)
    assert found.confusion == confusion_matrix(y, predicted).tolist()


def test_calibration_error_by_hand() -> None:
    # Confidence 0.62 twice, once right; 0.9 once, right: |0.62 - 0.5| * 2/3 + |0.9 - 1| * 1/3.
    p = np.array([[0.62, 0.38], [0.62, 0.38], [0.1, 0.9]])
    found = scored(p, np.array([0, 1, 1])).metrics["calibration-error"]
    assert found == pytest.approx((2 * 0.12 + 0.1) / 3)
    sure = np.array([[1.0, 1e-30], [1e-30, 1.0]])
    assert scored(sure, np.array([0, 1])).metrics["calibration-error"] == 0.0


def test_classes_that_do_not_occur_are_left_out() -> None:
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.5, 0.2]])
    found = scored(p, np.array([0, 1, 1]))
    assert found.recall == [1.0, 1.0, None]
    assert found.metrics["balanced-accuracy"] == 1.0
    assert found.metrics["auc"] == pytest.approx(1.0)
    assert scored(p[1:], np.array([1, 1])).metrics["auc"] is None  # nothing to tell apart


def test_each_model_beside_local_and_the_global_one(grey: Grey, pgfed: Command) -> None:
    folder, result = grey
    done = pgfed("evaluate", folder, "--client", 1, "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["client"], found["seed"], found["classes"]) == (1, 0, CLASSES)
    assert found["data_fingerprint_matches"] is True
    by_name = {(m["method"], m["model"]): m for m in found["models"]}
    assert list(by_name) == [
        ("local", "personal"),
        *[("fedavg", "personal"), ("fedavg", "global")],
        *[("pgfed", "personal"), ("pgfed", "global")],
    ]
    x, y = result.federation.test(1).batch(slice(None))
    for (method, kind), scores in by_name.items():
        module = result.model(1, method) if kind == "personal" else result.global_model(method)
        with torch.no_grad():
            right = int((module(x).argmax(1) == y).sum())
        assert scores["metrics"]["accuracy"] == pytest.approx(right / len(y))
        assert scores["samples"] == len(y)
        assert np.trace(scores["confusion"]) == right
        if kind == "personal":
            assert scores["metrics"]["accuracy"] == pytest.approx(
                result.clients(method)["final"][1]
            )
    # FedAvg's personalized model is the global one.
    personal, shared = by_name["fedavg", "personal"], by_name["fedavg", "global"]
    assert personal["metrics"] == shared["metrics"]


def test_one_method_class_by_class(grey: Grey, pgfed: Command) -> None:
    done = pgfed("evaluate", grey[0], "--client", 2, "--method", "pgfed")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][:2] == ["client", "2,"]
    assert "pgfed: true class (rows) by predicted class" in done.out
    assert "pgfed, global: true class" in done.out
    assert "local: true class" in done.out
    absent = next(line for line in lines if line[:1] == ["no"])
    assert absent == ["no", "0", "–", "–", "–"]  # the third client has none of these


def test_other_data(grey: Grey, pgfed: Command, tmp_path: Path) -> None:
    """Classes are mapped by name: here they come in another order, and one is missing."""
    x, y, _ = pictures(60, seed=4)
    for name, picture in zip(np.array(CLASSES)[y], x, strict=True):
        if name != "no":
            place = tmp_path / "other" / name
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place / f"{len(list(place.iterdir()))}.png")
    words = ["evaluate", grey[0], "--client", 0, "--method", "pgfed", "--json"]
    found = json.loads(pgfed(*words, "--data", "folder:other").out)
    assert found["data_fingerprint_matches"] is None
    assert found["models"][1]["samples"] == int((y < 2).sum())
    assert found["models"][1]["metrics"]["accuracy"] > 0.9
    assert [sum(row) for row in found["models"][1]["confusion"]][2] == 0
    # The same samples as arrays give the same numbers.
    np.savez("other.npz", x=x[y < 2], y=1 - y[y < 2], class_names=np.array(["down", "up"]))
    again = json.loads(pgfed(*words, "--data", "npz:other.npz").out)
    for ours, theirs in zip(again["models"], found["models"], strict=True):
        # Added up in another order.
        assert ours.pop("metrics") == pytest.approx(theirs.pop("metrics"))
        assert ours == theirs
    # Of data with a split, the test samples count.
    split = np.arange(len(y)) % 3 == 0
    np.savez("split.npz", x=x, y=y, class_names=np.array(CLASSES), split=split.astype(int))
    part = json.loads(pgfed(*words, "--data", "npz:split.npz").out)
    assert part["models"][0]["samples"] == split.sum()


def test_data_that_has_changed_is_said(grey: Grey, pgfed: Command, tmp_path: Path) -> None:
    shutil.copytree(grey[0].parent, tmp_path / "copy")
    toml = tmp_path / "copy/run/experiment.toml"
    toml.write_text(toml.read_text().replace(str(grey[0].parent), str(tmp_path / "copy")))
    words = ["evaluate", "copy/run", "--client", 0]
    assert pgfed(*words).err == ""
    x, y, client = pictures(160, seed=9)
    np.savez("copy/data.npz", x=x, y=y, client=client, class_names=np.array(CLASSES))
    done = pgfed(*words, "--json")
    assert done.code == 0
    assert "fingerprint differs" in done.line
    assert json.loads(done.out)["data_fingerprint_matches"] is False
    np.savez("copy/data.npz", x=x, y=y, client=client)
    assert "has changed since the run" in pgfed(*words).line


def mistakes() -> dict[str, tuple[list[Any], str]]:
    own = ["--client", 0, "--method", "pgfed"]
    return {
        "no such folder": (["nowhere", *own], "no such folder"),
        "not a run": ([".", *own], "not a run folder"),
        "no such client": (["RUN", "--client", 4], "allowed: 0 to 3"),
        "no such method": (["RUN", "--client", 0, "--method", "fedprox"], "unknown 'fedprox'"),
        "a bare path": (["RUN", *own, "--data", "colour"], "did you mean 'folder:colour'"),
        "no such data": (["RUN", *own, "--data", "npz:nowhere.npz"], "does not exist"),
        "another class": (["RUN", *own, "--data", "folder:odd"], "class: unknown 'left'"),
        "colour": (
            ["RUN", *own, "--data", "folder:colour"],
            "holds 28x28 RGB images (uint8); expected: 28x28 grey images (uint8)",
        ),
        "no test samples": (["RUN", *own, "--data", "npz:train.npz"], "no test samples"),
    }


@pytest.mark.parametrize(("words", "said"), mistakes().values(), ids=mistakes())
def test_mistakes_are_one_line(
    grey: Grey, pgfed: Command, tmp_path: Path, words: list[Any], said: str
) -> None:
    for name, label, mode in (("odd", "left", "L"), ("colour", "up", "RGB")):
        (tmp_path / name / label).mkdir(parents=True)
        Image.new(mode, (28, 28)).save(tmp_path / name / label / "0.png")
    x, y, _ = pictures(9)
    np.savez("train.npz", x=x, y=y, split=np.zeros(len(y), int), class_names=np.array(CLASSES))
    done = pgfed("evaluate", *(grey[0] if word == "RUN" else word for word in words))
    assert done.code == 2
    assert said in done.line


def test_runs_without_local_or_without_their_data(pgfed: Command, tmp_path: Path) -> None:
    data = blobs(90)
    given = {"clients": 3, "min_samples": 5, "rounds": 1, "backend": "serial"}
    small_runs.run((data["x"], data["y"]), methods=["fedavg"], out=tmp_path / "run", **given)
    assert "--data npz:PATH" in pgfed("evaluate", "run", "--client", 0).line
    np.savez("data.npz", **data)
    done = pgfed("evaluate", "run", "--client", 0, "--data", "npz:data.npz")
    assert done.code == 0
    assert "The run has no baseline" in done.out


def test_a_client_without_test_data(pgfed: Command, tmp_path: Path) -> None:
    data = blobs(60)
    split = np.arange(60) % 2
    split[::3] = 0
    client = np.where(np.arange(60) % 3 == 0, 0, 1)
    np.savez("data.npz", **data, client=client, split=split)
    words = ["--set", "data.dataset=npz:data.npz", "--set", "rounds=1", "--set", "cohort=1"]
    done = pgfed("run", *words, "--set", 'methods=["fedavg"]', "--out", "run", "--quiet")
    assert done.code == 0
    assert "client 0 has no test data" in pgfed("evaluate", "run", "--client", 0).line
