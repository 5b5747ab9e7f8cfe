"""Which share of the own model, where nothing is known to choose it by?

    python experiments/beyond/blends_table.py DIR [DIR ...]

Reads what `several.py` left, a folder for each federation: the mean accuracy over clients and
seeds of blends and rules, after each round that was scored, and the mean of these columns.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from several_table import read

METHODS = {"plain": "fedavg-local", "framed": "fedavg-framed"}
SHARES = (
    *("global", "blend 0.3", "blend 0.5", "blend 0.7", "own"),
    *("blend by age", "blend by samples"),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    folders = arguments.parse_args().folders
    found = {folder.name: read([folder])[0] for folder in folders}
    columns = [(name, t) for name, rounds in found.items() for t in sorted(rounds)]
    print(f"| | {' | '.join(f'{name}, {t}' for name, t in columns)} | mean |")
    print("|---|" + "---|" * (len(columns) + 1))
    for frame, method in METHODS.items():
        for share in SHARES:
            way = f"{method}, {frame} {share}"
            means = [100 * float(np.nanmean(found[name][t][way])) for name, t in columns]
            cells = [f"{v:.1f}" for v in means] + [f"{np.mean(means):.2f}"]
            print(f"| {frame} {share} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
