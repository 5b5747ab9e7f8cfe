"""How a run goes on, for people: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from pgfed.engine.callbacks import Observer, Record
from pgfed.model.metrics import ACCURACY
from pgfed.results.formats import duration, score

if TYPE_CHECKING:
    from pgfed.engine.rounds import Run

EVERY = 2.0  # seconds between two plain lines


class Progress(Observer):
    """Counts rounds over all runs. Silent by itself; subclasses show what it knows."""

    def __init__(
        self, runs: int, rounds: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.total = runs * rounds
        self.rounds = self._each = rounds
        self.done = 0  # rounds that need not be run any more
        self.ran = 0  # of these, the ones run now: time left is judged by them
        self.clock = clock
        self.started = clock()
        self.method, self.seed = "", 0
        self.score: float | None = None
        self.metric = ACCURACY
        self._samples, self._seconds = 0, 0.0

    def begin(self, method: str, run: Run) -> None:
        self.method, self.seed, self.rounds = method, run.seed, run.rounds
        self.total -= self._each - run.rounds  # some methods take one round only
        self.score, self.metric = None, run.task.objective.primary
        self.done += len(run.history)
        self._samples, self._seconds = 0, 0.0
        if run.history:
            self.tell(f"{method} seed {run.seed}: going on after round {len(run.history)}")

    def skip(self, method: str, seed: int, history: list[Record]) -> None:
        self.total -= self._each - len(history)
        self.done += len(history)

    def warn(self, text: str) -> None:
        """Something the user should know, that is no error."""
        self.tell(f"warning: {text}")

    def tell(self, text: str) -> None:
        """A line of its own."""

    def round(self, method: str, run: Run, record: Record) -> None:
        self.done += 1
        self.ran += 1
        self._samples += record["samples"]
        self._seconds += record["train_seconds"]
        if record["mean_score"] is not None:
            self.score = record["mean_score"]
        self.show(record["round"])

    def show(self, round: int) -> None:
        """Tell of a finished round."""

    def where(self) -> str:
        """Which run is going on, for messages."""
        return f"{self.method}, seed {self.seed}" if self.method else "the start"

    def facts(self) -> list[str]:
        """Score so far, samples per second, time left."""
        left = (self.clock() - self.started) / self.ran * (self.total - self.done)
        speed = f"{self._samples / max(self._seconds, 1e-9):,.0f} samples/s"
        return [
            f"{self.metric.title} {score(self.score, self.metric)}",
            *([speed] if self._samples else []),
            f"{duration(left)} left",
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to close."""


class PlainProgress(Progress):
    """A line now and then, and one for the last round of each run."""

    def __init__(
        self,
        runs: int,
        rounds: int,
        stream: TextIO,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(runs, rounds, clock)
        self._stream = stream
        self._last = self.started

    def tell(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def show(self, round: int) -> None:
        now = self.clock()
        if round == self.rounds or now - self._last >= EVERY:
            self._last = now
            head = f"{self.method} seed {self.seed} round {round}/{self.rounds}"
            print(", ".join([head, *self.facts()]), file=self._stream, flush=True)


class LiveProgress(Progress):
    """A bar that is redrawn after each round.

    No thread redraws it in between: worker processes are forked from this one.
    """

    def __init__(self, runs: int, rounds: int, stream: TextIO) -> None:
        super().__init__(runs, rounds)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),  # all of it fits into 80 columns
            TextColumn("{task.fields[facts]}"),
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=self.total, facts="")

    def tell(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def show(self, round: int) -> None:
        head = f"[bold]{self.method}[/] seed {self.seed} {round}/{self.rounds}"
        facts = " · ".join(self.facts())
        self._bar.update(self._task, completed=self.done, description=head, facts=facts)
        self._bar.refresh()

    def __enter__(self) -> Self:
        try:
            self._bar.start()
            self._bar.refresh()
        except BaseException:
            self._bar.stop()  # gives the terminal back its cursor
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()


def progress_for(stream: TextIO, runs: int, rounds: int, *, quiet: bool) -> Progress:
    """Silent, live or plain, as asked and as the stream allows."""
    if quiet:
        return Progress(runs, rounds)
    if stream.isatty():
        return LiveProgress(runs, rounds, stream)
    return PlainProgress(runs, rounds, stream)
