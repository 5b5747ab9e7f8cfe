"""The table of a question: each method's mean with its paired difference from a control.

    python experiments/beyond/table.py RUN [CONTROL] [--target 0.7] [--beside OTHER ...]

A run folder in, Markdown out: the mean over clients and seeds of the models that the run kept, the
difference from CONTROL (fedavg-local by default) with its 95 % interval over clients and seeds,
and how many rounds and bytes it took to the target. OTHER: a run of the same clients and seeds
under other settings, whose methods are added under its folder's name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pgfed.results.folder.reader import load
from pgfed.results.formats import bracketed, score, size
from pgfed.results.runs import RunData, SeedRun
from pgfed.results.statistics import Floats, Paired, rounds_to

Runs = dict[str, dict[int, SeedRun]]  # method -> seed -> run


def finals(found: Runs) -> dict[str, Floats]:
    """method -> seeds x clients, of the seeds that all methods have."""
    common = set.intersection(*(set(runs) for runs in found.values()))
    return {
        name: np.stack([runs[seed].final for seed in sorted(common)])
        for name, runs in found.items()
    }


def beside(run: RunData, others: list[Path]) -> Runs:
    """The methods of a run, and those of others that had the same clients."""
    found: Runs = dict(run.runs)
    for path in others:
        other = load(path)
        if not np.array_equal(other.clients.n_train, run.clients.n_train):
            raise SystemExit(f"{path}: other clients than those of the run it is put beside")
        found |= {f"{name}, {path.name}": runs for name, runs in other.runs.items()}
    return found


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
    arguments.add_argument("--beside", type=Path, action="append", default=[])
    given = arguments.parse_args()
    run = load(given.run)
    every = beside(run, given.beside)
    values = finals(every)
    paired = Paired(values)
    seeds = len(next(iter(values.values())))
    target = f"to {given.target:.0%}"
    print(f"| method | score ({seeds} seeds) | against {given.control} | {target} | sent |")
    print("|---|---|---|---|---|")
    for name, runs in every.items():
        found = paired.difference(name, given.control)
        against = "" if name == given.control else bracketed(found, run.metric)
        total = size(np.mean([one.history.sent[-1] for one in runs.values()]))
        cells = [f"`{name}`", score(float(np.nanmean(values[name])), run.metric), against]
        print(f"| {' | '.join([*cells, to_target(runs, given.target), total])} |")


if __name__ == "__main__":
    main()
