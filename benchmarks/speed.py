"""Training speed of every method: against FedAvg, the paper, a plain loop and the SGEMM ceiling.

The measurement is that of `pgfed bench`; beside it, FedAvg takes turns with the plain loop of
plain.py and with matrix products on all cores at once.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Self

import torch

from benchmarks.plain import PlainLoop
from benchmarks.text import show, table, verdict
from pgfed.engine.backends.process import available_cores
from pgfed.errors import UserError
from pgfed.methods.registry import METHODS, get
from pgfed.methods.settings import TrainConfig
from pgfed.model.networks import CNN
from pgfed.results.formats import percent
from pgfed.tuning.speed import CIFAR, EPOCHS, Lane, Timed, in_turns, measure, random_federation

MFLOP = 47.0  # per image: three times the forward pass
LIMITS = {  # batch size: (must, goal)
    10: {"plain": (2.0, 2.6), "ceiling": (40, 55)},
    128: {"plain": (1.8, 2.1), "ceiling": (65, 75)},
}
SAMPLES = {10: 60, 128: 128}  # per client: few, for many turns
COHORT = 12  # a quarter of 50, as in the paper, where FedAvg is beside the plain loop


class Ceiling:
    """The seconds an image would take if training were matrix products at SGEMM's best rate.

    All cores at the same time, one process and one thread each.
    """

    def __init__(self, size: int = 1024, seconds: float = 0.5) -> None:
        cores = available_cores()
        context = multiprocessing.get_context("fork")
        self._work = [(size, seconds)] * cores
        self._pool = context.Pool(cores, _meet, (context.Barrier(cores),))

    def turn(self) -> float:
        rate = sum(self._pool.starmap(_sgemm, self._work, chunksize=1))
        return MFLOP * 1e6 / rate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()


together: Barrier  # all cores, in a worker


def _meet(barrier: Barrier) -> None:
    global together
    together = barrier
    torch.set_num_threads(1)


def _sgemm(size: int, seconds: float) -> float:
    """FLOP/s of one core while the others do the same."""
    a, b, c = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    torch.mm(a, b, out=c)
    together.wait(60)
    began, done = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        torch.mm(a, b, out=c)
        done += 1
    return done * 2 * size**3 / took


def run(seconds: float = 5, turns: int = 9, epochs: int = EPOCHS) -> Iterator[str]:
    for batch, limits in LIMITS.items():
        yield f"### Batch {batch}"
        samples = SAMPLES[batch]
        data = random_federation(samples)
        train = TrainConfig(epochs=epochs, batch_size=batch, lr=0.001)
        with (
            Ceiling() as ceiling,
            Lane(get("fedavg")(train=train), data, cohort=COHORT) as fedavg,
        ):
            plain = PlainLoop(data, batch, epochs, COHORT)
            pool_first = PlainLoop(data, batch, epochs, COHORT, network=lambda: CNN(CIFAR, 10))
            lanes: list[Timed] = [fedavg, plain, pool_first, ceiling]
            for lane in lanes:
                lane.turn()
            rows = in_turns(lanes, 0, turns)
        ours, loop, first, best = (median(column) for column in zip(*rows, strict=True))
        times_plain = median(row[1] / row[0] for row in rows)
        times_first = median(row[2] / row[0] for row in rows)
        of_ceiling = median(row[3] / row[0] for row in rows)
        yield from table(
            ("FedAvg", "images/s", "ours is"),
            [
                ("process engine", f"{1 / ours:,.0f}", "1.00x"),
                ("plain loop", f"{1 / loop:,.0f}", f"{times_plain:.2f}x"),
                ("plain loop, pooling before ReLU", f"{1 / first:,.0f}", f"{times_first:.2f}x"),
                (
                    f"ceiling: {MFLOP / best / 1e3:,.0f} GFLOP/s, {MFLOP:g} MFLOP per image",
                    f"{1 / best:,.0f}",
                    f"{of_ceiling:.2f}x",
                ),
            ],
        )
        yield (
            f"Medians of {turns} turns, {COHORT} clients of {samples} samples each, "
            f"{epochs} epochs."
        )
        yield ""
        found, left_out = [], list[UserError]()
        for speed in measure(
            list(METHODS),
            batch,
            seconds=seconds,
            samples=samples,
            epochs=epochs,
            refused=left_out.append,
        ):
            without = speed.share_without_pass
            found.append(
                (
                    speed.method,
                    f"{speed.images_per_second:,.0f}",
                    percent(speed.share),
                    "" if without is None else percent(without),
                    "" if speed.paper_share is None else percent(speed.paper_share),
                    f"{speed.share * times_plain:.2f}x",
                    percent(speed.share * of_ceiling),
                )
            )
        yield from table(
            (
                "method",
                "images/s",
                "of FedAvg",
                "without gradient pass",
                "paper (128)",
                "plain FedAvg loop",
                "of ceiling",
            ),
            found,
        )
        yield from (f"- left out: {error}" for error in left_out)
        yield verdict("FedAvg, times the plain loop", times_plain, *limits["plain"])
        yield verdict(
            "FedAvg, of the SGEMM ceiling", 100 * of_ceiling, *limits["ceiling"], unit=" %"
        )
        yield ""


if __name__ == "__main__":
    show(run())
