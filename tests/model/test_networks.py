"""The built-in models: what they are given, what they give, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pgfed as package
import small_runs
from pgfed.config.tables import Model
from pgfed.data.federation import Federation
from pgfed.engine.setup import with_model
from pgfed.errors import UserError
from pgfed.model.kinds import CLASSES, Segmentation
from pgfed.model.networks import default_model, factory, make_task


def inputs(shape: tuple[int, ...], tokens: int | None = None) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    if tokens is not None:
        return torch.randint(tokens, (2, *shape), generator=draw)
    return torch.randn(2, *shape, generator=draw)


@pytest.mark.parametrize(
    ("name", "shape", "options", "head", "outputs"),
    [
        ("linear", (2, 3, 4), {}, "1", 3),
        ("resnet18", (3, 16, 16), {}, "fc", 3),
        ("resnet18", (1, 72, 80), {"norm": "batch"}, "fc", 3),
        ("gru", (7,), {"vocabulary": 11}, "fc", 3),
        ("gru", (4, 9), {}, "fc", 3),
        ("gru", (1, 4, 9), {}, "fc", 3),
    ],
)
def test_outputs_and_heads(
    name: str, shape: tuple[int, ...], options: dict[str, Any], head: str, outputs: int
) -> None:
    x = inputs(shape, options.get("vocabulary"))
    task = make_task(factory(name, options), shape, outputs, seed=0, example=x)
    assert (task.head_name, task.outputs) == (head, outputs)
    assert task.linear_head
    assert task.logits(task.initial(), x).shape == (2, outputs)


@pytest.mark.parametrize("size", [(16, 16), (7, 13), (1, 1)])
def test_a_unet_answers_for_each_pixel_of_images_of_any_size(size: tuple[int, int]) -> None:
    shape = (2, *size)
    x = inputs(shape)
    objective = Segmentation(["background", "tumour"])
    task = make_task("unet-small", shape, 2, seed=0, example=x, objective=objective)
    assert task.head_name == "head"
    assert task.logits(task.initial(), x).shape == (2, 2, *size)
    y = torch.randint(2, (2, *size), generator=torch.Generator().manual_seed(1))
    assert task.gradient(task.initial(), x, y).isfinite().all()


def test_resnet18_has_the_published_number_of_parameters() -> None:
    # torchvision's resnet18 has 11,689,512 with 1,000 classes and 3 channels.
    task = make_task("resnet18", (3, 64, 64), 1000, seed=0)
    assert task.d == 11_689_512
    assert task.layout.extra == 0
    batch = make_task(factory("resnet18", {"norm": "batch"}), (3, 64, 64), 1000, seed=0)
    assert batch.d == 11_689_512
    assert batch.layout.extra == 9_600


def test_a_gru_sees_the_order_of_its_tokens() -> None:
    x = torch.tensor([[1, 2, 3], [3, 2, 1]])
    task = make_task(factory("gru", {"vocabulary": 4}), (3,), 2, seed=0, example=x)
    one, other = task.logits(task.initial(), x)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet18", (4, 4), {}, "'resnet18' needs images of at least 8x8"),
        ("gru", (9,), {}, "'gru' needs series .* or tokens .* with model.vocabulary"),
        ("gru", (3, 8, 8), {}, "'gru' needs series"),
        ("gru", (2, 9), {"vocabulary": 5}, "model.vocabulary: texts are N x length"),
        ("unet-small", (9,), {}, "'unet-small' needs images"),
        ("cnn", (3, 16, 16), {"norm": "batch"}, "model.norm: .* model.name = 'resnet18' only"),
        ("mlp", (9,), {"vocabulary": 3}, "model.vocabulary: .* model.name = 'gru' only"),
    ],
)
def test_errors_say_what_a_model_needs(
    name: str, shape: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_task(factory(name, options), shape, 2, seed=0)


def test_masks_need_an_output_per_pixel_and_nothing_else_does() -> None:
    with pytest.raises(UserError, match=r"shape \(2, 2\) .* \(2, outputs, height, width\)"):
        make_task("mlp", (1, 8, 8), 2, seed=0, objective=Segmentation(["no", "yes"]))
    with pytest.raises(UserError, match=r"shape \(2, 2, 8, 8\) .* allowed: \(2, outputs\)"):
        make_task("unet-small", (1, 8, 8), 2, seed=0, objective=CLASSES)


def test_integers_are_tokens_and_the_error_says_so() -> None:
    with pytest.raises(UserError, match="integers are tokens; numbers must be floats"):
        make_task("mlp", (5,), 2, seed=0, example=inputs((5,), 3))


def federation(shape: tuple[int, ...], **changes: Any) -> Federation:
    n = 12
    x, y = np.zeros((n, *shape), np.float32), np.arange(n) % 2
    return replace(Federation.from_arrays(x, y, np.arange(n) % 3), **changes)


def test_the_default_fits_the_data() -> None:
    assert default_model(federation((3, 16, 16))) == "cnn"
    assert default_model(federation((3, 15, 16))) == "mlp"
    assert default_model(federation((7,))) == "mlp"
    assert default_model(federation((3, 16, 16), targets="masks")) == "unet-small"
    tokens = torch.arange(84).view(12, 7) % 11
    assert default_model(federation((7,), x=tokens)) == "gru"
    assert with_model(Model(), federation((7,), x=tokens)) == Model(name="gru", vocabulary=11)
    assert with_model(Model(vocabulary=50), federation((7,), x=tokens)).vocabulary == 50
    with pytest.raises(UserError, match="x holds the token -1; allowed: integers from 0 on"):
        with_model(Model(), federation((7,), x=tokens - 1))


def test_texts_from_arrays_to_a_model_at_home(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    x = np.where(rng.random((120, 6)) < 0.5, rng.integers(0, 20, (120, 6)), 20 + y[:, None])
    options: dict[str, Any] = {"clients": 3, "min_samples": 5, "rounds": 3, "lr": 0.1}
    result = small_runs.run(
        (x, y), methods=["fedavg"], out=tmp_path / "run", backend="serial", **options
    )
    assert 'name = "gru"' in (tmp_path / "run/experiment.toml").read_text()
    assert "vocabulary = 22" in (tmp_path / "run/experiment.toml").read_text()
    module, about = package.load(tmp_path / "run", 1)
    assert about["model_options"] == {"vocabulary": 22}
    with torch.no_grad():
        assert torch.equal(
            module(torch.from_numpy(x)), result.model(1, "fedavg")(torch.from_numpy(x))
        )
