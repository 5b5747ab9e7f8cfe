"""Who suffers most when clients are away: each method against itself, the largest loss first.

    python experiments/away.py THERE AWAY

Two run folders of the same experiment in (or what `beyond/table.py --keep` kept of them), Markdown
out: the mean over clients and seeds of the last round's scores in both, and the paired difference
with its 95 % interval over clients and seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from beyond.table import finals, read

from pgfed.results.formats import bracketed, score
from pgfed.results.statistics import Paired


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("there", type=Path)
    arguments.add_argument("away", type=Path)
    given = arguments.parse_args()
    there, away = read(given.there), read(given.away)
    rows = []
    for name in there.runs:
        if name not in away.runs:
            continue
        pair = finals({"there": there.runs[name], "away": away.runs[name]})
        found = Paired(pair).difference("away", "there")
        means = [score(float(np.nanmean(pair[which])), there.metric) for which in pair]
        rows.append((found.mean, [f"`{name}`", *means, bracketed(found, there.metric)]))
    print("| method | all there | some away | difference |")
    print("|---|---|---|---|")
    for _, cells in sorted(rows, key=lambda row: row[0]):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
