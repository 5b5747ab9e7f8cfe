"""The table of a question: each method's mean with its paired difference from a control.

    python experiments/beyond/table.py RUN [CONTROL] [--target 0.7] [--beside OTHER ...]
    python experiments/beyond/table.py RUN --keep FOLDER

A run folder in, Markdown out: the mean over clients and seeds of the models that the run kept, the
difference from CONTROL (fedavg-local by default) with its 95 % interval over clients and seeds,
and how many rounds and bytes it took to the target. OTHER: a run of the same clients and seeds
under other settings, whose methods are added under its folder's name. With --keep no table is
printed: what one is made of goes to FOLDER/scores.jsonl, and FOLDER then stands for the run.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.model.metrics import METRICS, Metric
from pgfed.results.folder.layout import is_run
from pgfed.results.folder.reader import load
from pgfed.results.formats import bracketed, count, score, size
from pgfed.results.statistics import Floats, Paired, rounds_to

KEPT = "scores.jsonl"


@dataclass(frozen=True)
class Scored:
    """One method under one seed."""

    method: str
    seed: int
    final: list[float | None]  # each client's; none without test data
    rounds: list[int]
    score: list[float | None]  # the mean over clients after each of the rounds
    sent: list[int]  # bytes, up to each of them


Runs = dict[str, dict[int, Scored]]  # method -> seed -> run


@dataclass(frozen=True)
class Run:
    """What a table is made of."""

    metric: Metric
    n_train: list[int]
    runs: Runs


def read(folder: Path) -> Run:
    """A run folder, or what was kept of one."""
    lines = told(folder) if is_run(folder) else kept(folder)
    runs: Runs = {}
    for line in lines[1:]:
        one = Scored(**line)
        runs.setdefault(one.method, {})[one.seed] = one
    return Run(METRICS[lines[0]["metric"]], lines[0]["n_train"], runs)


def kept(folder: Path) -> list[dict[str, Any]]:
    if not (folder / KEPT).is_file():
        raise SystemExit(f"{folder}: neither a run folder nor one that --keep made")
    text = (folder / KEPT).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def told(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run: what is true of all, then one for each method and seed."""
    run = load(folder)
    lines: list[dict[str, Any]] = [
        {"metric": run.metric.name, "n_train": run.clients.n_train.tolist()}
    ]
    for method, by_seed in run.runs.items():
        for seed, one in by_seed.items():
            final = [None if np.isnan(v) else round(float(v), 6) for v in one.final]
            past = one.history
            means = [None if v is None else round(v, 6) for v in past.score]
            sent = [int(v) for v in past.sent]
            lines.append(asdict(Scored(method, seed, final, list(past.rounds), means, sent)))
    return lines


def finals(found: Runs) -> dict[str, Floats]:
    """method -> seeds x clients, of the seeds that all methods have."""
    common = set.intersection(*(set(runs) for runs in found.values()))
    return {
        name: np.array([runs[seed].final for seed in sorted(common)], dtype=np.float64)
        for name, runs in found.items()
    }


def beside(run: Run, others: list[Path]) -> Runs:
    """The methods of a run, and those of others that had the same clients."""
    found: Runs = dict(run.runs)
    for path in others:
        other = read(path)
        if other.n_train != run.n_train:
            raise SystemExit(f"{path}: other clients than those of the run it is put beside")
        found |= {f"{name}, {path.name}": runs for name, runs in other.runs.items()}
    return found


def to_target(runs: dict[int, Scored], target: float) -> str:
    """Rounds, and bytes, until the mean score reaches the target; the mean over seeds."""
    found = []
    for one in runs.values():
        rounds = rounds_to(one.rounds, one.score, target)
        if rounds is None or len(one.rounds) == 1:  # trained once: there were no rounds
            return "–"
        found.append((rounds, one.sent[one.rounds.index(rounds)]))
    rounds, sent = np.mean(found, axis=0)
    return f"{rounds:.1f}, {size(sent)}"


def table(run: Run, control: str, target: float, others: list[Path]) -> None:
    every = beside(run, others)
    values = finals(every)
    paired = Paired(values)
    seeds = len(next(iter(values.values())))
    aim = f"rounds and bytes to {100 * target:.0f} %"
    print(f"| method | score ({count(seeds, 'seed')}) | against {control} | {aim} | sent |")
    print("|---|---|---|---|---|")
    for name, runs in every.items():
        found = paired.difference(name, control)
        against = "" if name == control else bracketed(found, run.metric)
        total = size(np.mean([one.sent[-1] for one in runs.values()]))
        cells = [f"`{name}`", score(float(np.nanmean(values[name])), run.metric), against]
        print(f"| {' | '.join([*cells, to_target(runs, target), total])} |")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run", type=Path)
    arguments.add_argument("control", nargs="?", default="fedavg-local")
    arguments.add_argument("--target", type=float, default=0.7)
    arguments.add_argument("--beside", type=Path, action="append", default=[])
    arguments.add_argument("--keep", type=Path, metavar="FOLDER")
    given = arguments.parse_args()
    if given.keep is None:
        table(read(given.run), given.control, given.target, given.beside)
        return
    given.keep.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(line) + "\n" for line in told(given.run))
    (given.keep / KEPT).write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
