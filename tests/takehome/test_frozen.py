"""A frozen backbone: it never travels, lies once beside the models, and comes back with them."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import pgfed as package
import small_runs
from pgfed.config.experiment import load
from pgfed.engine.setup import prepare
from pgfed.errors import UserError
from pgfed.modules import Allowed
from pgfed.report.rendering import write_page
from pgfed.results.folder.reader import load as read
from pgfed.results.folder.writer import RunWriter
from pgfed.results.formats import travelling
from pgfed.takehome.onboard import onboard, write

OPTIONS: dict[str, Any] = {"clients": 3, "min_samples": 5, "rounds": 2, "backend": "serial"}
TRUSTED = Allowed(frozenset({__name__}))
ELSEWHERE = "PGFED_TEST_BACKBONE"  # stands for a file of weights that somebody replaced


def backbone(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Of 6 -> 20 -> 4 numbers only the last layer is trained."""
    fixed = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Linear(20, 4))
    if ELSEWHERE in os.environ:
        nn.init.zeros_(fixed[0].weight)
    fixed.requires_grad_(False)
    return nn.Sequential(fixed, nn.Linear(4, outputs))


def samples(n: int = 90) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    return (2 * np.eye(3, 6)[y] + rng.normal(size=(n, 6))).astype(np.float32), y


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("frozen") / "run"
    small_runs.run(samples(), methods=["local", "fedavg"], model=backbone, out=out, **OPTIONS)
    return out


def test_what_is_trained_travels_and_nothing_else(folder: Path) -> None:
    records = (folder / "fedavg/seed-0/history.jsonl").read_text().splitlines()
    record = json.loads(records[0])
    assert record["bytes_down"] == len(record["cohort"]) * 4 * 15
    about = json.loads((folder / "environment.json").read_text())["model"]
    assert about["travels"] == {"local": 0, "fedavg": 15}
    # 6 * 20 + 20 weights, 4 * 20 + 1 numbers of the norm, 20 * 4 + 4 weights
    assert (about["trained"], about["buffers"], about["frozen"]) == (15, 0, 305)
    assert travelling(about) == (
        "15 numbers: 15 sent each way (60 B) and 0 kept at home by fedavg; 0 sent each way (0 B) "
        "and 15 kept at home by local; 305 frozen (1.22 kB), never sent"
    )
    assert "305 frozen (1.22 kB), never sent" in write_page(folder).read_text()


def test_it_lies_once_beside_the_models_and_comes_back_with_them(folder: Path) -> None:
    models = folder / "fedavg/seed-0/models"
    fixed = load_file(models / "frozen.safetensors")
    assert all(name.startswith("0.") for name in fixed)
    for file in models.glob("client-*.safetensors"):
        assert load_file(file).keys() == {"1.weight", "1.bias"}
    module, about = package.load(folder, 1, method="fedavg", allow_modules=[__name__])
    assert about["frozen"]["file"] == "frozen.safetensors"
    values = module.state_dict()
    assert all(torch.equal(values[name], value) for name, value in fixed.items())
    opened = package.open(folder, allow_modules=[__name__])
    x = torch.from_numpy(samples()[0])
    with torch.no_grad():
        assert torch.equal(opened.model(1, "fedavg")(x), module(x))
    (models / "frozen.safetensors").rename(models / "gone")
    try:
        with pytest.raises(UserError, match=r"frozen.safetensors: cannot be read"):
            package.load(folder, 1, method="fedavg", allow_modules=[__name__])
    finally:
        (models / "gone").rename(models / "frozen.safetensors")


def test_in_memory_it_is_the_same(folder: Path) -> None:
    result = small_runs.run(samples(), methods=["fedavg"], model=backbone, **OPTIONS)
    module, _ = package.load(folder, 2, method="fedavg", allow_modules=[__name__])
    values = result.model(2, "fedavg").state_dict()
    assert all(torch.equal(values[name], value) for name, value in module.state_dict().items())


def test_a_new_site_takes_it_home(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(60)
    np.savez(tmp_path / "new.npz", x=x, y=y)
    # Even where the factory gives another one by now: what counts is what the models had.
    monkeypatch.setenv(ELSEWHERE, "")
    options: dict[str, Any] = {"method": "fedavg", "seed": 0, "epochs": 1, "lr": 0.1}
    data = f"npz:{tmp_path / 'new.npz'}"
    made = onboard(read(folder), data, data_root=tmp_path, allowed=TRUSTED, **options)
    write(made, tmp_path / "home")
    ours = (tmp_path / "home/fedavg/frozen.safetensors").read_bytes()
    assert ours == (folder / "fedavg/seed-0/models/frozen.safetensors").read_bytes()
    file = tmp_path / "home/fedavg/model.safetensors"
    module, _ = package.load(file, allow_modules=[__name__])
    assert module.state_dict()["0.0.weight"].any()


def test_a_run_is_not_resumed_with_another_backbone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, y = samples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    values = {"data.dataset": f"npz:{tmp_path / 'data.npz'}", "model.name": f"{__name__}:backbone"}
    settings = {**values, "data.clients": 3, "data.min_samples": 5, "rounds": 2}
    words = [f"{key}={value}" for key, value in settings.items()]
    setup = prepare(load(None, words), tmp_path)
    with RunWriter(tmp_path / "run", setup):
        pass
    monkeypatch.setenv(ELSEWHERE, "")
    other = prepare(load(None, words), tmp_path)
    with (
        pytest.raises(UserError, match="the model's frozen values are not those"),
        RunWriter(tmp_path / "run", other, resume=True),
    ):
        pass


def test_the_example_sends_adapters_and_head_only(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "examples/own_text_model.py"
    example = runpy.run_path(str(file))
    result = small_runs.run(
        example["four_publishers"](80),
        methods=["fedavg"],
        model=example["Transformer"],
        out=tmp_path / "run",
        backend="serial",
        rounds=1,
        epochs=1,
    )
    model = result.global_model("fedavg")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(".a." in name or ".b." in name or name.startswith("head") for name in trained)
    record = json.loads((tmp_path / "run/fedavg/seed-0/history.jsonl").read_text())
    assert record["bytes_down"] == 4 * 4 * sum(p.numel() for p in trained.values())
    frozen = load_file(tmp_path / "run/fedavg/seed-0/models/frozen.safetensors")
    assert {"words.weight", "places.weight", "blocks.0.query.frozen.weight"} < frozen.keys()
