"""Whole rounds of FedAvg beside what pip has: Flower's simulation, pfl-research, FedJAX.

All do the same work (`peer_rounds/work.py`) in processes of their own and take turns, round by
round, so that whatever else the machine does meets all of them. Ours is `pgfed run` as users start
it: every client scored after each round, history and checkpoints written; the others only train.

    python -m benchmarks peers
    python -m benchmarks.peers --program NAME=FOLDER     # a checkout with FOLDER/rounds.py

FOLDER/rounds.py is for programs that pip does not have (the authors' code, PFLlib, FL-bench): it
calls `benchmarks.peer_rounds.work.turn()` before each of its rounds, and is run by FOLDER's own
.venv, or else by ours. What a peer needs is installed once, in runs/peers/NAME.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np

from benchmarks.before import CHILD
from benchmarks.peer_rounds import work
from benchmarks.text import show, table

ROOT = Path(__file__).parents[1]
WARM = 1  # rounds: compilers, caches
PATIENCE = 600  # seconds of one round, its start included, after which a program hangs
OURS = "pgfed, every client scored"
EXPERIMENT = """
rounds = 1000000
cohort = {cohort}
methods = ["fedavg"]
data = {{dataset = "npz:{file}", partition = "given"}}
model = {{name = "cnn"}}
train = {{epochs = 1, batch_size = {batch}, lr = {lr}, momentum = {momentum}}}
output = {{models = "none"}}
"""


@dataclass(frozen=True)
class Peer:
    """A program that pip has, and how it is started."""

    module: str
    packages: Sequence[str] = ()  # nothing: our own environment has it
    starter: Sequence[str] = ("python", "-m")


PEERS = {
    "Flower 1.41, simulation on Ray": Peer("flower"),
    "pfl-research 0.6, a process per core": Peer(
        "pfl_research",
        ("torch==2.13.0", "pfl==0.6.0"),
        ("torchrun", "--standalone", f"--nproc-per-node={os.cpu_count()}", "-m"),
    ),
    # Its newest release knows neither newer versions of JAX nor numpy 2.
    "FedJAX 0.0.17, XLA's threads": Peer(
        "fedjax_rounds",
        ("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "numpy<2"),
    ),
}


class Rounds:
    """A program that runs round by round, each when it is asked for."""

    def __init__(self, words: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            text=True,
            start_new_session=True,
        )
        self._ask()

    def _ask(self) -> None:
        assert self._process.stdin is not None, "a pipe was asked for"
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def turn(self) -> float:
        """The seconds of the round that was asked for; the next one waits for the next turn."""
        assert self._process.stdout is not None, "a pipe was asked for"
        limit = threading.Timer(PATIENCE, self._end)
        limit.start()
        try:
            while line := self._process.stdout.readline():
                word, _, seconds = line.rpartition(" ")
                if word in ("", "took"):
                    return float(seconds)
        finally:
            limit.cancel()
        raise RuntimeError("it ended, or hung, before its rounds were over")

    def _end(self) -> None:
        os.killpg(self._process.pid, 9)  # workers and all

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._process.wait()


def environment(name: str, packages: Sequence[str]) -> Path:
    """The folder of programs of an environment with these packages."""
    if not packages:
        return Path(sys.executable).parent
    place = ROOT / "runs" / "peers" / name
    if not (place / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        words = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(words, check=True)
        (place / "installed").touch()
    return place / "bin"


def ours(place: Path) -> list[str | Path]:
    """How `pgfed run` is started on the same samples, a third as many more to score on."""
    x, y = zip(*(work.client(i) for i in range(work.CLIENTS)), strict=True)
    tested = work.SAMPLES // 3
    one = ["train"] * work.SAMPLES + ["test"] * tested
    pixels = [np.concatenate([part, part[:tested]]) for part in x]
    np.savez(
        place / "clients.npz",
        x=((np.concatenate(pixels) + 1) * 127.5).round().astype(np.uint8),
        y=np.concatenate([np.concatenate([part, part[:tested]]) for part in y]),
        client=np.repeat(np.arange(work.CLIENTS), len(one)),
        split=np.array(one * work.CLIENTS),
    )
    work.client.cache_clear()
    file = place / "experiment.toml"
    text = EXPERIMENT.format(
        cohort=work.COHORT / work.CLIENTS,
        file=place / "clients.npz",
        batch=work.BATCH,
        lr=work.LR,
        momentum=work.MOMENTUM,
    )
    file.write_text(text, encoding="utf-8")
    return [sys.executable, "-c", CHILD, file, place / "run"]


def started(name: str, peer: Peer) -> Rounds:
    bin = environment(peer.module, peer.packages)
    starter, *options = peer.starter
    module = f"benchmarks.peer_rounds.{peer.module}"
    return Rounds([bin / starter, *options, module], {})


def run(rounds: int = 5, programs: Mapping[str, Path] | None = None) -> Iterator[str]:
    found: dict[str, list[float]] = {}
    missing = []
    with tempfile.TemporaryDirectory(prefix="pgfed-bench-") as folder, ExitStack() as stack:
        lanes = {
            OURS: stack.enter_context(Rounds(ours(Path(folder)), {"PYTHONPATH": str(ROOT / "src")}))
        }
        for name, peer in PEERS.items():
            try:
                lanes[name] = stack.enter_context(started(name, peer))
            except (OSError, subprocess.CalledProcessError) as error:
                missing.append(f"{name} ({type(error).__name__})")
        for name, place in (programs or {}).items():
            python = place / ".venv" / "bin" / "python"
            words = [python if python.exists() else sys.executable, place / "rounds.py"]
            lanes[name] = stack.enter_context(Rounds(words, {}))
        for k in range(WARM + rounds):
            for name, lane in list(lanes.items()):
                try:
                    if k:
                        lane._ask()
                    found.setdefault(name, []).append(lane.turn())
                except (RuntimeError, OSError):
                    missing.append(name)
                    del lanes[name]
    base = found[OURS][WARM:]
    rows = [
        (
            name,
            f"{median(took[WARM:]):.1f}",
            f"{median(t / b for t, b in zip(took[WARM:], base, strict=True)):.2f}x",
        )
        for name, took in found.items()
        if name in lanes
    ]
    yield from table(("FedAvg", "seconds per round", "of ours"), rows)
    yield (
        f"{work.COHORT} of {work.CLIENTS} clients per round of {work.SAMPLES} samples, one epoch, "
        f"batch {work.BATCH}, the paper's CNN; medians of {rounds} rounds."
    )
    if missing:
        yield f"Could not be run: {', '.join(dict.fromkeys(missing))}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    programs = {name: Path(path) for name, _, path in (p.partition("=") for p in given.program)}
    show(run(given.rounds, programs))


if __name__ == "__main__":
    main()
