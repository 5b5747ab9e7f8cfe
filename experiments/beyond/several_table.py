"""The table of `several.py`: ways to make a personal model, by round, against a control.

    python experiments/beyond/several_table.py FILE.jsonl [CONTROL]

The mean accuracy over clients and seeds after each round that was scored, and, after the last one,
the difference from CONTROL (fedavg-local as it is) with its 95 % interval over clients and seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from pgfed.results.statistics import Floats, Paired


def read(path: Path) -> tuple[dict[int, dict[str, Floats]], dict[str, float]]:
    """(round -> way -> seeds x clients, of the seeds that all ways have; way -> MB sent)."""
    found: dict[int, dict[str, dict[int, list[float]]]] = {}
    sent: dict[str, float] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        way = f"{line['method']}, {line['way']}"
        found.setdefault(line["round"], {}).setdefault(way, {})[line["seed"]] = line["scores"]
        sent[way] = line["sent"] / 1e6
    common = set.intersection(*(set(s) for ways in found.values() for s in ways.values()))
    return {
        round: {way: np.array([s[k] for k in sorted(common)]) for way, s in ways.items()}
        for round, ways in found.items()
    }, sent


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file", type=Path)
    arguments.add_argument("control", nargs="?", default="fedavg-local, as it is")
    given = arguments.parse_args()
    found, sent = read(given.file)
    rounds = sorted(found)
    last = found[rounds[-1]]
    paired = Paired(last)
    seeds = len(next(iter(last.values())))
    heads = [f"round {t}" for t in rounds]
    print(f"| method, way ({seeds} seeds) | {' | '.join(heads)} | against control | sent |")
    print("|---|" + "---|" * (len(rounds) + 2))
    for way in last:
        means = [f"{100 * np.nanmean(found[t][way]):.1f}" for t in rounds]
        d = paired.difference(way, given.control)
        against = "" if way == given.control else f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, "
        against += "" if way == given.control else f"{100 * d.high:+.1f}]"
        print(f"| {way} | {' | '.join(means)} | {against} | {sent[way]:.0f} MB |")


if __name__ == "__main__":
    main()
