"""Augmentation: what is done to the samples of steps, keyed, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pgfed.config.experiment import load, own_names
from pgfed.data.augment import augmentation, check_augment, flip_crop
from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.errors import UserError
from pgfed.methods.fedavg import FedAvg
from pgfed.testing import TRAIN, check_equal, outcome, started, trivial_federation


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def places(n: int, height: int, width: int) -> Tensor:
    """Images whose pixels say where they are: channel 0 the row, channel 1 the column."""
    rows = torch.arange(float(height))[:, None].expand(height, width)
    columns = torch.arange(float(width)).expand(height, width)
    return torch.stack([rows, columns]).expand(n, 2, height, width).clone()


def test_images_are_shifted_a_little_and_half_of_them_turned() -> None:
    n, height, width = 400, 16, 24
    x, y = flip_crop(places(n, height, width), torch.arange(n), draw())
    assert x.shape == (n, 2, height, width)
    assert y.tolist() == list(range(n))
    # Inside the mirrored border rows go up by one, columns up or down by one.
    step = x[:, 1, 8, 13] - x[:, 1, 8, 12]
    assert set(step.tolist()) == {1.0, -1.0}
    assert 0.4 < float((step < 0).double().mean()) < 0.6
    shift = x[:, 0, 8, 12] - 8
    assert set(shift.tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}, "up to an eighth of the height"
    across = torch.where(step > 0, x[:, 1, 8, 12] - 12, 11 - x[:, 1, 8, 12])
    assert across.abs().max() == 3
    assert torch.equal(x[:, 0, 8, 0], x[:, 0, 8, 23]), "a row stays a row"


def test_masks_go_with_their_images() -> None:
    x = places(20, 9, 11)
    mask = (x[:, 0] * 100 + x[:, 1]).long()
    moved, targets = flip_crop(x, mask, draw(1))
    assert torch.equal(targets, (moved[:, 0] * 100 + moved[:, 1]).long())
    assert not torch.equal(targets, mask)


def shifted(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return x + torch.randn(x.shape, generator=generator), y


def fewer(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return x[:1], y[:1]


def broken(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    raise ValueError("no\nsuch luck")


def test_refusals() -> None:
    data = trivial_federation()
    for name, message in (
        ("flip", "train.augment: found 'flip'; allowed: none, flip-crop, package.module:function"),
        ("flip-crop", "train.augment: 'flip-crop' needs images, the data is (8,) a sample"),
        (f"{__name__}:fewer", "must give (x, y) of the same shapes and types"),
        (f"{__name__}:broken", "broken' failed: no"),
        (f"{__name__}:TRAIN", "is not callable"),
    ):
        with pytest.raises(UserError) as caught:
            check_augment(name, data)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    check_augment("none", data)
    check_augment(f"{__name__}:shifted", data)
    assert augmentation("none") is None


def test_a_function_of_ones_own_is_named_among_what_would_be_imported() -> None:
    words = ["train.augment=a:b", "method.fedavg.augment=c:d"]
    assert dict(own_names(load(None, words))) == {
        "train.augment": "a:b",
        "method.fedavg.augment": "c:d",
    }


def small_images() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    return Federation.from_arrays(x, rng.integers(0, 3, 60), np.arange(60) % 6)


def network(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, outputs))


@pytest.mark.parametrize("name", ["flip-crop", f"{__name__}:shifted"])
def test_runs_are_repeatable_on_every_engine(name: str) -> None:
    def run(make: Callable[..., Any], augment: str, **options: Any) -> dict[str, Any]:
        train = replace(TRAIN, augment=augment)
        with started(FedAvg(train=train), make(small_images(), network, **options)) as run:
            return outcome(run)

    expected = run(Serial, name)
    check_equal(expected, run(Process, name, workers=2), "serial and process")
    assert not torch.equal(expected["global model"], run(Serial, "none")["global model"])
