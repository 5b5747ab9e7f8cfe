"""[train] precision: gradients in bfloat16, everything else as it is."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import pgfed
from pgfed.config.experiment import data_root, load
from pgfed.engine.setup import prepare
from pgfed.errors import UserError
from pgfed.methods.registry import get
from pgfed.model.networks import Factory, make_task
from pgfed.model.task import Task
from pgfed.testing.running import TRAIN, check_equal, make, outcome, started

STEP = 2.0**-8  # bfloat16 keeps eight bits


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    first, norm = nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4)
    return nn.Sequential(first, norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, outputs))


def _task(model: str | Factory = "cnn", *, low: bool) -> tuple[Task, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (3, 16) if model == "gru" else (3, 16, 16)
    task = make_task(model, shape, 4, seed=0)
    task.bfloat16 = low
    x = torch.randn(12, *shape, generator=generator)
    return task, x, torch.arange(12) % 4


@pytest.mark.parametrize("model", ["cnn", "mlp", "gru", normed])
def test_a_gradient_in_bfloat16_is_near_the_exact_one_and_no_copy_of_it(
    model: str | Factory,
) -> None:
    found = []
    for low in (False, True):
        task, x, y = _task(model, low=low)
        found.append(task.gradient(task.initial(), x, y))
    exact, rounded = found
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert float((exact - rounded).norm()) < 0.1 * float(exact.norm())


def test_layers_see_rounded_numbers_and_the_loss_does_not() -> None:
    """A linear model: bfloat16 products by hand, in float64, then a soft-max in float32."""
    task, x, y = _task("linear", low=True)
    theta = task.initial()
    gradient = task.gradient(theta, x, y)
    wide = x.flatten(1).shape[1]
    weight, bias = theta[: 4 * wide].view(4, wide), theta[4 * wide :]
    low = [t.bfloat16().double() for t in (x.flatten(1), weight, bias)]
    outputs = (low[0] @ low[1].T + low[2]).bfloat16().double()
    slope = torch.softmax(outputs, 1) - nn.functional.one_hot(y, 4)
    slope = (slope / len(y)).bfloat16().double()
    expected = torch.cat([(slope.T @ low[0]).flatten(), slope.sum(0)])
    assert float((gradient - expected).norm()) < 2 * STEP * float(expected.norm())
    torch.testing.assert_close(
        task.logits(theta, x), x.flatten(1) @ weight.T + bias, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("method", ["fedavg", "pgfed", "fedrod", "fedrep", "moon", "per-fedavg"])
def test_a_run_in_bfloat16_is_the_same_on_worker_processes(method: str) -> None:
    from pgfed.engine.backends.process import Process
    from pgfed.testing.material import small_model, trivial_federation

    low = make(get(method), {"train": replace(TRAIN, precision="bfloat16")})
    with started(low, rounds=2) as run:
        expected = outcome(run)
    with started(low, Process(trivial_federation(), small_model, workers=2), rounds=2) as run:
        check_equal(outcome(run), expected, "worker processes")
    with started(make(get(method), {}), rounds=2) as run:
        exact = outcome(run)
    name = next(k for k, v in exact.items() if isinstance(v, Tensor) and v.numel() > 100)
    assert not torch.equal(exact[name], expected[name])
    assert expected[name].dtype == torch.float32


class Doubles(nn.Module):
    """A model that insists on single precision."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 8)
        self.fc2 = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc1(x.flatten(1))
        if z.dtype != torch.float32:
            raise RuntimeError("only in float32")
        out: Tensor = self.fc2(z)
        return out


class OneWay(torch.autograd.Function):
    """A layer whose backward pass is for single precision alone."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:
        if slope.dtype != torch.float32:
            raise RuntimeError("no way back")
        return slope


class Backwards(Doubles):
    """A model that computes in bfloat16, until it is differentiated."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(OneWay.apply(self.fc1(x.flatten(1))))
        return out


@pytest.mark.parametrize(("model", "said"), [(Doubles, "only in float32"), (Backwards, "no way")])
def test_a_model_that_cannot_is_named_before_the_training(model: type[Doubles], said: str) -> None:
    with pytest.raises(UserError, match=rf"train\.precision: .* bfloat16: {said}"):
        pgfed.run("digits", model=model, rounds=1, train={"precision": "bfloat16"})


@pytest.mark.parametrize(
    ("has", "model", "said"),
    [
        (False, "gru", "this processor does not compute in bfloat16"),
        (True, "gru", ""),
        (True, "mlp", "the gradient of this small model is written out"),
    ],
)
def test_who_would_be_slower_is_told(
    has: bool,
    model: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    able = {"architecture": "x86_64", "avx512_bf16": has}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    settings = [f"model.name={model}", "train.precision=bfloat16", "methods=['fedavg']"]
    with caplog.at_level(logging.WARNING, logger="pgfed"):
        prepare(load(None, settings), data_root(None))
    assert said in caplog.text
    assert ("slower than with float32" in caplog.text) is bool(said)
