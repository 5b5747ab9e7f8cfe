"""The run folder: every file, and that the numbers in them agree."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import small_runs
from any_model import ANY_MODEL
from cli.cli_tools import blobs
from pgfed.api import Result
from pgfed.config.experiment import from_dict
from pgfed.engine.setup import prepare
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.methods.registry import get
from pgfed.model.networks import MLP
from pgfed.results.folder.writer import RunWriter

ROUNDS = 12
CLIENTS = 14
METHODS_RUN = ["fedavg", "local", "pgfed", "fedavg-local"]
SUMMARY = [
    *("method", "seed", "rounds", "metric", "best_score", "best_round"),
    *("kept_score", "final_score"),
    *("mean_score", "window", "median_score", "clients_undefined"),
    *("rounds_to_target", "target", "baseline"),
    *("gain_mean", "gain_std", "clients_gained", "clients_harmed"),
    *("bytes_down", "bytes_up", "samples_per_second", "seconds", "metrics"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("out") / "run"
    data = blobs(400)
    result = small_runs.run(
        (data["x"], data["y"] + 3),
        clients=CLIENTS,
        cohort=0.15,
        min_samples=8,
        seeds=[7, 2],
        rounds=ROUNDS,
        methods=METHODS_RUN,
        backend="serial",
        epochs=1,
        lr=0.02,
        out=folder,
    )
    return folder, result


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def history(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]


def test_the_files(run: tuple[Path, Result]) -> None:
    folder, _ = run
    expected = {"experiment.toml", "environment.json", "data.json", "methods.json", "summary.json"}
    expected.add("metric.json")
    for method in METHODS_RUN:
        for seed in (7, 2):
            place = f"{method}/seed-{seed}"
            expected |= {f"{place}/history.jsonl", f"{place}/clients.csv", f"{place}/evidence.npz"}
            expected |= {f"{place}/models/manifest.json", f"{place}/models/global.safetensors"}
            if method == "pgfed":
                expected.add(f"{place}/alpha.npz")
            manifest = json.loads((folder / place / "models/manifest.json").read_text())
            expected |= {f"{place}/models/{client['file']}" for client in manifest["clients"]}
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert found == expected  # and no temporary file is left


def test_summary(run: tuple[Path, Result]) -> None:
    folder, result = run
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == result.summary
    assert [list(row) for row in summary] == [SUMMARY] * 8
    assert [(row["method"], row["seed"]) for row in summary] == [
        (method, seed) for method in METHODS_RUN for seed in (7, 2)
    ]
    for row in summary:
        records = history(folder / row["method"] / f"seed-{row['seed']}")
        accuracy = [record["mean_score"] for record in records]
        assert row["best_score"] == max(accuracy)
        assert row["best_round"] == accuracy.index(max(accuracy)) + 1
        assert row["final_score"] == accuracy[-1]
        assert row["mean_score"] == pytest.approx(np.mean(accuracy[-4:]))  # a third of 12 rounds
        assert row["window"] == 4
        assert row["kept_score"] == pytest.approx(row["final_score"])
        reached = [k for k, a in enumerate(accuracy, start=1) if a >= 0.7]
        assert row["rounds_to_target"] == (reached[0] if reached else None)
        assert row["bytes_down"] == sum(r["bytes_down"] for r in records)
        assert row["bytes_up"] == sum(r["bytes_up"] for r in records)
        images, seconds = (sum(r[key] for r in records) for key in ("samples", "train_seconds"))
        assert row["samples_per_second"] == pytest.approx(images / seconds)
        clients = rows(folder / row["method"] / f"seed-{row['seed']}" / "clients.csv")
        assert row["median_score"] == np.median([float(r["final"]) for r in clients if r["final"]])
        assert list(row["metrics"])[:2] == ["accuracy", "balanced-accuracy"]
        for name, mean in row["metrics"].items():
            known = [float(r[name]) for r in clients if r[name]]
            assert mean == pytest.approx(np.mean(known)), name
    assert {r["rounds_to_target"] for r in summary} - {None}, "the task is too hard to test this"


def test_history(run: tuple[Path, Result]) -> None:
    folder, _ = run
    for seed in (7, 2):
        records = {m: history(folder / m / f"seed-{seed}") for m in METHODS_RUN}
        for of in records.values():
            assert [r["round"] for r in of] == list(range(1, ROUNDS + 1))
            # All methods see the same cohorts under one seed.
            assert [r["cohort"] for r in of] == [r["cohort"] for r in records["local"]]
        assert all(len(r["cohort"]) == 2 for r in records["local"])


def test_clients(run: tuple[Path, Result]) -> None:
    folder, result = run
    local = rows(folder / "local/seed-7/clients.csv")
    for method in METHODS_RUN:
        found = rows(folder / method / "seed-7/clients.csv")
        leading = ["client", "domain", "n_train", "n_test", "best", "final", "gain"]
        assert list(found[0])[:7] == leading
        assert [int(row["client"]) for row in found] == list(range(CLIENTS))
        summary = next(r for r in result.summary if (r["method"], r["seed"]) == (method, 7))
        for column, key in (("best", "best_score"), ("final", "final_score")):
            mean = np.mean([float(row[column]) for row in found])
            assert mean == pytest.approx(summary[key])
        gains = np.array([float(row["gain"]) for row in found])
        alone = np.array([float(row["accuracy"]) for row in local])
        mine = np.array([float(row["accuracy"]) for row in found])
        assert gains == pytest.approx(mine - alone)
        assert summary["gain_mean"] == pytest.approx(gains.mean())
        assert summary["gain_std"] == pytest.approx(gains.std(ddof=1))
        clearly = [row["clearly"] for row in found]
        assert summary["clients_gained"] == clearly.count("gained")
        assert summary["clients_harmed"] == clearly.count("lost")
        for row, gain in zip(found, gains, strict=True):
            assert float(row["gain_low"]) <= gain <= float(row["gain_high"])
            balance = int(row["samples_better"]) - int(row["samples_worse"])
            assert balance / int(row["n_test"]) == pytest.approx(gain)
        took_part = [r["cohort"] for r in history(folder / method / "seed-7")]
        for row in found:
            assert int(row["rounds"]) == sum(row["client"] in c for c in took_part)
    assert {row["gain"] for row in local} == {"0.0"}


def test_without_local_there_are_no_gains(tmp_path: Path) -> None:
    data = blobs(60)
    result = small_runs.run(
        (data["x"], data["y"]),
        clients=3,
        min_samples=1,
        rounds=1,
        methods=["fedavg"],
        backend="serial",
        out=tmp_path / "run",
    )
    row = result.summary[0]
    assert (row["gain_mean"], row["gain_std"], row["clients_harmed"]) == (None, None, None)
    assert rows(tmp_path / "run/fedavg/seed-0/clients.csv")[0]["gain"] == ""


def test_alpha(run: tuple[Path, Result]) -> None:
    folder, _ = run
    with np.load(folder / "pgfed/seed-2/alpha.npz") as saved:
        assert saved["alpha"].shape == (CLIENTS, CLIENTS)
        assert float(saved["start"]) == 0.5
        met = saved["meetings"] > 0
        assert met.any()
        assert (saved["alpha"][~met] == 0.5).all()


def test_manifest_and_models(run: tuple[Path, Result]) -> None:
    folder, result = run
    models = folder / "pgfed/seed-7/models"
    manifest = json.loads((models / "manifest.json").read_text())
    assert (manifest["format"], manifest["metric"]) == (2, "accuracy")
    assert (manifest["method"], manifest["seed"], manifest["round"]) == ("pgfed", 7, ROUNDS)
    assert manifest["hyperparameters"]["mu"] == 0.1
    assert manifest["hyperparameters"]["train"]["lr"] == 0.02
    assert manifest["model"] == "mlp"
    assert manifest["input_shape"] == [6]
    assert manifest["classes"] == ["3", "4", "5"]
    assert manifest["normalisation"] == {"input": "float32", "divide": 1.0, "subtract": 0.0}
    assert manifest["data_fingerprint"] == result.federation.fingerprint
    assert len(manifest["clients"]) == CLIENTS
    for row in [manifest["global"], *manifest["clients"]]:
        path = models / row["file"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]
        with safe_open(path, "pt") as file:
            assert file.metadata() is None
        MLP((6,), 3).load_state_dict(load_file(path))  # the module's own names


def test_clients_that_never_took_part_share_one_file(run: tuple[Path, Result]) -> None:
    folder, _ = run
    shared = 0
    for seed in (7, 2):
        models = folder / f"pgfed/seed-{seed}/models"
        manifest = json.loads((models / "manifest.json").read_text())
        for client in manifest["clients"]:
            own = client["file"] == f"client-{client['id']:04}.safetensors"
            assert own == (client["rounds"] > 0)
            shared += not own
    assert shared, "every client took part: choose other seeds"


@pytest.mark.parametrize("method", ANY_MODEL)
def test_the_models_of_every_method_are_written(method: str, tmp_path: Path) -> None:
    data = blobs(80)
    result = small_runs.run(
        (data["x"], data["y"]),
        clients=4,
        cohort=0.25,
        min_samples=8,
        rounds=2,
        methods=[method],
        backend="serial",
        out=tmp_path / "run",
    )
    manifest = json.loads((tmp_path / f"run/{method}/seed-0/models/manifest.json").read_text())
    assert set(manifest["hyperparameters"]) == {
        field.name for field in dataclasses.fields(get(method))
    }
    for client in range(4):
        x, y = result.federation.test(client).batch(slice(None))
        with torch.no_grad():
            correct = (result.model(client, method)(x).argmax(1) == y).double().mean()
        assert float(correct) == pytest.approx(manifest["clients"][client]["final"])


def test_experiment_is_complete(run: tuple[Path, Result]) -> None:
    folder, result = run
    document = tomllib.loads((folder / "experiment.toml").read_text())
    assert document["data"]["clients"] == CLIENTS
    assert document["data"]["partition"] == "dirichlet"
    assert document["model"]["name"] == "mlp"
    assert document["method"]["pgfed"]["alpha_lr"] == 0.01
    assert document == result.experiment.document()


def test_environment(run: tuple[Path, Result]) -> None:
    folder, result = run
    found = json.loads((folder / "environment.json").read_text())
    assert found["packages"]["torch"] == torch.__version__
    assert found["data"]["fingerprint"] == result.federation.fingerprint
    assert {"python", "cpu", "cores", "platform", "git_commit", "command"} <= set(found)


@pytest.mark.parametrize(("models", "seeds"), [("all", [1, 2]), ("last", [2]), ("none", [])])
def test_which_models_are_kept(models: str, seeds: list[int], tmp_path: Path) -> None:
    data = blobs(60)
    small_runs.run(
        (data["x"], data["y"]),
        clients=3,
        min_samples=1,
        rounds=1,
        seeds=[1, 2],
        methods=["fedavg"],
        backend="serial",
        models=models,
        out=tmp_path / "run",
    )
    found = sorted(path.parent.name for path in tmp_path.rglob("models"))
    assert found == [f"seed-{seed}" for seed in seeds]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes | str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pgfed.results.kept.writing.write_atomic", full)
    data = blobs(60)
    with pytest.raises(UserError, match="No space left"):
        small_runs.run(
            (data["x"], data["y"]),
            clients=3,
            min_samples=1,
            rounds=1,
            methods=["local"],
            backend="serial",
            out=tmp_path / "run",
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_is_full_at_the_end_is_one_line_too(tmp_path: Path) -> None:
    setup = prepare(from_dict({"data": {"clients": 3}}), tmp_path)
    with (
        pytest.raises(UserError, match="No space left"),
        RunWriter(tmp_path / "run", setup) as folder,
    ):
        folder._open.enter_context(open("/dev/full", "w")).write("buffered")  # noqa: SIM115
    with RunWriter(tmp_path / "run", setup, resume=True):  # the lock is free again
        pass


def test_interrupted_while_it_is_made_the_folder_is_complete_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    setup = prepare(from_dict({"data": {"clients": 3}}), tmp_path)
    with RunWriter(whole, setup):
        pass
    for after in range(4):
        done = 0

        def interrupted(path: Path, data: bytes | str, after: int = after) -> None:
            nonlocal done
            if done == after:
                raise KeyboardInterrupt
            done += 1
            write_atomic(path, data)

        with monkeypatch.context() as patched:
            patched.setattr("pgfed.results.folder.files.write_atomic", interrupted)
            with pytest.raises(KeyboardInterrupt), RunWriter(cut, setup, resume=after > 0):
                pass
        with RunWriter(cut, setup, resume=True):
            pass
        assert sorted(p.name for p in cut.iterdir()) == sorted(p.name for p in whole.iterdir())
        shutil.rmtree(cut)
