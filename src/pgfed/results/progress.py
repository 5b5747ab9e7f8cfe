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
        self.runs, self.ended = runs, 0
        self.heading = ""  # told before the first run
        self.done = 0  # rounds that need not be run any more
        # Of these, the ones run now: time left is judged by them. What trains to its end in one
        # round does not count, nor does its time: the others are not that long.
        self.ran = 0
        self.clock = clock
        self.started = self.began = clock()
        self.method, self.seed = "", 0
        self.score: float | None = None
        self.metric = ACCURACY
        self._samples, self._seconds = 0, 0.0

    def begin(self, method: str, run: Run) -> None:
        if self.heading:
            self.tell(self.heading)
            self.heading = ""
        self.method, self.seed, self.rounds = method, run.seed, run.rounds
        self.total -= self._each - run.rounds  # some methods take one round only
        self.score, self.metric = None, run.task.objective.primary
        self.done += len(run.history)
        self.began = self.clock()
        self._samples, self._seconds = 0, 0.0
        if run.history:
            self.tell(f"{method} seed {run.seed}: going on after round {len(run.history)}")

    def skip(self, method: str, seed: int, history: list[Record]) -> None:
        self.total -= self._each - len(history)
        self.done += len(history)
        self.ended += 1

    def warn(self, text: str) -> None:
        """Something the user should know, that is no error."""
        self.tell(f"warning: {text}")

    def tell(self, text: str) -> None:
        """A line of its own."""

    def round(self, method: str, run: Run, record: Record) -> None:
        self.done += 1
        if self.rounds == self._each:
            self.ran += 1
        else:
            self.started += self.clock() - self.began
        self._samples += record["samples"]
        self._seconds += record["train_seconds"]
        if record["mean_score"] is not None:
            self.score = record["mean_score"]
        self.show(record["round"])

    def show(self, round: int) -> None:
        """Tell of a finished round."""

    def end(self, method: str, run: Run) -> None:
        self.ended += 1
        self.finish(self.clock() - self.began)

    def finish(self, seconds: float) -> None:
        """Tell of a finished run."""

    def where(self) -> str:
        """Which run is going on, for messages."""
        return f"{self.method}, seed {self.seed}" if self.method else "the start"

    @property
    def scored(self) -> str:
        """The score so far."""
        return f"{self.metric.title} {score(self.score, self.metric)}"

    @property
    def speed(self) -> str:
        """Samples per second; nothing where none were trained on."""
        rate = self._samples / max(self._seconds, 1e-9)
        return f"{rate:,.0f} samples/s" if self._samples else ""

    @property
    def left(self) -> str:
        """The time, by the rounds run so far; nothing before the first."""
        if not self.ran:
            return ""
        seconds = (self.clock() - self.started) / self.ran * (self.total - self.done)
        return f"{duration(seconds)} left"

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
            facts = [head, self.scored, self.speed, self.left]
            print(", ".join(filter(None, facts)), file=self._stream, flush=True)


class LiveProgress(Progress):
    """Two bars, of this run and of all, redrawn after each round; a finished run leaves a line.

    No thread redraws them in between: worker processes are forked from this one.
    """

    def __init__(self, runs: int, rounds: int, stream: TextIO) -> None:
        super().__init__(runs, rounds)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),  # all of it fits into 80 columns
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[facts]}", markup=False),
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
        )
        self._now = self._bar.add_task("starting", total=self.rounds, count="", facts="")
        self._all = self._bar.add_task("all", total=self.total, count="", facts="")

    def tell(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def begin(self, method: str, run: Run) -> None:
        super().begin(method, run)
        self._draw(len(run.history))

    def show(self, round: int) -> None:
        self._draw(round)

    def _draw(self, round: int) -> None:
        self._bar.update(
            self._now,
            total=self.rounds,
            completed=round,
            description=f"{self.method}, seed {self.seed}",
            count=f"round {round}/{self.rounds}",
            facts=self.scored if round else "",
        )
        self._bar.update(
            self._all,
            total=self.total,
            completed=self.done,
            description=f"all {self.runs} runs" if self.runs > 1 else "all",
            count=f"{self.ended}/{self.runs} done",
            facts=self.left,
        )
        self._bar.refresh()

    def finish(self, seconds: float) -> None:
        facts = [f"{self.method}, seed {self.seed}: {self.scored}", duration(seconds), self.speed]
        self.tell(", ".join(filter(None, facts)))

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
