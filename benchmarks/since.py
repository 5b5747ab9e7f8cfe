"""Small models and many clients, beside version 0.1.0 out of the repository's own history.

Digits with the MLP and batches of ten: both trees run the same experiment in processes of their
own, in turns, one core each; every round trains on the same samples to the same bits
(tests/differential). Then `benchmarks.scale` of both, with the most clients.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.text import show, table, verdict

COMMIT = "8547dbf10c93c320c1236bf09f3a9b2eec2f931c"  # 0.1.0
ROOT = Path(__file__).parents[1]
METHODS = ("fedavg", "pgfed", "fedrep")
EXPERIMENT = """
rounds = {rounds}
cohort = 0.25
methods = ["{method}"]
[data]
dataset = "digits"
clients = 20
[model]
name = "mlp"
[train]
batch_size = 10
epochs = 5
[engine]
backend = "serial"
[output]
models = "none"
"""
WARM = 2  # rounds
CLIENTS = 100_000


def run(turns: int = 5, rounds: int = 40, clients: int = CLIENTS) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place:
        trees = {"0.1.0": _unpacked(Path(place) / "0.1.0"), "now": ROOT}
        yield from _digits(trees, Path(place), turns, rounds)
        yield from _scale(trees, clients)


def _digits(trees: dict[str, Path], place: Path, turns: int, rounds: int) -> Iterator[str]:
    rows, lines = [], []
    for method in METHODS:
        file = place / f"{method}.toml"
        file.write_text(EXPERIMENT.format(rounds=rounds, method=method), encoding="utf-8")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for turn in range(turns):
            for name, tree in trees.items():
                out = place / f"{method}-{name}-{turn}"
                found[name].append(_run(tree, file, out, method))
        speed = {
            name: median(samples(found["now"]) / one["training"] for one in each)
            for name, each in found.items()
        }
        pairs = list(zip(found["0.1.0"], found["now"], strict=True))
        trained = median(old["training"] / new["training"] for old, new in pairs)
        whole = median(old["round"] / new["round"] for old, new in pairs)
        old, new = (f"{speed[name]:,.0f}" for name in ("0.1.0", "now"))
        rows.append((method, old, new, f"{trained:.2f}x", f"{whole:.2f}x"))
        if method == "fedavg":
            lines.append(verdict("digits, FedAvg, samples/s, times those of 0.1.0", trained, 3, 5))
    columns = ("digits, MLP, batch 10", "0.1.0, samples/s", "now", "training", "whole rounds")
    yield from table(columns, rows)
    yield f"One core; medians of {turns} turns of {rounds} rounds; scoring is in whole rounds."
    yield ""
    yield from lines


def samples(found: list[dict[str, float]]) -> float:
    return found[0]["samples"]


def _scale(trees: dict[str, Path], clients: int) -> Iterator[str]:
    found: dict[str, Any] = {}
    for name, tree in trees.items():
        words = [sys.executable, "-m", "benchmarks.scale", str(clients), "60"]
        done = subprocess.run(
            words, cwd=tree, env=_environment(tree), stdout=subprocess.PIPE, check=True
        )
        found[name] = json.loads(done.stdout)
    rows = [
        (name, f"{1e3 * f['seconds']:.0f}", f"{f['scoring']:.1f}", f"{f['start']:.1f}")
        for name, f in found.items()
    ]
    yield from table((f"{clients:,} clients", "ms per round", "scoring all, s", "start, s"), rows)
    times = found["now"]["seconds"] / found["0.1.0"]["seconds"]
    yield verdict(f"{clients:,} clients, a round, of 0.1.0's", times, 1, 1 / 3, at_most=True)


def _run(tree: Path, file: Path, out: Path, method: str) -> dict[str, float]:
    """Medians over the rounds of one run."""
    words = [sys.executable, "-m", "pgfed", "run", str(file), "--out", str(out), "--quiet"]
    subprocess.run(words, cwd=file.parent, env=_environment(tree), check=True)
    lines = (out / method / "seed-0" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines][WARM:]
    return {
        "training": median(record["train_seconds"] for record in records),
        "round": median(record["seconds"] for record in records),
        "samples": median(record.get("samples", 0) for record in records),
    }


def _unpacked(folder: Path) -> Path:
    words = ["git", "-C", str(ROOT), "archive", COMMIT, "src", "benchmarks"]
    archive = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def _environment(tree: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **own}


if __name__ == "__main__":
    show(run())
