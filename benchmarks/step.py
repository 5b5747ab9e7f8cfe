"""What one step of local training is made of, on one thread: the paper's CNN, CIFAR-10's shapes.

The matrix operations of a step one by one, with the share of SGEMM's rate at which each runs; all
of them as a share of the whole step, which bounds what anything around them could still give; and
the same step with its derivatives written out by hand, which shows what autograd costs.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.text import show, table
from pgfed.bench import CIFAR, random_federation
from pgfed.core import Rng, TrainConfig, batches, sgd
from pgfed.data.federation import Shard
from pgfed.engine.client import become_worker
from pgfed.models import make_task
from pgfed.task import Task

aten = torch.ops.aten
LR, MOMENTUM = 0.001, 0.9
SGEMM = 1024
ANY = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # a convolution without padding or strides


def operations(batch: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Each with the floating point operations that it takes per image."""

    def image_like(channels: int, size: int) -> Tensor:
        images = torch.randn(batch, channels, size, size)
        return images.contiguous(memory_format=torch.channels_last)

    def convolution(name: str, channels: tuple[int, int], size: int) -> None:
        before, after = channels
        x, gradient = image_like(before, size), image_like(after, size - 4)
        kernel = torch.randn(after, before, 5, 5).contiguous(memory_format=torch.channels_last)
        bias = torch.randn(after)
        cost = 2 * (size - 4) ** 2 * 25 * before * after

        def backward(*wanted: bool) -> object:
            return aten.convolution_backward(gradient, x, kernel, [after], *ANY, list(wanted))

        found[f"{name}, forward"] = lambda: F.conv2d(x, kernel, bias), cost
        if before > 3:  # nobody asks for the gradient of the images
            found[f"{name}, input gradient"] = lambda: backward(True, False, False), cost
        found[f"{name}, weight gradient"] = lambda: backward(False, True, True), cost

    found: dict[str, tuple[Callable[[], object], float]] = {}
    convolution("conv1", (3, 32), 32)
    convolution("conv2", (32, 64), 14)
    x, weight, bias = torch.randn(batch, 1600), torch.randn(512, 1600), torch.randn(512)
    gradient = torch.randn(batch, 512)
    cost = 2 * 1600 * 512
    found["fc1, forward"] = lambda: F.linear(x, weight, bias), cost
    found["fc1, input gradient"] = lambda: gradient @ weight, cost
    found["fc1, weight gradient"] = lambda: gradient.T @ x, cost
    return found


@torch.no_grad()
def by_hand(task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig) -> Tensor:
    """What `sgd` does for the paper's CNN, without autograd: bare kernels, one after the other."""
    theta = theta.clone()
    v = torch.zeros_like(theta)
    w1, b1, w2, b2, w3, b3, w4, b4 = (e.view(theta) for e in task._trained)
    v1, u1, v2, u2, v3, u3, v4, u4 = (e.view(v) for e in task._trained)
    pooling = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    for x, y in batches(data, train.batch_size, rng, epochs=train.epochs, purpose="train"):
        v.mul_(MOMENTUM)
        c1 = aten.convolution(x, w1, b1, *ANY)
        p1, at1 = aten.max_pool2d_with_indices(c1, *pooling)
        p1.relu_()
        c2 = aten.convolution(p1, w2, b2, *ANY)
        p2, at2 = aten.max_pool2d_with_indices(c2, *pooling)
        flat = p2.relu_().flatten(1)
        h = torch.addmm(b3, flat, w3.T).relu_()
        d4 = torch.addmm(b4, h, w4.T).softmax(1)
        d4[torch.arange(len(y)), y] -= 1
        d4 /= len(y)
        d3 = (d4 @ w4).mul_(h > 0)
        v4.addmm_(d4.T, h)
        u4.add_(d4.sum(0))
        v3.addmm_(d3.T, flat)
        u3.add_(d3.sum(0))
        d2 = (d3 @ w3).view(p2.shape).contiguous(memory_format=torch.channels_last)
        d2 = aten.threshold_backward(d2, p2, 0)
        d2 = aten.max_pool2d_with_indices_backward(d2, c2, *pooling, at2)
        d1, g2, g2_bias = aten.convolution_backward(d2, p1, w2, [64], *ANY, [True] * 3)
        v2.add_(g2)
        u2.add_(g2_bias)
        d1 = aten.threshold_backward(d1, p1, 0)
        d1 = aten.max_pool2d_with_indices_backward(d1, c1, *pooling, at1)
        _, g1, g1_bias = aten.convolution_backward(d1, x, w1, [32], *ANY, [False, True, True])
        v1.add_(g1)
        u1.add_(g1_bias)
        theta.add_(v, alpha=-LR)
    return theta


def run(seconds: float = 40) -> Iterator[str]:
    for batch in (10, 128):
        yield f"### Batch {batch}"
        with multiprocessing.get_context("fork").Pool(1, become_worker) as worker:
            yield from worker.apply(_measure, (batch, seconds))


def _measure(batch: int, seconds: float) -> list[str]:
    steps = max(2, 100 // batch)
    data = random_federation(batch * steps, clients=1).train(0)
    task = make_task("cnn", CIFAR, 10, seed=0)
    start, rng = task.initial(), Rng(0, 0, 1)
    train = TrainConfig(epochs=1, batch_size=batch, lr=LR, momentum=MOMENTUM)
    ours = sgd(task, start, data, rng, train)[0]
    torch.testing.assert_close(by_hand(task, start, data, rng, train), ours, rtol=0, atol=1e-5)
    a, b = torch.randn(SGEMM, SGEMM), torch.randn(SGEMM, SGEMM)

    found = operations(batch)
    lanes: list[Callable[[], object]] = [
        lambda: a @ b,
        lambda: sgd(task, start, data, rng, train),
        lambda: by_hand(task, start, data, rng, train),
        *(operation for operation, _ in found.values()),
    ]
    rows = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(rows) < 5:
        rows.append([_seconds(lane) for lane in lanes])
    rate = [2 * SGEMM**3 / row[0] for row in rows]

    def share(cost: float, took: list[float]) -> str:
        """Of SGEMM's rate in the same turn."""
        shares = [batch * cost / t / r for t, r in zip(took, rate, strict=True)]
        return f"{100 * median(shares):.0f} %"

    def ms(took: list[float]) -> str:
        return f"{1e3 * median(took):.2f}"

    columns = [list(column) for column in zip(*rows, strict=True)]
    step, hand = ([t / steps for t in column] for column in columns[1:3])
    kernels = [sum(row[3:]) for row in rows]
    total = sum(cost for _, cost in found.values())
    lines = [
        (name, ms(took), share(cost, took))
        for (name, (_, cost)), took in zip(found.items(), columns[3:], strict=True)
    ]
    lines += [
        ("all of these", ms(kernels), share(total, kernels)),
        ("the same step by hand, without autograd", ms(hand), share(total, hand)),
        ("a step of the engine", ms(step), share(total, step)),
    ]
    bound = median(s / k for s, k in zip(step, kernels, strict=True))
    gain = median(s / h for s, h in zip(step, hand, strict=True))
    return [
        *table(("operation", "ms", "of SGEMM's rate"), lines),
        f"Medians of {len(rows)} turns, one thread; {total / 1e6:.1f} MFLOP per image.",
        "",
        f"- a step takes {bound:.2f} times as long as its matrix operations, and {gain:.2f} times "
        "as long as by hand",
        "",
    ]


def _seconds(work: Callable[[], object]) -> float:
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    show(run())
