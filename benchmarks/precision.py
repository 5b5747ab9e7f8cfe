"""Training in bfloat16, and with a compiled model, beside float32: the paper's CNN.

All take turns on CIFAR-10's shapes. bfloat16 is `train.precision`. A compiled model (torch.compile,
which needs a C++ compiler) is not offered: it moves bits, and would have to give a tenth.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from torch import nn

from benchmarks.text import show, table
from pgfed.methods.registry import get
from pgfed.methods.settings import TrainConfig
from pgfed.model.networks import CNN
from pgfed.tuning.speed import Lane, in_turns, random_federation

SAMPLES = {10: 60, 128: 128}  # batch size: training samples of a client


def compiled(shape: tuple[int, ...], classes: int) -> nn.Module:
    module = CNN(shape, classes)
    module.compile()
    return module


def run(seconds: float = 90) -> Iterator[str]:
    rows = []
    # A process of its own for each size: torch's compiler has threads, which a fork would not see.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as own:
        for batch in SAMPLES:
            rows += own.submit(_measure, batch, seconds).result()
    yield from table(("FedAvg", "images/s", "of float32", "turns"), rows)


def _measure(batch: int, seconds: float) -> list[tuple[str, str, str, int]]:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # workers, forked, would wait for others
    data = random_federation(SAMPLES[batch])
    train = TrainConfig(batch_size=batch, lr=0.001)
    low = replace(train, precision="bfloat16")
    with ExitStack() as stack:
        lanes = {
            "float32": Lane(get("fedavg")(train=train), data),
            "bfloat16": Lane(get("fedavg")(train=low), data),
        }
        if shutil.which("c++"):
            lanes["float32, compiled"] = Lane(get("fedavg")(train=train), data, compiled)
        for lane in lanes.values():
            stack.enter_context(lane).turn()
        turns = in_turns(list(lanes.values()), seconds)
    rows = []
    for k, name in enumerate(lanes):
        times = median(row[0] / row[k] for row in turns)
        speed = 1 / median(row[k] for row in turns)
        rows.append((f"batch {batch}, {name}", f"{speed:,.0f}", f"{times:.2f}x", len(turns)))
    return rows


if __name__ == "__main__":
    show(run())
