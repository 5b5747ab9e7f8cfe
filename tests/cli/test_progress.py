"""What is shown while a run goes on."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

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
    # The start, of all and of the run; then twice per round (is a line due, what time is left),
    # once if none is due.
    clock = ticks(0.0, 0.0, 1.0, 2.5, 2.5, 3.0, 4.0, 4.0).__next__
    progress = PlainProgress(2, 4, stream, clock)
    progress.begin("pgfed", at_start(3))
    for round, accuracy in enumerate([0.25, None, None, 0.5], start=1):
        progress.round("pgfed", at_start(0), record(round, accuracy))
    assert stream.getvalue().splitlines() == [
        "pgfed seed 3 round 2/4, accuracy 25.0 %, 1,000 samples/s, 8 s left",
        "pgfed seed 3 round 4/4, accuracy 50.0 %, 1,000 samples/s, 4 s left",
    ]


def test_one_long_round_says_nothing_of_the_others() -> None:
    """`alone` trains to its end in one round."""
    stream = io.StringIO()
    clock = ticks(0.0, 0.0, 100.0, 100.0, 100.0, *(100.0 + t for t in range(1, 9))).__next__
    progress = PlainProgress(2, 4, stream, clock)
    progress.begin("alone", at_start(0, 1))
    progress.round("alone", at_start(0, 1), record(1, 0.5))
    progress.begin("pgfed", at_start(0))
    for round in (1, 2):
        progress.round("pgfed", at_start(0), record(round, 0.5))
    assert [line.rpartition(", ")[2] for line in stream.getvalue().splitlines()] == [
        "1,000 samples/s",
        "3 s left",
    ]


def test_the_score_starts_anew_with_each_run() -> None:
    progress = Progress(2, 1)
    progress.begin("local", at_start(0, 1))
    progress.round("pgfed", at_start(0), record(1, 0.5))
    progress.begin("pgfed", at_start(0, 1))
    assert progress.score is None
    assert progress.where() == "pgfed, seed 0"


def plain(stream: io.StringIO) -> str:
    """What was written, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", stream.getvalue())


def test_a_terminal_gets_a_bar_for_the_run_and_one_for_all() -> None:
    stream = Terminal()
    with LiveProgress(2, 2, stream) as progress:
        for method, accuracy in (("local", 0.25), ("pgfed-mo", 0.5)):
            run = at_start(0, 2)
            progress.begin(method, run)
            progress.round(method, run, record(1, accuracy))
            progress.round(method, run, record(2, accuracy))
            progress.end(method, run)
    shown = plain(stream)
    assert re.search(r"local, seed 0 +\S+ +round 1/2 accuracy 25.0 %", shown)
    assert re.search(r"all 2 runs +\S+ +0/2 done +\d+ s left", shown)
    assert re.search(r"pgfed-mo, seed 0 +\S+ +round 2/2 accuracy 50.0 %", shown)
    assert re.search(r"all 2 runs +\S+ +1/2 done +0 s left", shown)


def test_a_finished_run_leaves_a_line() -> None:
    stream = Terminal()
    with LiveProgress(1, 1, stream) as progress:
        progress.begin("pgfed", at_start(0, 1))
        progress.round("pgfed", at_start(0, 1), record(1, 0.5))
        progress.end("pgfed", at_start(0, 1))
    assert "\rpgfed, seed 0: accuracy 50.0 %, 0 s, 1,000 samples/s\n" in plain(stream)


@pytest.mark.parametrize("width", [80, 120])
def test_the_bars_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    with LiveProgress(51, 10_000, stream) as progress:
        run = at_start(12, 10_000)
        progress.begin("fedavg-local", run)
        progress.round("fedavg-local", run, record(9_999, 0.123))
    lines = plain(stream).splitlines()
    assert any("round 9999/10000" in line and "accuracy 12.3 %" in line for line in lines)
    assert max(map(len, lines)) <= width
    assert "…" not in plain(stream)


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
