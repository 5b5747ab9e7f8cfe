"""One worker and two, and what becomes of the speed when one core is busy with something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.plain import PlainLoop
from benchmarks.text import show, table, verdict
from pgfed.engine.backends.process import available_cores
from pgfed.methods.registry import get
from pgfed.methods.settings import TrainConfig
from pgfed.tuning.speed import EPOCHS, Lane, Timed, in_turns, random_federation


@contextmanager
def busy_core() -> Iterator[None]:
    """A process that does nothing but keep a core busy, for as long as this lasts."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


class WhileBusy:
    """The same lane while a core is busy."""

    def __init__(self, lane: Lane | PlainLoop) -> None:
        self._lane = lane

    def turn(self) -> float:
        with busy_core():
            return self._lane.turn()


def run(samples: int = 256, turns: int = 4, epochs: int = EPOCHS) -> Iterator[str]:
    data = random_federation(samples)
    rows, verdicts = [], []
    for batch in (10, 128):
        method = get("fedavg")(train=TrainConfig(epochs=epochs, batch_size=batch, lr=0.001))
        plain = PlainLoop(data, batch, epochs, 2)
        with Lane(method, data, workers=1) as one, Lane(method, data, workers=2) as two:
            lanes: list[Timed] = [one, two, WhileBusy(two), plain, WhileBusy(plain)]
            for lane in (one, two, plain):
                lane.turn()
            found = in_turns(lanes, 0, turns)
        speeds = [1 / median(column) for column in zip(*found, strict=True)]
        gain = median(row[0] / row[1] for row in found)
        left = median(row[1] / row[2] for row in found)
        plain_left = median(row[3] / row[4] for row in found)
        shares = ("", f"{gain:.2f}x one worker", f"{left:.0%} of quiet", "", f"{plain_left:.0%}")
        names = ("1 worker", "2 workers", "2 workers, a core busy", "plain", "plain, a core busy")
        for name, speed, share in zip(names, speeds, shares, strict=True):
            rows.append((f"batch {batch}: {name}", f"{speed:,.0f}", share))
        verdicts.append(verdict(f"batch {batch}, two workers, times one", gain, 1.8))
        said = f"batch {batch}, one core busy, of the quiet speed"
        verdicts.append(verdict(said, 100 * left, 45, unit=" %"))
    yield from table(("FedAvg", "images/s", "ratio"), rows)
    yield f"{available_cores()} cores; medians of {turns} turns."
    yield ""
    yield from verdicts


if __name__ == "__main__":
    show(run())
