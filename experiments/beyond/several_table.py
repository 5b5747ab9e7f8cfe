"""The table of `several.py`: ways to make a personal model, by round, against one of them.

    python experiments/beyond/several_table.py DIR [DIR ...] [--against WAY] [--at ROUND]

The mean accuracy over clients and seeds after each round that was scored, and, after ROUND (the
last one), the difference from WAY ("fedavg-local, as it is") with its 95 % interval over clients
and seeds. Several folders hold other methods or seeds of one question.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from pgfed.results.formats import count
from pgfed.results.statistics import Floats, Paired


def read(folders: list[Path]) -> tuple[dict[int, dict[str, Floats]], dict[str, float]]:
    """(round -> way -> seeds x clients, of the seeds that all ways have; way -> MB per round)."""
    found: dict[int, dict[str, dict[int, list[float]]]] = {}
    sent: dict[str, float] = {}
    for folder in folders:
        text = (folder / "several.jsonl").read_text(encoding="utf-8")
        for line in map(json.loads, text.splitlines()):
            way = f"{line['method']}, {line['way']}"
            found.setdefault(line["round"], {}).setdefault(way, {})[line["seed"]] = line["scores"]
            sent[way] = line["sent"] / 1e6 / line["round"]
    common = set.intersection(*(set(s) for ways in found.values() for s in ways.values()))
    return {
        round: {way: np.array([s[k] for k in sorted(common)]) for way, s in ways.items()}
        for round, ways in found.items()
    }, sent


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    arguments.add_argument("--against", default="fedavg-local, as it is", metavar="WAY")
    arguments.add_argument("--at", type=int, default=None, metavar="ROUND")
    given = arguments.parse_args()
    found, sent = read(given.folders)
    rounds = sorted(found)
    ends = found[given.at or rounds[-1]]
    paired = Paired(ends)
    seeds = len(next(iter(ends.values())))
    heads = [f"round {t}" for t in rounds]
    said = f"against {given.against}" + (f", round {given.at}" if given.at else "")
    print(f"| method, way ({count(seeds, 'seed')}) | {' | '.join(heads)} | {said} | MB a round |")
    print("|---|" + "---|" * (len(rounds) + 2))
    for way in ends:
        means = [
            f"{100 * np.nanmean(found[t][way]):.1f}" if way in found[t] else "" for t in rounds
        ]
        against = ""
        if way != given.against:
            d = paired.difference(way, given.against)
            against = f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"
        print(f"| {way} | {' | '.join(means)} | {against} | {sent[way]:.3g} |")


if __name__ == "__main__":
    main()
