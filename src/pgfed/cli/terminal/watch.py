"""A running experiment in the terminal, read from its folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pgfed.model.metrics import Metric
from pgfed.results.folder.layout import at_work, how_to_go_on
from pgfed.results.folder.running import Progress, Watched, seconds_left
from pgfed.results.formats import count, duration, score, size

INTERVAL = 1.0  # seconds
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 12  # of a curve
FRAME = 4  # lines beside those of the runs: title, headings, caption, cursor


def table(
    name: str, progress: list[Progress], running: bool, metric: Metric, lines: int | None = None
) -> Table:
    """How far it is, then one line per method and seed; of too many those that matter now."""
    title = Text(f"{name}: {_left(progress, running)}")
    fits = len(progress) if lines is None else max(1, lines - FRAME)
    hidden = len(progress) - fits
    caption = None
    if hidden > 0:
        now = next((k for k, one in enumerate(progress) if not one.finished), len(progress) - 1)
        first = min(max(0, now - fits // 2), hidden)
        progress = progress[first : first + fits]
        caption = Text(f"{hidden} more of {fits + hidden}: a taller window shows them")
    shown = Table(title=title, caption=caption, box=None, title_justify="left")
    shown.add_column("method", no_wrap=True)
    shown.add_column("seed")
    for heading in ("round", metric.title, "best"):
        shown.add_column(heading, justify="right")
    shown.add_column("so far")
    shown.add_column("sent", justify="right")
    for one in progress:
        style = "dim" if not one.done else "" if one.finished else "bold"
        cells = [
            one.method,
            str(one.seed),
            f"{one.done}/{one.rounds}",
            score(one.scores[-1] if one.scores else None, metric),
            score(_best(one.scores, metric), metric),
            sparkline(one.scores, metric),
            size(one.history.sent[-1] if one.done else 0),
        ]
        shown.add_row(*map(Text, cells), style=style)  # Text: a name is never read as markup
    return shown


def _best(values: tuple[float, ...], metric: Metric) -> float | None:
    return max(values, key=lambda value: metric.sign * value, default=None)


def sparkline(values: tuple[float, ...], metric: Metric) -> str:
    """The curve in one line: from 0 to 1, or over its own range where the metric has no bounds."""
    if not values:
        return ""
    if not metric.bounded:
        low, span = min(values), max(values) - min(values)
        values = tuple((value - low) / span if span else 0.5 for value in values)
    width = min(WIDTH, len(values))
    chosen = [values[(k + 1) * len(values) // width - 1] for k in range(width)]  # the last one too
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in chosen)


def _left(progress: list[Progress], running: bool) -> str:
    done = sum(one.done for one in progress)
    total = sum(one.rounds for one in progress)
    if done >= total:
        return "finished"
    left = f"{done} of {count(total, 'round')}"
    seconds = seconds_left(progress) if running else None
    return left if seconds is None else f"{left}, about {duration(seconds)} left"


def watch(folder: Path, console: Console, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the table until nobody runs the experiment; once, where there is no terminal."""
    watched = Watched(folder)
    name = watched.experiment.name
    # In this order: a run that ends in between is seen as finished, not as abandoned.
    running, progress = at_work(folder), watched.progress()
    if console.is_terminal:

        def now() -> Table:
            return table(name, progress, running, watched.metric, console.height)

        with Live(now(), console=console, auto_refresh=False) as live:
            try:
                while running and not _finished(progress):
                    sleep(INTERVAL)
                    running, progress = at_work(folder), watched.progress()
                    live.update(now(), refresh=True)
            except KeyboardInterrupt:
                return  # nothing was interrupted but the watching
    else:
        console.print(table(name, progress, running, watched.metric))
    if not (running or _finished(progress)):
        advice = f"Not running; {how_to_go_on(folder)}."
        console.print(advice, markup=False, highlight=False, soft_wrap=True)


def _finished(progress: list[Progress]) -> bool:
    return all(one.finished for one in progress)
