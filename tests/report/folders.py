"""Run folders made up for tests: plausible numbers, no training."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from pgfed.config.experiment import from_dict

# How good each method ends up, as a shift of the clients' accuracies over Local's.
LEVELS = {"local": 0.0, "fedavg": -0.05, "fedavg-local": 0.08, "pgfed": 0.081, "fedper": 0.06}
RATIOS = {"local": 0.0, "pgfed": 2.5, "pgfed-mo": 2.5, "pgfed-ce": 2.0}


def make_folder(
    path: Path,
    *,
    methods: Sequence[str] = ("local", "fedavg", "fedavg-local", "pgfed"),
    seeds: Sequence[int] = (0, 1),
    clients: int = 12,
    rounds: int = 20,
    classes: Sequence[str] = ("ant", "bee", "cat", "dog"),
    domains: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    fingerprint: str = "f" * 64,
    dataset: str = "digits",
    settings: dict[str, Any] | None = None,
    levels: dict[str, float] | None = None,
    dropped: Sequence[dict[str, Any]] = (),
    flower: bool = False,
    data_seed: int = 0,
) -> Path:
    """Write a folder as `pgfed run` does."""
    rng = np.random.default_rng(data_seed)
    n_train = rng.integers(30, 400, clients)
    n_test = np.maximum(1, n_train // 3)
    content = {
        "name": path.name,
        "seeds": list(seeds),
        "rounds": rounds,
        "methods": list(methods),
        "data": {"dataset": dataset, "clients": clients, "partition": "dirichlet"},
        "model": {"name": "mlp"},
        **(settings or {}),
    }
    experiment = from_dict(content)
    cohort = experiment.cohort_size(clients)
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(tomli_w.dumps(experiment.document()))
    environment = {
        "python": "3.11.7",
        "packages": {"pgfed": "0.1.0", "torch": "2.13.0"},
        "platform": "Linux",
        "cpu": "a <CPU> & more",
        "cores": 2,
        "memory_bytes": 8_000_000_000,
        "git_commit": "0" * 40,
        "command": "pgfed run",
        "data": {"name": dataset, "fingerprint": fingerprint, "samples": int(n_train.sum())},
    }
    (path / "environment.json").write_text(json.dumps(environment))
    counts = rng.multinomial(50, np.full(len(classes), 1 / len(classes)), size=clients)
    counts[0, 0] = 0
    rows = [{"client": i, "counts": counts[i].tolist()} for i in range(clients)]
    (path / "data.json").write_text(json.dumps({"clients": rows, "class_names": list(classes)}))

    base = rng.uniform(0.55, 0.85, clients)
    for method in methods:
        name = method.partition(":")[2].lower() if ":" in method else method
        level = (LEVELS | (levels or {})).get(name, 0.05)
        taste = np.random.default_rng(1 + len(name)).normal(0, 0.03, clients) if level else 0
        for seed in seeds:
            noise = np.random.default_rng([seed, len(name)]).normal(0, 0.01, clients)
            final = np.clip(base + level + taste + noise, 0, 1)
            at = path / name / f"seed-{seed}"
            at.mkdir(parents=True)
            _history(at, final, rounds, cohort, RATIOS.get(name, 1.0), dropped)
            if flower and name != "local":  # which is trained alongside, with no messages
                _sites(at)
            _clients(at, final, n_train, n_test, domains, labels)
            if name.startswith("pgfed"):
                _alpha(at, n_train, cohort, seed)
    return path


@contextmanager
def at_work(path: Path) -> Iterator[None]:
    """Another process holds the folder, as `pgfed run` does; at the end it is killed."""
    script = "import sys; from pathlib import Path; from pgfed.engine.durable import FolderLock\n"
    script += "FolderLock(Path(sys.argv[1])).acquire(); print('held', flush=True); input()"
    words = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.kill()


def _history(
    at: Path,
    final: np.ndarray,
    rounds: int,
    cohort: int,
    ratio: float,
    dropped: Sequence[dict[str, Any]],
) -> None:
    lines = []
    for t in range(1, rounds + 1):
        grown = 1 - np.exp(-4 * t / rounds)
        record = {
            "round": t,
            "cohort": list(range(cohort)),
            "mean_score": float(final.mean() * grown),
            "client_score": np.round(final * grown, 4).tolist(),
            "mean_loss": 1.0,
            "bytes_down": int(100_000 * ratio),
            "bytes_up": int(100_000 * ratio),
            "dropped": list(dropped) if t == 2 else [],
            "samples": 500,
            "train_seconds": 0.25,
            "seconds": 0.5,
        }
        lines.append(json.dumps(record) + "\n")
    (at / "history.jsonl").write_text("".join(lines))


def _sites(at: Path) -> None:
    """As the server of a federation over Flower adds to the history."""
    records = [json.loads(line) for line in (at / "history.jsonl").read_text().splitlines()]
    for record in records:
        missed = {drop["client"] for drop in record["dropped"]}
        record["sites"] = {
            str(i): {"bytes_down": 1_000}
            if i in missed
            else {
                "seconds": 2.0 + i + (record["round"] == 1),
                "work_seconds": 1.5,
                "bytes_down": 1_000,
                "bytes_up": 3_000,
                "counted": True,
                "accuracy": 0.5,
            }
            for i in record["cohort"]
        }
    records[-1]["sites"].setdefault("0", {})["not_scored"] = "the site went away"
    (at / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def _clients(
    at: Path,
    final: np.ndarray,
    n_train: np.ndarray,
    n_test: np.ndarray,
    domains: Sequence[str] | None,
    labels: Sequence[str] | None,
) -> None:
    with (at / "clients.csv").open("w", newline="") as file:
        names = "client,domain,n_train,n_test,best,final,gain_over_local,last10,rounds,label"
        writer = csv.writer(file)
        writer.writerow(names.split(","))
        for i, accuracy in enumerate(final):
            domain = domains[i % len(domains)] if domains else ""
            label = labels[i] if labels else ""
            row = [i, domain, n_train[i], n_test[i], accuracy + 0.01, accuracy, "", accuracy]
            writer.writerow([*row, 5, label])


def _alpha(at: Path, n_train: np.ndarray, cohort: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = len(n_train)
    meetings = rng.poisson(1.0, (n, n))
    steps = n_train // 10
    change = -0.001 * meetings * steps[:, None] + 0.0003 * n_train * (meetings > 0)
    alpha = np.maximum(0, 1 / cohort + change).astype(np.float32)
    np.savez_compressed(at / "alpha.npz", alpha=alpha, start=1 / cohort, meetings=meetings)
