"""What a step of local training is made of: the paper's CNN on CIFAR-10's shapes.

The matrix operations of a step one by one, with the share of SGEMM's rate at which each runs; all
of them beside the whole step, which bounds what anything around them could still give; the step
with its derivatives written out by hand, which shows what autograd costs; and what PGFed adds to
it. One thread on each core, all cores at the same time.

And a step of a small model, on one core: with autograd, ours, and by hand in numpy, which shows
what torch's calls cost and how fast this machine is at them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.text import show, table, verdict
from pgfed.data.federation import Shard
from pgfed.engine.backends.process import available_cores
from pgfed.engine.client import become_worker
from pgfed.methods import alphas as pairs
from pgfed.methods.pgfed import PGFed
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import sgd
from pgfed.model.networks import MLP, make_task
from pgfed.model.task import Task
from pgfed.tuning.speed import CIFAR, random_federation

aten = torch.ops.aten
SGEMM = 1024
COHORT = 12  # a quarter of 50 clients
ARITHMETIC = {10: (8.0, 4.0), 128: (3.0, 1.0)}  # batch size: percent over FedAvg (must, goal)
SMALL = (1, 8, 8)  # the digits' shape: 64-128-10 for the MLP
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


def patches(x: Tensor) -> Tensor:
    """One row for each 5x5 patch of channels-last images."""
    n, channels, height, width = x.shape
    images, rows, pixels = x.stride(0), x.stride(2), x.stride(3)
    shape = (n, height - 4, width - 4, 5, 5 * channels)
    return x.as_strided(shape, (images, rows, pixels, rows, 1)).reshape(-1, 25 * channels)


@torch.no_grad()
def by_hand(task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig) -> Tensor:
    """What `sgd` does for the paper's CNN, as fast as torch's operations were found to allow.

    No autograd, gradients straight into the momentum buffer, and the second convolution's weight
    gradient as a matrix product over patches, which beats oneDNN's kernel for AVX2.
    """
    theta = theta.clone()
    v = torch.zeros_like(theta)
    w1, b1, w2, b2, w3, b3, w4, b4 = (e.view(theta) for e in task._trained)
    v1, u1, v2, u2, v3, u3, v4, u4 = (e.view(v) for e in task._trained)
    v2_rows = v2.permute(0, 2, 3, 1).view(64, -1)
    pooling = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    for x, y in task.batches(data, train.batch_size, rng, epochs=train.epochs):
        v.mul_(train.momentum)
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
        d1 = aten.convolution_backward(d2, p1, w2, [64], *ANY, [True, False, False])[0]
        by_pixel = d2.permute(0, 2, 3, 1)
        for k in range(0, len(x), 16):  # so many patches fit the cache
            some = slice(k, k + 16)
            v2_rows.addmm_(by_pixel[some].reshape(-1, 64).T, patches(p1[some]))
        u2.add_(by_pixel.sum((0, 1, 2)))
        d1 = aten.threshold_backward(d1, p1, 0)
        d1 = aten.max_pool2d_with_indices_backward(d1, c1, *pooling, at1)
        _, g1, g1_bias = aten.convolution_backward(d1, x, w1, [32], *ANY, [False, True, True])
        v1.add_(g1)
        u1.add_(g1_bias)
        theta.add_(v, alpha=-train.lr)
    return theta


def run(seconds: float = 20, processes: int = 6) -> Iterator[str]:
    cores = available_cores()
    for batch, limits in ARITHMETIC.items():
        yield f"### Batch {batch}"
        rows: list[list[float]] = []
        # Where a process has its tensors in memory makes a difference of some percent.
        for _ in range(processes):
            with multiprocessing.get_context("fork").Pool(cores, become_worker) as workers:
                for found in workers.starmap(_measure, [(batch, seconds)] * cores, chunksize=1):
                    rows += found
        yield from _report(batch, rows, processes * cores, *limits)
    yield "### A small model"
    with multiprocessing.get_context("fork").Pool(1, become_worker) as workers:
        yield from _report_small(workers.apply(_measure_small, (seconds,)))


def _measure(batch: int, seconds: float) -> list[list[float]]:
    """Seconds of matrix products, of steps, of the gradient pass, and of each operation."""
    steps = max(4, 200 // batch)
    data = random_federation(batch * steps, clients=1).train(0)
    task = make_task("cnn", CIFAR, 10, seed=0)
    start, rng = task.initial(), Rng(0, 0, 1)
    train = TrainConfig(epochs=1, batch_size=batch, lr=0.001)
    ours = sgd(task, start, data, rng, train)[0]
    torch.testing.assert_close(by_hand(task, start, data, rng, train), ours, rtol=0, atol=1e-5)
    pgfed = PGFed(train=train)
    state = {"w": start, **pairs.empty_row(COHORT)}
    message = {
        "w": start,
        "aux": 1e-4 * torch.randn(task.d),
        "mean_gradient": 1e-4 * torch.randn(task.d),
        "risks": torch.rand(COHORT),
        "ids": torch.arange(COHORT),
    }
    a, b = torch.randn(SGEMM, SGEMM), torch.randn(SGEMM, SGEMM)
    gradient_pass, nothing = task.mean_gradient, (0.0, torch.zeros(task.d))
    lanes: list[tuple[Callable[[], object], int]] = [
        (lambda: a @ b, 1),
        (lambda: sgd(task, start, data, rng, train), steps),
        (lambda: by_hand(task, start, data, rng, train), steps),
        (lambda: pgfed.local_update(task, state, message, data, rng), steps),
        (lambda: gradient_pass(start, data, rng, train.batch_size), steps),
        *((operation, 1) for operation, _ in operations(batch).values()),
    ]
    # PGFed's steps without its gradient pass, which is measured by itself.
    with patch.object(task, "mean_gradient", lambda *_, **__: nothing):
        return _turns(lanes, seconds)


def _turns(lanes: Sequence[tuple[Callable[[], object], int]], seconds: float) -> list[list[float]]:
    """Seconds of one of the so many pieces of work in each lane, turn by turn."""
    rows: list[list[float]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(rows) < 5:
        rows.append([_seconds(lane) / times for lane, times in lanes])
    return rows


def _seconds(work: Callable[[], object]) -> float:
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _report(
    batch: int, rows: list[list[float]], processes: int, must: float, goal: float
) -> Iterator[str]:
    def ms(took: Sequence[float]) -> str:
        return f"{1e3 * median(took):.2f}"

    def share(cost: float, took: Sequence[float]) -> str:
        """Of SGEMM's rate in the same turn."""
        shares = [batch * cost / 2 / SGEMM**3 * s / t for s, t in zip(sgemm, took, strict=True)]
        return f"{100 * median(shares):.0f} %"

    def times(took: Sequence[float], others: Sequence[float]) -> float:
        return median(t / other for t, other in zip(took, others, strict=True))

    sgemm, step, hand, pgfed, gradient, *each = zip(*rows, strict=True)
    kernels = [sum(row) for row in zip(*each, strict=True)]
    costs = {name: cost for name, (_, cost) in operations(batch).items()}
    total = sum(costs.values())
    lines = [
        (name, ms(took), share(cost, took))
        for (name, cost), took in zip(costs.items(), each, strict=True)
    ]
    lines += [
        ("all of these", ms(kernels), share(total, kernels)),
        ("a step, written by hand without autograd", ms(hand), share(total, hand)),
        ("a step of FedAvg", ms(step), share(total, step)),
        ("a step of PGFed", ms(pgfed), share(total, pgfed)),
        ("PGFed's gradient pass, as many images", ms(gradient), share(total, gradient)),
    ]
    yield from table(("operation", "ms", "of SGEMM's rate"), lines)
    yield (
        f"Medians of {len(rows)} turns in {processes} processes, one thread on each core; "
        f"{total / 1e6:.1f} MFLOP per image and step."
    )
    yield ""
    yield (
        f"- a step of FedAvg takes {times(step, kernels):.2f} times as long as its matrix "
        f"operations, and {times(step, hand):.2f} times as long as by hand"
    )
    own = 100 * (times(pgfed, step) - 1)
    told = "PGFed's own arithmetic over FedAvg"
    yield verdict(told, own, must, goal, unit=" %", at_most=True)
    yield verdict("the gradient pass, times FedAvg's images/s", times(step, gradient), 1.0)
    yield ""


# -- a small model -------------------------------------------------------------------------------


def with_autograd(task: Task, data: Shard, rng: Rng, train: TrainConfig) -> Tensor:
    """What one would write: a module, a loss, torch's optimizer."""
    module = MLP(SMALL, 10)
    nn.utils.vector_to_parameters(task.initial(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=train.lr, momentum=train.momentum)
    for x, y in task.batches(data, train.batch_size, rng):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def in_numpy(task: Task, data: Shard, rng: Rng, train: TrainConfig) -> Tensor:
    """The fewest calls that we know of: other kernels, so other last bits."""
    theta = task.initial().numpy().copy()
    v = np.zeros_like(theta)
    w1, b1, w2, b2 = (e.view(torch.from_numpy(theta)).numpy() for e in task._trained)
    v1, u1, v2, u2 = (e.view(torch.from_numpy(v)).numpy() for e in task._trained)
    rho, eta = np.float32(train.momentum), np.float32(train.lr)
    for inputs, y in task.batches(data, train.batch_size, rng):
        x = inputs.numpy().reshape(len(y), -1)
        h = np.maximum(x @ w1.T + b1, 0)
        d = h @ w2.T + b2
        np.exp(d - d.max(1, keepdims=True), out=d)
        d /= d.sum(1, keepdims=True)
        d[np.arange(len(y)), y.numpy()] -= 1
        d /= len(y)
        below = (d @ w2) * (h > 0)
        v *= rho
        v1 += below.T @ x
        u1 += below.sum(0)
        v2 += d.T @ h
        u2 += d.sum(0)
        theta -= eta * v
    return torch.from_numpy(theta)


def _measure_small(seconds: float, steps: int = 60) -> list[list[float]]:
    """Seconds of a step: with autograd, ours, in numpy."""
    data = random_federation(10 * steps, clients=1, input_shape=SMALL).train(0)
    task = make_task("mlp", SMALL, 10, seed=0)
    rng, train = Rng(0, 0, 1), TrainConfig(epochs=1, batch_size=10, lr=0.001)
    lanes: list[Callable[[], Tensor]] = [
        lambda: with_autograd(task, data, rng, train),
        lambda: sgd(task, task.initial(), data, rng, train)[0],
        lambda: in_numpy(task, data, rng, train),
    ]
    autograd, ours, by_numpy = (lane() for lane in lanes)
    torch.testing.assert_close(autograd, ours, rtol=0, atol=1e-5)
    torch.testing.assert_close(by_numpy, ours, rtol=0, atol=1e-5)
    return _turns([(lane, steps) for lane in lanes], seconds)


def _report_small(rows: list[list[float]]) -> Iterator[str]:
    names = ("with autograd and torch.optim", "ours", "by hand in numpy")
    took = [median(column) for column in zip(*rows, strict=True)]
    lines = [
        (name, f"{1e6 * s:.0f}", f"{10 / s:,.0f}", f"{took[0] / s:.1f}x")
        for name, s in zip(names, took, strict=True)
    ]
    yield from table(("a step", "µs", "samples/s", "autograd's"), lines)
    yield (
        f"64-128-10, batches of ten, momentum, their gathering included; medians of {len(rows)} "
        "turns in one process with one thread."
    )


if __name__ == "__main__":
    show(run())
