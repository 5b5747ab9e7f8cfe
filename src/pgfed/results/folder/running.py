"""A run that may still be going on: how far it is, and whether something is wrong."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pgfed.config import experiment
from pgfed.results.folder import layout
from pgfed.results.folder.history import History, troubles
from pgfed.results.folder.layout import seed_folder
from pgfed.results.folder.reader import names_in, read_curves, read_methods, read_metric

GROWN = 3.0  # times its lowest value: a loss that runs away
STATUS = "status.json"  # of a federation: which sites are here


@dataclass(frozen=True)
class Progress:
    """How far one method is under one seed."""

    method: str
    seed: int
    rounds: int  # to do in all
    history: History

    @property
    def done(self) -> int:
        return len(self.history.rounds)

    @property
    def scores(self) -> tuple[float, ...]:
        """Of the scored rounds."""
        return tuple(a for a in self.history.score if a is not None)

    @property
    def finished(self) -> bool:
        return self.done >= self.rounds

    @property
    def label(self) -> str:
        return f"{self.method}, seed {self.seed}"

    def warnings(self) -> list[str]:
        """Whether it diverges, or has replies that did not count."""
        lines = troubles(self.label, [self.history.health])
        losses = [float(r["mean_loss"]) for r in self.history.records if r.get("mean_loss")]
        if self.history.health.diverged or not losses:
            return lines
        if not math.isfinite(losses[-1]) or losses[-1] > GROWN * min(losses):
            lines.append(
                f"{self.label}: may be diverging; the loss is {losses[-1]:.3g}, its lowest was "
                f"{min(losses):.3g}. Lower train.lr."
            )
        return lines


def seconds_left(progress: list[Progress]) -> float | None:
    """By the rounds so far; None before the first.

    What trains to its end in one round does not count: the others are not that long.
    """
    most = max(one.rounds for one in progress)
    usual = [one for one in progress if one.rounds == most]
    done = sum(one.done for one in usual)
    if not done:
        return None
    left = sum(one.rounds - one.done for one in progress)
    return sum(one.history.seconds for one in usual) / done * left


class Watched:
    """A run folder that may still grow; files that did not change are not read again."""

    def __init__(self, folder: Path) -> None:
        self.experiment = experiment.of_run(folder)
        self.metric = read_metric(folder)
        self.methods = read_methods(folder, self.experiment)
        self.names = names_in(folder)
        self.folder = folder
        self._known: dict[Path, tuple[int, Progress]] = {}

    def progress(self) -> list[Progress]:
        return [
            self._one(method, seed)
            for method in layout.methods_of(self.experiment)
            for seed in self.experiment.seeds
        ]

    def _one(self, method: str, seed: int) -> Progress:
        path = seed_folder(self.folder, method, seed) / layout.HISTORY
        length = path.stat().st_size if path.is_file() else 0
        if path not in self._known or self._known[path][0] != length:
            history = read_curves(self.folder, self.experiment, method, seed)
            rounds = self.methods[method].rounds(self.experiment)
            self._known[path] = length, Progress(method, seed, rounds, history)
        return self._known[path][1]

    def standing(self) -> Standing:
        """All of it, as of now."""
        # In this order: a run that ends in between is seen as finished, not as abandoned.
        running, progress = layout.at_work(self.folder), self.progress()
        return Standing(self, running, progress)


@dataclass(frozen=True)
class Standing:
    """How far a run was when somebody looked."""

    watched: Watched
    running: bool
    progress: list[Progress] = field(repr=False)

    @property
    def state(self) -> Literal["running", "finished", "stopped"]:
        if all(one.finished for one in self.progress):
            return "finished"
        return "running" if self.running else "stopped"

    @property
    def done(self) -> int:
        return sum(one.done for one in self.progress)

    @property
    def total(self) -> int:
        return sum(one.rounds for one in self.progress)

    @property
    def seconds_left(self) -> float | None:
        """By the rounds so far; None before the first, and where nobody runs it."""
        return seconds_left(self.progress) if self.state == "running" else None

    @property
    def current(self) -> Progress | None:
        """What is being run, or would be next."""
        begun = [one for one in self.progress if one.done and not one.finished]
        rest = [one for one in self.progress if not one.finished]
        return next(iter(begun or rest), None)

    def warnings(self) -> list[str]:
        return [line for one in self.progress for line in one.warnings()]

    def missing(self) -> list[str]:
        """Sites that are not here; in a simulation, clients whose last reply did not come."""
        if self.state != "running":
            return []
        if (sites := _sites(self.watched.folder / STATUS)) is not None:
            return sites
        one = self.current
        if one is None or not one.done:
            return []
        names = self.watched.names
        lost = [d["client"] for d in one.history.records[-1]["dropped"]]
        return [names[i] if 0 <= i < len(names) else str(i) for i in dict.fromkeys(lost)]

    def as_json(self) -> dict[str, Any]:
        """For scripts: `pgfed watch --json`."""
        return {
            "name": self.watched.experiment.name,
            "folder": str(self.watched.folder),
            "state": self.state,
            "rounds_done": self.done,
            "rounds": self.total,
            "seconds_left": self.seconds_left,
            "metric": self.watched.metric.name,
            "missing": self.missing(),
            "warnings": self.warnings(),
            "runs": [
                {
                    "method": one.method,
                    "seed": one.seed,
                    "round": one.done,
                    "rounds": one.rounds,
                    "finished": one.finished,
                    "score": one.scores[-1] if one.scores else None,
                    "best_score": self._best(one),
                    "bytes": one.history.sent[-1] if one.done else 0.0,
                }
                for one in self.progress
            ],
        }

    def _best(self, one: Progress) -> float | None:
        sign = self.watched.metric.sign
        return max(one.scores, key=lambda value: sign * value, default=None)


def _sites(path: Path) -> list[str] | None:
    """Of a federation, those that are not here; None in a simulation."""
    if not path.is_file():
        return None
    try:
        sites = json.loads(path.read_text(encoding="utf-8"))["sites"]
        return [str(site["name"]) for site in sites if not site["here"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it only tells, and may just be written
