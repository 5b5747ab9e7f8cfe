"""What a checkpoint after every round costs, as a share of a round.

The paper's CNN on CIFAR-10 shapes (random pixels: only the time counts), a quarter of 25 clients
per round, all of them scored. Two runs with the same cohorts take turns, one of them saving each
round as `pgfed run` does: what the engine waits for (the cut, and what is left of the writing
after the next round) is measured apart from what the writing slows down while that round runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.text import show, table, verdict
from pgfed.engine.backends.process import Process
from pgfed.engine.rounds import Run
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.store import ClientStore
from pgfed.methods.contract import Algorithm
from pgfed.methods.registry import get
from pgfed.methods.settings import TrainConfig
from pgfed.tuning.speed import EPOCHS, random_federation

CLIENTS, COHORT = 25, 6
SAMPLES = 1_800  # to train on: a 25th of CIFAR-10, without the quarter for testing
METHODS = ("pgfed-mo",)  # the one with most to write
MUST = 5.0  # percent of a round
WARM = 2  # rounds: PGFed's auxiliary gradients are there from the second on


def run(samples: int = SAMPLES, rounds: int = 3, epochs: int = EPOCHS) -> Iterator[str]:
    data = random_federation(samples, clients=CLIENTS)
    rows, verdicts = [], []
    for name in METHODS:
        method = get(name)(train=TrainConfig(epochs=epochs, batch_size=10))
        with (
            tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place,
            Process(data, "cnn") as one,
            Process(data, "cnn") as other,
        ):
            checkpoints = Checkpoints(Path(place))

            def start(pool: Process, store: ClientStore, method: Algorithm = method) -> Run:
                return Run(
                    method, data, pool, seed=0, rounds=WARM + rounds, cohort=COHORT, store=store
                )

            bare, saved = start(one, ClientStore()), start(other, ClientStore(checkpoints.clients))
            for _ in range(WARM):
                bare.step()
                saved.step()
            plain, held, slowed = [], [], []
            for k in range(rounds):
                if k % 2:  # whatever else the machine does meets both
                    plain.append(_seconds(bare))
                waited, seconds = _saved(saved, checkpoints)
                held.append(waited)
                slowed.append(seconds)
                if not k % 2:
                    plain.append(_seconds(bare))
            checkpoints.save(saved)
            checkpoints.wait()
            written = sum(p.stat().st_size for p in checkpoints.folder.glob("server-*")) / 2
            written += sum(
                p.stat().st_size
                for i in saved.history[-1]["cohort"]
                for p in checkpoints.clients.glob(f"{i:06d}-{saved.round:06d}.*")
            )
        each = list(zip(plain, held, slowed, strict=True))
        blocking = 100 * median(w / p for p, w, _ in each)
        beside = 100 * median((s - p) / p for p, _, s in each)
        whole = 100 * median((w + s - p) / p for p, w, s in each)
        rows.append(
            (
                name,
                f"{median(plain):.2f} s",
                f"{written / 2**20:.1f} MiB",
                f"{median(held):.2f} s, {blocking:.1f} %",
                f"{beside:+.1f} %",
                f"{whole:+.1f} %",
            )
        )
        verdicts.append(
            verdict(f"{name}, checkpoints in all", whole, MUST, unit=" %", at_most=True)
        )
    yield from table(("", "round", "written", "waited for", "beside", "in all"), rows)
    yield (
        f"{COHORT} of {CLIENTS} clients per round with {samples} samples, batch 10, {epochs} "
        f"epochs; shares of a round without checkpoints, medians of {rounds} pairs of rounds. "
        "Beside: how much longer a round takes while the last one is being written."
    )
    yield ""
    yield from verdicts


def _seconds(run: Run) -> float:
    began = time.perf_counter()
    run.step()
    return time.perf_counter() - began


def _saved(run: Run, checkpoints: Checkpoints) -> tuple[float, float]:
    """Save the last round and run the next: seconds waited for the saving, and of the round."""
    began = time.perf_counter()
    checkpoints.save(run)
    waited = time.perf_counter() - began
    seconds = _seconds(run)
    began = time.perf_counter()
    checkpoints.wait()
    return waited + time.perf_counter() - began, seconds


if __name__ == "__main__":
    show(run())
