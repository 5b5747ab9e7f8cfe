"""Training speed and whole rounds: every method, against a plain loop and the SGEMM ceiling.

CIFAR-10 shapes with random pixels, 50 clients, the paper's CNN. The plain loop and the default
engine take turns, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from benchmarks.plain import PlainLoop
from pgfed.algorithms import METHODS, get
from pgfed.core import TrainConfig, draw_cohort
from pgfed.data.federation import Federation
from pgfed.engine import Process, Run
from pgfed.engine.process import available_cores

CLIENTS, COHORT = 50, 4
MFLOP = 47.0  # per image, forward and backward


def federation(samples: int) -> Federation:
    rng = np.random.default_rng(0)
    each = samples + samples // 3
    return Federation.from_arrays(
        rng.integers(0, 256, size=(CLIENTS * each, 3, 32, 32), dtype=np.uint8),
        rng.integers(0, 10, size=CLIENTS * each),
        client=np.repeat(np.arange(CLIENTS), each),
        split=np.tile(np.arange(each) >= samples, CLIENTS),
        class_names=[str(k) for k in range(10)],
    )


def sgemm(size: int = 1024, repeats: int = 20) -> float:
    """GFLOP/s of one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    torch.set_num_threads(before)
    return 2 * size**3 / min(times) / 1e9


def run(samples: int = 260, rounds: int = 3, epochs: int = 5) -> None:
    data = federation(samples)
    cores = available_cores()
    for batch in (10, 128):
        train = TrainConfig(epochs=epochs, batch_size=batch)
        print(f"\nbatch {batch}, {epochs} epochs, {COHORT} of {CLIENTS} clients, {cores} workers")
        loops = {
            "fedavg": PlainLoop(data, batch, epochs),
            "pgfed": PlainLoop(data, batch, epochs, mu=0.1),
        }
        with Process(data, "cnn") as pool:
            for name, loop in loops.items():
                ours = Run(
                    get(name)(train=train), data, pool, seed=0, rounds=rounds + 2, cohort=COHORT
                )
                trained, whole = [], []
                for t in range(1, rounds + 3):
                    training, seconds = loop.round(draw_cohort(0, t, CLIENTS, COHORT))
                    record = ours.step()
                    if t > 2:
                        trained.append(training / record["train_seconds"])
                        whole.append(seconds / record["seconds"])
                print(
                    f"  {name}: training {median(trained):.2f}x, whole rounds "
                    f"{median(whole):.2f}x the plain loop"
                )
            ceiling = cores * sgemm() * 1e9 / (MFLOP * 1e6)
            base = None
            for name in sorted(METHODS, key=lambda m: m != "fedavg"):
                method = get(name)(train=replace(train, lr=0.001))
                ours = Run(
                    method,
                    data,
                    pool,
                    seed=0,
                    rounds=rounds + 2,
                    cohort=COHORT,
                    evaluate_every=10**6,
                )
                records = [ours.step() for _ in range(rounds + 2)][2:]
                speed = median(r["images"] / r["train_seconds"] for r in records)
                base = base or speed
                print(
                    f"  {name:12s} {speed:7.0f} images/s {speed / base:5.0%} of fedavg "
                    f"{speed / ceiling:5.0%} of the SGEMM ceiling"
                )
