"""A method beside its control under several settings, a row each.

    python experiments/settings.py METHOD CONTROL DIR [DIR ...]

DIR: a run folder that has both, named after its settings, or what `beyond/table.py --keep` kept of
one. The means over clients and seeds of the models that were kept, and the method's difference from
the control with its 95 % interval.
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
    arguments.add_argument("method")
    arguments.add_argument("control")
    arguments.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    given = arguments.parse_args()
    print(f"| settings | `{given.control}` | `{given.method}` | difference, points |")
    print("|---|---:|---:|---:|")
    for folder in given.folders:
        run = read(folder)
        values = finals(run.runs)
        means = [
            score(float(np.nanmean(values[name])), run.metric)
            for name in (given.control, given.method)
        ]
        difference = Paired(values).difference(given.method, given.control)
        print(f"| {folder.name} | {' | '.join(means)} | {bracketed(difference, run.metric)} |")


if __name__ == "__main__":
    main()
