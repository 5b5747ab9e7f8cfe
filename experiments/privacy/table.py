"""Accuracy against epsilon: what each method comes to with less and less privacy.

    python experiments/privacy/table.py FOLDER ...

A folder holds runs of one experiment under the names 1, 3, 8 and none, each with its epsilon (or
what `beyond/table.py --keep` kept of them); several folders are other seeds, splits or methods.
Markdown out: the mean over clients and runs of the last round's scores in percent, and of how many
runs; what was not run, or not to the end, is a dash.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from beyond.table import read

from pgfed.engine.personal import covered
from pgfed.methods.registry import get

EPSILONS = ("1", "3", "8", "none")
FIRST = EPSILONS[1]  # by which rows are ordered
KINDS = {
    "nothing leaves": lambda method: not method.leaves,
    "covered: the personal model may leave": covered,
    "in part at home, on exact gradients: the personal model stays": lambda method: True,
}


def scores(folders: list[Path], epsilon: str) -> dict[str, list[float]]:
    """method -> the mean over clients, of each run."""
    found: dict[str, list[float]] = {}
    for folder in folders:
        if not (folder / epsilon).is_dir():
            continue
        every = [one for runs in read(folder / epsilon).runs.values() for one in runs.values()]
        last = max(one.rounds[-1] for one in every if one.rounds)
        for one in every:
            if one.rounds and one.rounds[-1] == last:  # else it was stopped before
                mean = float(np.nanmean(np.array(one.final, dtype=np.float64)))
                found.setdefault(one.method, []).append(mean)
    return found


def kind(method: str) -> str:
    return next(words for words, holds in KINDS.items() if holds(get(method)()))


def main() -> None:
    folders = [Path(word) for word in sys.argv[1:]]
    if not folders:
        raise SystemExit(__doc__)
    found = {epsilon: scores(folders, epsilon) for epsilon in EPSILONS}
    print(f"| method | runs | epsilon {EPSILONS[0]} | {' | '.join(EPSILONS[1:])} |")
    print("|---|---|---|---|---|---|")
    order = sorted(found[FIRST], key=lambda name: -float(np.mean(found[FIRST][name])))
    for words in KINDS:
        own = [name for name in order if kind(name) == words]
        if own:
            print(f"| *{words}* | | | | | |")
        for name in own:
            runs = [found[epsilon].get(name, []) for epsilon in EPSILONS]
            times = {len(one) for one in runs if one}
            if len(times) > 1:
                raise SystemExit(f"{name}: not as many runs under each epsilon")
            cells = [f"{100 * np.mean(one):.1f}" if one else "–" for one in runs]
            print(f"| `{name}` | {times.pop()} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
