"""What a round costs on Ray, as a multiple of the same round on worker processes.

The paper's CNN on CIFAR-10 shapes (random pixels: only the time counts), 25 clients that all take
part, PGFedMo with its full traffic: model, auxiliary gradient and states there and back. Both
engines run the same rounds in turn, so that whatever else the machine does meets both. The less a
client trains, the more its transport weighs: real clients have thirty times the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from benchmarks.text import show, verdict
from pgfed.engine.backends.base import Backend
from pgfed.engine.backends.process import Process, available_cores
from pgfed.engine.backends.ray import Ray
from pgfed.engine.rounds import Run
from pgfed.methods.pgfed_mo import PGFedMo
from pgfed.methods.settings import TrainConfig
from pgfed.tuning.speed import random_federation

CLIENTS = 25
TARGET = 1.3


def run(samples: int = 60, rounds: int = 7, workers: int = 0) -> Iterator[str]:
    """The median over ``rounds`` of: seconds on Ray / seconds on worker processes."""
    data = random_federation(samples, clients=CLIENTS)
    workers = workers or available_cores()
    method = PGFedMo(train=TrainConfig(epochs=1))

    def start(backend: Backend) -> Run:
        return Run(method, data, backend, seed=0, rounds=rounds + 2, cohort=CLIENTS)

    # The worker processes fork: before Ray starts its threads.
    with Process(data, "cnn", workers=workers) as pool, Ray(data, "cnn", workers=workers) as ray:
        process, actors = start(pool), start(ray)
        for warming in (process, actors):  # two rounds: auxiliary gradients travel from the second
            warming.step()
            warming.step()
        pairs = [(actors.step()["seconds"], process.step()["seconds"]) for _ in range(rounds)]
        if not np.array_equal(process.server["w"].numpy(), actors.server["w"].numpy()):
            raise AssertionError("Ray and worker processes gave different models")
    ratio = median(on_ray / on_process for on_ray, on_process in pairs)
    yield (
        f"{CLIENTS} clients of {samples} samples, {workers} workers; median of {rounds} pairs, "
        f"{median(p for _, p in pairs):.2f} s per round on worker processes."
    )
    yield ""
    yield verdict("a round on Ray, times one on worker processes", ratio, TARGET, at_most=True)


if __name__ == "__main__":
    show(run())
