"""[train] precision: gradients in bfloat16, everything else as it is."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import pgfed
from pgfed.errors import UserError
from pgfed.methods.registry import get
from pgfed.model.networks import make_task
from pgfed.model.task import Task
from pgfed.testing.running import TRAIN, check_equal, make, outcome, started

STEP = 2.0**-8  # bfloat16 keeps eight bits


def _task(model: str = "cnn", *, low: bool) -> tuple[Task, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (3, 16, 16)
    task = make_task(model, shape, 4, seed=0)
    task.bfloat16 = low
    x = torch.randn(12, *shape, generator=generator)
    return task, x, torch.arange(12) % 4


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_a_gradient_in_bfloat16_is_near_the_exact_one_and_no_copy_of_it(model: str) -> None:
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


def test_a_model_that_cannot_is_named_before_the_training() -> None:
    with pytest.raises(UserError, match=r"train\.precision: .* bfloat16: only in float32"):
        pgfed.run("digits", model=Doubles, rounds=1, train={"precision": "bfloat16"})


@pytest.mark.parametrize("has", [False, True])
def test_a_processor_without_it_is_told_of(
    has: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    able = {"architecture": "x86_64", "avx512_bf16": has}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    with caplog.at_level(logging.WARNING, logger="pgfed"):
        pgfed.run(
            "digits",
            methods=["fedavg"],
            rounds=1,
            train={"precision": "bfloat16", "epochs": 1},
            engine={"backend": "serial"},
        )
    assert ("slower than with float32" in caplog.text) is not has
