"""The table of a question: each method's mean with its paired difference from a control.

    python experiments/beyond/table.py RUN [CONTROL] [--target 0.7]

A run folder in, Markdown out: the mean over clients and seeds of the models that the run kept, the
difference from CONTROL (fedavg-local by default) with its 95 % interval over clients and seeds,
and how many rounds and bytes it took to the target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pgfed.results.folder.reader import load
from pgfed.results.formats import bracketed, score, size
from pgfed.results.runs import RunData, SeedRun
from pgfed.results.statistics import Floats, Paired, rounds_to


def finals(run: RunData) -> dict[str, Floats]:
    """method -> seeds x clients, of the seeds that all methods have."""
    common = set.intersection(*(set(runs) for runs in run.runs.values()))
    return {
        name: np.stack([runs[seed].final for seed in sorted(common)])
        for name, runs in run.runs.items()
    }


def to_target(runs: dict[int, SeedRun], target: float) -> str:
    """Rounds, and bytes, until the mean score reaches the target; the mean over seeds."""
    found = []
    for one in runs.values():
        told = one.history
        rounds = rounds_to(told.rounds, told.score, target)
        if rounds is None:
            return "–"
        found.append((rounds, told.sent[told.rounds.index(rounds)]))
    rounds, sent = np.mean(found, axis=0)
    return f"{rounds:.1f}, {size(sent)}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run", type=Path)
    arguments.add_argument("control", nargs="?", default="fedavg-local")
    arguments.add_argument("--target", type=float, default=0.7)
    given = arguments.parse_args()
    run = load(given.run)
    values = finals(run)
    paired = Paired(values)
    seeds = len(next(iter(values.values())))
    target = f"to {given.target:.0%}"
    print(f"| method | score ({seeds} seeds) | against {given.control} | {target} | sent |")
    print("|---|---|---|---|---|")
    for name, runs in run.runs.items():
        found = paired.difference(name, given.control)
        against = "" if name == given.control else bracketed(found, run.metric)
        total = size(np.mean([one.history.sent[-1] for one in runs.values()]))
        cells = [f"`{name}`", score(float(np.nanmean(values[name])), run.metric), against]
        print(f"| {' | '.join([*cells, to_target(runs, given.target), total])} |")


if __name__ == "__main__":
    main()
