"""What is shown while a run goes on."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from types import SimpleNamespace

from pgfed.cli.terminal.download import Download
from pgfed.model.metrics import ACCURACY
from pgfed.results.progress import (
    LiveProgress,
    PlainProgress,
    Progress,
    progress_for,
)


def at_start(seed: int, rounds: int = 4) -> SimpleNamespace:
    """A run without rounds."""
    objective = SimpleNamespace(primary=ACCURACY)
    task = SimpleNamespace(objective=objective)
    return SimpleNamespace(history=[], seed=seed, rounds=rounds, task=task)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(round: int, accuracy: float | None) -> dict[str, object]:
    return {"round": round, "mean_score": accuracy, "samples": 500, "train_seconds": 0.5}


def ticks(*times: float) -> Iterator[float]:
    yield from times


def test_plain_lines_come_every_two_seconds_and_at_the_end() -> None:
    stream = io.StringIO()
    # The start; then twice per round (is a line due, what time is left), once if none is due.
    clock = ticks(0.0, 1.0, 2.5, 2.5, 3.0, 4.0, 4.0).__next__
    progress = PlainProgress(2, 4, stream, clock)
    progress.begin("pgfed", at_start(3))
    for round, accuracy in enumerate([0.25, None, None, 0.5], start=1):
        progress.round("pgfed", at_start(0), record(round, accuracy))
    assert stream.getvalue().splitlines() == [
        "pgfed seed 3 round 2/4, accuracy 25.0 %, 1,000 samples/s, 8 s left",
        "pgfed seed 3 round 4/4, accuracy 50.0 %, 1,000 samples/s, 4 s left",
    ]


def test_the_score_starts_anew_with_each_run() -> None:
    progress = Progress(2, 1)
    progress.begin("local", at_start(0, 1))
    progress.round("pgfed", at_start(0), record(1, 0.5))
    progress.begin("pgfed", at_start(0, 1))
    assert progress.score is None
    assert progress.where() == "pgfed, seed 0"


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with LiveProgress(1, 2, stream) as progress:
        progress.begin("pgfed", at_start(0, 2))
        progress.round("pgfed", at_start(0, 2), record(1, 0.25))
        progress.round("pgfed", at_start(0, 2), record(2, 0.5))
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", stream.getvalue())
    assert "pgfed seed 0 1/2" in shown
    assert "pgfed seed 0 2/2" in shown
    assert "accuracy 50.0 % · 1,000 samples/s · 0 s left" in shown


def test_which_one_is_chosen() -> None:
    assert type(progress_for(Terminal(), 1, 1, quiet=True)) is Progress
    assert type(progress_for(Terminal(), 1, 1, quiet=False)) is LiveProgress
    assert type(progress_for(io.StringIO(), 1, 1, quiet=False)) is PlainProgress


def test_downloads_show_a_bar_on_a_terminal_only() -> None:
    for stream, words in ((Terminal(), "mnist"), (io.StringIO(), "")):
        with Download("mnist", stream) as download:
            download.update(50, 100)
        assert words in stream.getvalue()
        assert bool(words) == bool(stream.getvalue())
