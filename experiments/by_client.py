"""A row per method: every client's score, the mean over clients, and another metric beside it.

    python experiments/by_client.py RUN [--beside auc]

A run folder in, Markdown out: of the models that the run kept, the mean over seeds for each client
(`final` in clients.csv); the mean over clients with its deviation over seeds; and the mean of
another column over the clients where it is defined.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from pgfed.results.folder.reader import load


def digits(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--beside", default="auc")
    given = arguments.parse_args()
    for number, (name, seeds) in enumerate(load(given.run).runs.items()):
        tables = {
            seed: pd.read_csv(given.run / name / f"seed-{seed}" / "clients.csv", index_col="client")
            for seed in sorted(seeds)
        }
        final = pd.DataFrame({seed: table["final"] for seed, table in tables.items()})
        other = pd.DataFrame({seed: table[given.beside] for seed, table in tables.items()})
        if not number:
            print(f"| | {' | '.join(final.index)} | mean (± over seeds) | {given.beside} |")
            print("|---" * (len(final) + 3) + "|")
        means = final.mean()
        cells = [f"`{name}`", *map(digits, final.mean(axis=1))]
        cells += [f"{digits(means.mean())} ± {digits(means.std())}", digits(other.mean().mean())]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
