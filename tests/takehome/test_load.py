"""`pgfed.load`: the model and its manifest, and nothing but what was written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pgfed as package
import small_runs
from cli.cli_tools import blobs
from pgfed.api import Result
from pgfed.errors import UserError
from pgfed.results.kept.models import kept_models

Grey = tuple[Path, Result]


@pytest.fixture
def copy(grey: Grey, tmp_path: Path) -> Path:
    """A folder of models that may be damaged."""
    place = tmp_path / "models"
    shutil.copytree(grey[0] / "pgfed/seed-0/models", place)
    return place


def test_by_file(grey: Grey) -> None:
    folder, result = grey
    module, entry = package.load(folder / "pgfed/seed-0/models/client-0001.safetensors")
    assert not module.training
    x, _ = result.federation.test(1).batch(slice(None))
    with torch.no_grad():
        assert torch.equal(module(x), result.model(1, "pgfed")(x))
    expected = {"role": "client", "client": "1", "id": 1, "method": "pgfed", "round": 5, "seed": 0}
    expected |= {"model": "mlp", "input_shape": [1, 28, 28], "classes": ["up", "down", "no"]}
    assert {key: entry[key] for key in expected} == expected
    assert entry["normalisation"] == {"input": "uint8", "divide": 127.5, "subtract": 1.0}
    assert entry["hyperparameters"]["mu"] == 0.1
    assert entry["data_fingerprint"] == result.federation.fingerprint
    row = result.clients("pgfed").iloc[1]
    assert entry["n_train"] == row["n_train"]
    assert entry["score"] == row["final"]
    assert entry["gain"] == row["gain"]
    assert "clients" not in entry


def test_by_run_folder(grey: Grey) -> None:
    folder, result = grey
    module, entry = package.load(str(folder), 3, method="fedavg", seed=0)
    assert (entry["id"], entry["method"]) == (3, "fedavg")
    for name, value in result.model(3, "fedavg").state_dict().items():
        assert torch.equal(module.state_dict()[name], value)


def test_the_global_model(grey: Grey) -> None:
    folder, result = grey
    module, entry = package.load(folder / "pgfed/seed-0/models/global.safetensors")
    assert entry["role"] == "global"
    assert "client" not in entry
    for name, value in result.global_model("pgfed").state_dict().items():
        assert torch.equal(module.state_dict()[name], value)


def test_a_model_that_several_clients_share(tmp_path: Path) -> None:
    data = blobs(90)
    given = {"clients": 6, "min_samples": 5, "rounds": 1, "cohort": 0.2, "backend": "serial"}
    small_runs.run((data["x"], data["y"]), methods=["pgfed"], out=tmp_path / "run", **given)
    _, entry = package.load(tmp_path / "run/pgfed/seed-0/models/never-sampled.safetensors")
    assert len(entry["clients"]) == 5
    one, own = package.load(tmp_path / "run", entry["clients"][0])
    assert own["client"] == entry["clients"][0]
    assert own["file"] == "never-sampled.safetensors"
    assert not one.training


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def other_shapes(path: Path) -> None:
    """A whole file, with its checksum, that is not this model."""
    values = load_file(path)
    values["fc1.weight"] = values["fc1.weight"][:, :10].clone()
    save_file(values, path)
    accept(path)


def accept(path: Path) -> None:
    """Put the file's checksum into the manifest, as somebody who tampers would."""
    from pgfed.engine.storage.durable import sha256

    place = path.parent / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["clients"][1]["sha256"] = sha256(path.read_bytes())
    place.write_text(json.dumps(manifest))


def garbage(path: Path) -> None:
    path.write_bytes(b"\x80\x04\x95 a pickle")
    accept(path)


def missing(path: Path) -> None:
    path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit": (flip, "SHA-256"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-100]), "cut short"),
    "empty": (lambda p: p.write_bytes(b""), "SHA-256"),
    "another model": (other_shapes, "does not fit the model 'mlp'"),
    "a pickle": (garbage, "not a safetensors file"),
    "missing": (missing, "No such file"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_by_name(
    copy: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(copy / "client-0001.safetensors")
    with pytest.raises(UserError, match=r"client-0001\.safetensors.*" + words) as refused:
        package.load(copy / "client-0001.safetensors")
    assert "\n" not in str(refused.value)
    package.load(copy / "client-0000.safetensors")  # the others are as good as before


def change(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update(values)


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.pop(key)


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a later format": (change(format=3), r"format 3; .* reads 1 and 2"),
    "no format": (drop("format"), "format None"),
    "no classes": (drop("classes"), "classes"),
    "a shape of zero": (change(input_shape=[1, 0, 28]), "input_shape"),
    "an unknown model": (change(model="resnet"), "unknown 'resnet'"),
    "a model that is not there": (
        change(model="nowhere:make"),
        "would import the Python module 'nowhere'",
    ),
    "not the client": (change(clients=[]), "knows no such file"),
    "a path": (
        change(clients=[{"client": "0", "id": 0, "file": "../x.safetensors"}]),
        "clients.0.file",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_damaged_manifest_is_one_line(
    copy: Path, spoil: Callable[[dict[str, Any]], Any], words: str
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    spoil(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=words) as refused:
        package.load(copy / "client-0001.safetensors")
    assert "\n" not in str(refused.value)


def test_a_manifest_that_is_not_there_or_not_json(copy: Path) -> None:
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text[:-50])
    with pytest.raises(UserError, match=r"manifest\.json: not JSON"):
        package.load(copy / "client-0001.safetensors")
    (copy / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest\.json: missing"):
        package.load(copy / "client-0001.safetensors")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no client": ({"method": "pgfed"}, "say which client"),
    "no method": ({"client": 1}, "holds several: local, fedavg, pgfed"),
    "an unknown method": ({"client": 1, "method": "pgfd"}, "did you mean 'pgfed'"),
    "an unknown seed": ({"client": 1, "method": "pgfed", "seed": 9}, "seed: found 9; allowed: 0"),
    "an unknown client": ({"client": 4, "method": "pgfed"}, "client: found 4; allowed: 0 to 3"),
    "an unknown name": ({"client": "east", "method": "pgfed"}, "client: unknown 'east'"),
}


@pytest.mark.parametrize(("given", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_with_a_run_folder(grey: Grey, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        package.load(grey[0], **given)


def test_paths_that_are_no_models(grey: Grey, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder"):
        package.load(tmp_path, 1)
    with pytest.raises(UserError, match=r"not a model file"):
        package.load(grey[0] / "summary.json")
    with pytest.raises(UserError, match=r"client, method and seed are for a run folder"):
        package.load(grey[0] / "pgfed/seed-0/models/client-0001.safetensors", 1)


def test_runs_that_hold_no_models(tmp_path: Path) -> None:
    data = blobs(60)
    given = {"clients": 3, "min_samples": 5, "rounds": 1, "backend": "serial", "models": "none"}
    small_runs.run((data["x"], data["y"]), methods=["fedavg"], out=tmp_path / "run", **given)
    with pytest.raises(UserError, match="were not kept"):
        package.load(tmp_path / "run", 0)
    (tmp_path / "run/fedavg/seed-0/clients.csv").unlink()
    with pytest.raises(UserError, match="has not finished"):
        package.load(tmp_path / "run", 0)


def test_models_that_stay_at_their_sites(grey: Grey, tmp_path: Path) -> None:
    """In a real federation the server's folder knows the clients but has not their models."""
    shutil.copytree(grey[0], tmp_path / "run")
    place = tmp_path / "run/pgfed/seed-0/models/manifest.json"
    manifest = json.loads(place.read_text())
    for row in manifest["clients"][:2]:
        del row["file"], row["sha256"]
    del manifest["global"]
    place.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="client 1 is not here but at its site"):
        package.load(tmp_path / "run", 1, method="pgfed")
    package.load(tmp_path / "run", 2, method="pgfed")
    with pytest.raises(UserError, match="holds no global model"):
        kept_models(tmp_path / "run", "pgfed", 0).shared_model()
    with pytest.raises(UserError, match="knows no such file"):
        package.load(tmp_path / "run/pgfed/seed-0/models/global.safetensors")


def own_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


def test_a_users_own_model(tmp_path: Path) -> None:
    data = blobs(90)
    given = {"clients": 3, "min_samples": 5, "rounds": 1, "backend": "serial"}
    result = small_runs.run(
        (data["x"], data["y"]),
        methods=["fedavg"],
        model=own_model,
        out=tmp_path / "run",
        **given,
    )
    file = tmp_path / "run/fedavg/seed-0/models/global.safetensors"
    opened = package.open(tmp_path / "run")
    for attempt in (
        lambda: package.load(tmp_path / "run", 2),
        lambda: package.load(file, allow_modules=["another"]),
        lambda: opened.model(2, "fedavg"),
        lambda: opened.global_model("fedavg"),
    ):
        with pytest.raises(
            UserError, match=r"manifest.json: model: .* allow_modules=\[\""
        ) as error:
            attempt()
        assert f"would import the Python module {__name__!r}" in str(error.value)
    with pytest.raises(UserError, match="allowed: a list"):
        package.load(tmp_path / "run", 2, allow_modules=__name__)

    module, entry = package.load(tmp_path / "run", 2, allow_modules=[__name__])
    assert entry["model"].endswith("test_load:own_model")
    x = torch.from_numpy(data["x"])
    by_name = package.open(tmp_path / "run", allow_modules=[f"{__name__}:own_model"])
    with torch.no_grad():
        assert torch.equal(module(x), result.model(2, "fedavg")(x))
        assert torch.equal(module(x), by_name.model(2, "fedavg")(x))
