"""Rounds of version 0.1 and of today's tree, taking turns in one run: is classification as fast?

Each tree runs the same experiment file in a process of its own, as `pgfed run` does: training in
worker processes, scoring of all clients, history, checkpoints. A round begins when it is told to,
and the other tree rests meanwhile; who goes first changes from pair to pair. What counts is the
ratio within a pair, so that a machine that is slow for a while is so for both.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Self

import numpy as np

from benchmarks.text import show, table, verdict

COMMIT = "8547dbf"  # version 0.1
ROOT = Path(__file__).parents[1]
MUST = 1.05  # times the seconds of 0.1
WARM = 3  # rounds: PGFed's auxiliary gradients are there from the second on
EXPERIMENT = """
name = "turns"
rounds = {rounds}
methods = ["{method}"]
cohort = 0.25
data = {{dataset = "{dataset}", clients = 20, partition = "iid"}}
model = {{name = "{model}"}}
train = {{epochs = 5, batch_size = 10, lr = 0.005}}
output = {{models = "none"}}
"""

# In a process of its own, with one tree's sources on the path. The class of a run is all that it
# takes from inside; a round lasts from one call of `step` to the next.
CHILD = """
import contextlib, importlib, io, sys, time
from pgfed.cli import main

def run_class():
    for home in ("pgfed.engine.rounds", "pgfed.engine.run"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(home).Run

said, asked, began = sys.stdout, sys.stdin, None
plain = run_class().step

def turn():
    global began
    if began is not None:
        print(time.perf_counter() - began, file=said, flush=True)
    asked.readline()
    began = time.perf_counter()

def step(self, *words, **options):
    turn()
    return plain(self, *words, **options)

run_class().step = step
with contextlib.redirect_stdout(io.StringIO()):
    main(["run", sys.argv[1], "--out", sys.argv[2]])
"""


class Tree:
    """One tree's run of an experiment, round by round."""

    def __init__(self, src: Path, file: Path, out: Path) -> None:
        self._said = out.with_name(f"{out.name}.log")
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(file), str(out)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(src)},
                cwd=file.parent,
                text=True,
            )

    def turn(self) -> float:
        """The seconds of one more round."""
        assert self._process.stdin is not None, "a pipe was asked for"
        assert self._process.stdout is not None, "a pipe was asked for"
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise AssertionError(f"no round: {self._said.read_text()[-500:]}")
        return float(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it waits for a round that nobody wants
        self._process.wait()


def sources(place: Path) -> Path:
    """Those of 0.1, from the repository's own history."""
    words = ["git", "-C", str(ROOT), "archive", COMMIT, "src"]
    archive = subprocess.run(words, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(place, filter="data")
    return place / "src"


def pairs(
    old: Path, place: Path, dataset: str, model: str, method: str, rounds: int
) -> list[tuple[float, float]]:
    """(seconds of 0.1, seconds of today) of each round but the first ones."""
    file = place / f"{model}-{method}.toml"
    # One round more than are timed: its beginning ends the last of them.
    text = EXPERIMENT.format(dataset=dataset, model=model, method=method, rounds=WARM + rounds + 1)
    file.write_text(text)
    found = []
    with ExitStack() as stack:
        lanes = [
            stack.enter_context(Tree(src, file, file.with_suffix(f".{k}")))
            for k, src in enumerate((old, ROOT / "src"))
        ]
        for round in range(WARM + rounds):
            order = (0, 1) if round % 2 else (1, 0)
            seconds = {k: lanes[k].turn() for k in order}
            found.append((seconds[0], seconds[1]))
    return found[WARM:]


def run(digits: int = 60, cifar: int = 20) -> Iterator[str]:
    rows, verdicts = [], []
    with tempfile.TemporaryDirectory(prefix="pgfed-bench-") as name:
        place = Path(name)
        old = sources(place)
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (1600, 3, 32, 32), dtype=np.uint8)
        np.savez(place / "cifar.npz", x=x, y=rng.integers(0, 10, 1600))
        cases = [("digits", "mlp", digits), (f"npz:{place / 'cifar.npz'}", "cnn", cifar)]
        for dataset, model, rounds in cases:
            for method in ("fedavg", "pgfed"):
                found = pairs(old, place, dataset, model, method, rounds)
                ratios = [new / before for before, new in found]
                low, _, high = quantiles(ratios, n=4)
                what = f"{'digits' if model == 'mlp' else 'CIFAR shapes'}, {model}, {method}"
                each = [f"{1000 * median(one):,.0f}" for one in zip(*found, strict=True)]
                spread = f"{low:.3f} to {high:.3f}"
                rows.append((what, *each, f"{median(ratios):.3f}", spread, rounds))
                verdicts.append(
                    verdict(f"{what}, seconds", median(ratios), MUST, unit=" x", at_most=True)
                )
    columns = ("", "0.1, ms per round", "now", "now / 0.1", "middle half", "pairs")
    yield from table(columns, rows)
    yield "Medians over pairs of rounds: version 0.1 and today's tree take turns, in this order."
    yield ""
    yield from verdicts


if __name__ == "__main__":
    show(run())
