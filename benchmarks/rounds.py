"""Whole rounds, as `pgfed run` has them, against the plain loop.

Download, training, aggregation, scoring of all clients, history, checkpoints: everything is at its
default and goes to a run folder. After each of our rounds the plain loop runs one with the same
cohort. A checkpoint is written during our next round, never during one of the plain loop.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.plain import LR, PlainLoop
from benchmarks.text import show, table, verdict
from pgfed.config.experiment import IN_MEMORY, from_dict
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.rounds import Run
from pgfed.engine.runs import execute
from pgfed.engine.setup import prepare
from pgfed.results.folder.writer import RunWriter
from pgfed.tuning.speed import CLIENTS, EPOCHS, random_federation

COHORT = 0.25  # the paper's
LIMITS = {("fedavg", 10): 2.0, ("fedavg", 128): 1.8, ("pgfed", 10): 2.5, ("pgfed", 128): 2.2}
WARM = 2  # rounds: PGFed's auxiliary gradients are there from the second on


class Beside(Observer):
    """Runs the plain loop after each round, and times both."""

    def __init__(self, plain: PlainLoop) -> None:
        self.plain = plain
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def begin(self, method: str, run: Run) -> None:
        self._began = time.perf_counter()

    def round(self, method: str, run: Run, record: Record) -> None:
        self.ours.append(time.perf_counter() - self._began)
        self.theirs.append(self.plain.round(record["cohort"]))
        self._began = time.perf_counter()


def run(samples: int = 300, rounds: int = 5, epochs: int = EPOCHS) -> Iterator[str]:
    data = random_federation(samples)
    rows, verdicts = [], []
    for (method, batch), must in LIMITS.items():
        experiment = from_dict(
            {
                "rounds": WARM + rounds,
                "cohort": COHORT,
                "methods": [method],
                "data": {"dataset": IN_MEMORY, "clients": CLIENTS, "partition": "given"},
                "model": {"name": "cnn"},
                "train": {"epochs": epochs, "batch_size": batch, "lr": LR},
                "output": {"models": "none"},
            }
        )
        setup = prepare(experiment, Path(), federation=data)
        plain = PlainLoop(data, batch, epochs, setup.cohort, pgfed=method == "pgfed")
        beside = Beside(plain)
        with (
            tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place,
            RunWriter(Path(place) / "run", setup) as folder,
        ):
            execute(setup, [folder, beside], folder)
        ours, theirs = beside.ours[WARM:], beside.theirs[WARM:]
        ratio = median(b / a for a, b in zip(ours, theirs, strict=True))
        rates = [f"{3600 / median(seconds):,.0f}" for seconds in (ours, theirs)]
        rows.append((f"{method}, batch {batch}", *rates, f"{ratio:.2f}x"))
        verdicts.append(verdict(f"{method}, batch {batch}, times the plain loop", ratio, must))
    yield from table(("", "rounds/h", "plain loop", "ours is"), rows)
    yield (
        f"{setup.cohort} of {CLIENTS} clients per round with {samples} samples to train on and "
        f"{samples // 3} to test on, {epochs} epochs; medians of {rounds} rounds."
    )
    yield ""
    yield from verdicts


if __name__ == "__main__":
    show(run())
