"""`pgfed onboard`: a new site's model, chosen on its validation share."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

import pgfed as package
import small_runs
from cli.cli_tools import Done, blobs
from pgfed.api import Result
from pgfed.data.dataset import Dataset
from pgfed.data.federation import Federation, Shard, build_seat
from pgfed.methods.randomness import Rng
from pgfed.model.metrics import ACCURACY, METRICS
from pgfed.takehome.onboard import Epoch, _better
from takehome.pictures import CLASSES, pictures

Command = Callable[..., Done]
Grey = tuple[Path, Result]


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A site with two of the three classes, which it numbers in its own way."""
    x, y, _ = pictures(90, seed=7)
    here = y < 2
    path = tmp_path / "new.npz"
    np.savez(path, x=x[here], y=1 - y[here], class_names=np.array(["down", "up"]))
    return path


def divided(new: Path) -> Federation:
    """The new site's data in its three parts."""
    with np.load(new) as arrays:
        x, y = arrays["x"], arrays["y"]
    dataset = Dataset.from_arrays("new", x, 1 - y, class_names=CLASSES)
    return build_seat(
        dataset, 0, ["0"], test_share=0.25, validation_share=0.2, seed=1, stratify="auto"
    )


def curve(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def accuracy(module: nn.Module, data: Shard) -> float:
    x, y = data.batch(slice(None))
    with torch.no_grad():
        return float((module(x).argmax(1) == y).double().mean())


def test_all_methods_beside_training_alone(
    grey: Grey, new: Path, pgfed: Command, tmp_path: Path
) -> None:
    words = ["--epochs", 4, "--out", "home", "--json", "--figures", "drawn"]
    done = pgfed("onboard", grey[0], "--data", f"npz:{new}", *words)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [m["method"] for m in found["methods"]] == ["local", "fedavg", "pgfed"]
    assert (tmp_path / "drawn/onboarding.svg").read_text().startswith("<?xml")
    for row in found["methods"]:
        place = tmp_path / "home" / row["method"]
        assert {path.name for path in place.iterdir()} == {
            *("curve.csv", "manifest.json", "model.safetensors")
        }
        points = curve(place / "curve.csv")
        assert [point["epoch"] for point in points] == [0, 1, 2, 3, 4]
        assert points == row["curve"]
        best = max(points, key=lambda p: (p["validation_score"], -p["validation_loss"]))
        assert row["recommended_epochs"] == best["epoch"]
        # The file is the model of that epoch, as its scores on the site's data show.
        module, entry = package.load(place / "model.safetensors")
        assert entry["onboarded"]["epochs"] == best["epoch"]
        assert (entry["n_train"], entry["n_validation"], entry["n_test"]) == (36, 9, 15)
        site = divided(new)
        assert accuracy(module, site.test(0)) == pytest.approx(best["test_score"])
        assert accuracy(module, site.validation(0)) == pytest.approx(best["validation_score"])
        assert entry["score"] == best["test_score"]
        assert entry["data_fingerprint"] == site.fingerprint
    alone, _, mine = found["methods"]
    assert mine["curve"][0]["test_score"] > alone["curve"][0]["test_score"]


def test_it_starts_from_the_global_model_and_steps_as_plain_sgd(
    grey: Grey, new: Path, pgfed: Command, tmp_path: Path
) -> None:
    """One epoch again with torch.optim.SGD, whose momentum starts anew at each epoch."""
    words = ["--method", "pgfed", "--epochs", 2, "--lr", 0.02, "--out", "home", "--json"]
    done = pgfed("onboard", grey[0], "--data", f"npz:{new}", *words)
    found = json.loads(done.out)["methods"][1]
    site = divided(new)
    module, _ = package.load(grey[0] / "pgfed/seed-0/models/global.safetensors")
    assert accuracy(module, site.validation(0)) == found["curve"][0]["validation_score"]
    train = site.train(0)
    for epoch in range(2):
        sgd = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
        order = Rng(0, 4, epoch).permutation(len(train), "train")
        for start in range(0, len(train) - 9, 10):
            x, y = train.batch(order[start : start + 10])
            sgd.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            sgd.step()
        x, y = site.validation(0).batch(slice(None))
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(module(x), y))
        assert found["curve"][epoch + 1]["validation_loss"] == pytest.approx(loss, rel=1e-4)


class Forgetful(nn.Sequential):
    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(input_shape[0], 16), nn.Dropout(0.5), nn.Linear(16, classes))


def test_it_can_be_repeated_with_dropout(pgfed: Command, tmp_path: Path) -> None:
    data = blobs(90)
    given = {"clients": 3, "min_samples": 5, "rounds": 1, "backend": "serial", "model": Forgetful}
    small_runs.run((data["x"], data["y"]), methods=["fedavg"], out=tmp_path / "run", **given)
    np.savez("new.npz", **blobs(40, seed=2))
    words = ["onboard", "run", "--data", "npz:new.npz", "--epochs", 2, "--json"]
    words += ["--allow-module", Forgetful.__module__]
    first, again = (json.loads(pgfed(*words, "--out", name).out) for name in ("a", "b"))
    assert first == again


def test_the_gain_has_an_interval_and_ties_are_named(grey: Grey, new: Path, pgfed: Command) -> None:
    """By hand, from the two models' answers on the 15 test samples."""
    done = pgfed("onboard", grey[0], "--data", f"npz:{new}", "--epochs", 2, "--out", "a", "--json")
    found = json.loads(done.out)
    test = divided(new).test(0)
    x, y = test.batch(slice(None))
    right = {}
    for row in found["methods"]:
        module, _ = package.load(Path("a") / row["method"] / "model.safetensors")
        with torch.no_grad():
            right[row["method"]] = (module(x).argmax(1) == y).long()
    for row in found["methods"][1:]:
        difference = (right[row["method"]] - right["local"]).double()
        assert row["gain"]["mean"] == pytest.approx(float(difference.mean()))
        assert row["gain"]["low"] < row["gain"]["mean"] < row["gain"]["high"]
    best = right[found["recommended_method"]]
    tied = []
    for name, others in right.items():
        better, worse = int((best > others).sum()), int((best < others).sum())
        p = binomtest(better, better + worse).pvalue if better + worse else 1.0
        if name != found["recommended_method"] and p > 0.05:
            tied.append(name)
    assert found["tied_methods"] == tied
    said = pgfed("onboard", grey[0], "--data", f"npz:{new}", "--epochs", 2, "--out", "b").out
    assert ("Tied: 15 test samples cannot tell" in said) == bool(tied)


def test_what_is_printed(grey: Grey, new: Path, pgfed: Command) -> None:
    done = pgfed("onboard", grey[0], "--data", f"npz:{new}", "--epochs", 2)
    assert done.code == 0
    assert "2 of 3 classes" in done.out
    assert "alone (untrained)" in done.out
    assert "onboarded/" in done.out.splitlines()[-1]
    again = pgfed("onboard", grey[0], "--data", f"npz:{new}")
    assert again.code == 2
    assert "exists and is not empty" in again.line


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedfomo", "no global model: the mean of all clients' models"),
        ("fedper", "mean of all clients' classifiers"),
        ("lg-fedavg", "mean of all clients' bodies"),
        ("fedbabu", "untrained classifier"),
    ],
)
def test_a_substitute_is_said_plainly(
    everything: tuple[Path, Result], pgfed: Command, method: str, said: str
) -> None:
    data = f"npz:{everything[0].parent / 'new.npz'}"
    done = pgfed("onboard", everything[0], "--data", data, "--method", method, "--epochs", 1)
    assert f"{method} has no " in done.out
    assert said in done.out


def test_the_first_of_equals_needs_least(tmp_path: Path) -> None:
    def epoch(score: float, loss: float) -> Epoch:
        return Epoch(0, score, loss, None, None)

    assert _better(epoch(0.8, 1.0), epoch(0.7, 0.1), ACCURACY)
    assert _better(epoch(0.8, 0.9), epoch(0.8, 1.0), ACCURACY)
    assert not _better(epoch(0.8, 1.0), epoch(0.8, 1.0), ACCURACY)
    assert not _better(epoch(0.9, math.nan), epoch(0.8, 1.0), ACCURACY)  # it has diverged
    # Where less is better, and where the metric is undefined: then the loss decides.
    assert _better(epoch(3.0, 1.0), epoch(4.0, 0.1), METRICS["mae"])
    assert not _better(epoch(4.0, 0.1), epoch(3.0, 1.0), METRICS["mae"])
    assert _better(epoch(4.0, 1.0), epoch(math.inf, math.inf), METRICS["mae"])
    assert _better(epoch(math.nan, 0.5), epoch(math.nan, 0.6), METRICS["auc"])


def mistakes() -> dict[str, tuple[list[Any], str]]:
    return {
        "no data": (["--data", "npz:nowhere.npz"], "does not exist"),
        "another class": (["--data", "npz:odd.npz"], "class: unknown 'left'"),
        "another size": (["--data", "npz:small.npz"], "holds 8x8 grey images"),
        "too little": (["--data", "npz:few.npz"], "too few to set a validation share aside"),
        "a learning rate": (["--data", "npz:new.npz", "--lr", "-1"], "--lr: found -1"),
        "epochs": (["--data", "npz:new.npz", "--epochs", "0"], "--epochs"),
        "a method": (["--data", "npz:new.npz", "--method", "pfedme"], "unknown 'pfedme'"),
    }


@pytest.mark.parametrize(("words", "said"), mistakes().values(), ids=mistakes())
def test_mistakes_are_one_line_and_write_nothing(
    grey: Grey, new: Path, pgfed: Command, tmp_path: Path, words: list[Any], said: str
) -> None:
    x, y, _ = pictures(9)
    np.savez("odd.npz", x=x, y=y * 0, class_names=np.array(["left"]))
    np.savez("small.npz", x=x[:, :8, :8], y=y, class_names=np.array(CLASSES))
    np.savez("few.npz", x=x[:4], y=y[:4], class_names=np.array(CLASSES))
    done = pgfed("onboard", grey[0], *words)
    assert done.code == 2
    assert said in done.line
    assert not (tmp_path / "onboarded").exists()


def test_without_test_data(pgfed: Command, tmp_path: Path) -> None:
    data = blobs(90)
    given = {"clients": 3, "min_samples": 5, "rounds": 1, "backend": "serial", "test_share": 0.0}
    small_runs.run((data["x"], data["y"]), methods=["fedavg"], out=tmp_path / "run", **given)
    np.savez("new.npz", **blobs(30, seed=2))
    done = pgfed("onboard", "run", "--data", "npz:new.npz", "--epochs", 1)
    assert done.code == 0
    assert "There is no test data" in done.out
    assert package.load(tmp_path / "onboarded/memory/fedavg/model.safetensors")[1]["loss"] is None


def test_classes_weigh_what_they_weigh_at_the_new_site(pgfed: Command, tmp_path: Path) -> None:
    """Balanced weights are by the counts of the site's own training samples, in any pass."""
    rare = {key: array[:46] for key, array in blobs(60, classes=2).items()}
    rare["y"] = (np.arange(46) % 4 == 0).astype(np.int64)
    np.savez(tmp_path / "new.npz", **rare)
    counts = np.bincount(
        build_seat(
            Dataset.from_arrays("new", rare["x"], rare["y"]),
            0, ["0"], test_share=0.25, validation_share=0.2, seed=1, stratify="auto",
        ).train(0).y.numpy()
    )  # fmt: skip
    weights = (counts.sum() / (2 * counts)).tolist()
    losses = {}
    for name, given in (("own", "balanced"), ("said", weights), ("none", "none")):
        small_runs.run(
            tuple(blobs(80, classes=2).values()), methods=["local"], rounds=1, clients=2,
            backend="serial", min_samples=10, class_weights=given, out=tmp_path / name,
        )  # fmt: skip
        done = pgfed("onboard", name, "--data", "npz:new.npz", "--epochs", 2, "--json",
                     "--out", f"{name}-home")  # fmt: skip
        assert done.code == 0, done.err
        (row,) = json.loads(done.out)["methods"]
        losses[name] = [point["validation_loss"] for point in row["curve"]]
    assert losses["own"] == pytest.approx(losses["said"], rel=1e-6)
    assert losses["own"] != pytest.approx(losses["none"], rel=1e-3)
