"""Run folders made up for tests: plausible numbers, no training."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from pgfed.config.experiment import from_dict
from pgfed.engine.callbacks import Record
from pgfed.methods import registry as algorithms
from pgfed.model.metrics import ACCURACY, Metric
from pgfed.results.folder.files import write_beginning, write_end, write_summary
from pgfed.results.folder.history import history_of, window_of, write_history
from pgfed.results.folder.layout import csv_text, methods_of, seed_folder
from pgfed.results.runs import Clients, Evidence, MethodInfo, RunData, SeedRun, method_info
from pgfed.results.summary import each_run

# How good each method ends up, as a shift of the clients' scores over Local's.
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
    metric: Metric = ACCURACY,
) -> Path:
    """A folder as `pgfed run` leaves it, by the same writer."""
    rng = np.random.default_rng(data_seed)
    n_train = rng.integers(30, 400, clients)
    counts = rng.multinomial(50, np.full(len(classes), 1 / len(classes)), size=clients)
    counts[0, 0] = 0
    people = Clients(
        n_train=n_train,
        n_test=np.maximum(1, n_train // 3),
        names=list(labels) if labels else [str(i) for i in range(clients)],
        domains=[domains[i % len(domains)] for i in range(clients)] if domains else None,
        counts=counts,
        class_names=list(classes),
    )
    experiment = from_dict(
        {
            "cohort": 0.25,
            "name": path.name,
            "seeds": list(seeds),
            "rounds": rounds,
            "methods": list(methods),
            "data": {"dataset": dataset, "clients": clients, "partition": "dirichlet"},
            "model": {"name": "mlp"},
            **(settings or {}),
        }
    )
    base = rng.uniform(0.55, 0.85, clients)
    runs: dict[str, dict[int, SeedRun]] = {}
    for name in methods_of(experiment):
        level = (LEVELS | (levels or {})).get(name, 0.05)
        taste = np.random.default_rng(1 + len(name)).normal(0, 0.03, clients) if level else 0
        for seed in seeds:
            noise = np.random.default_rng([seed, len(name)]).normal(0, 0.01, clients)
            wanted = np.clip(base + level + taste + noise, 0, 1)
            seen = evidence(wanted, people.n_test) if metric is ACCURACY else None
            final = wanted if seen is None else seen.scores()
            cohort = experiment.cohort_size(clients)
            records = _records(final, rounds, cohort, RATIOS.get(name, 1.0), dropped)
            if flower and name != "local":  # which is trained alongside, with no messages
                _sites(records)
            runs.setdefault(name, {})[seed] = SeedRun(
                method=name,
                seed=seed,
                history=history_of(records),
                scores={"best": final + 0.01, "final": final, "mean": final},
                matrix=_alpha(n_train, cohort, seed) if name.startswith("pgfed") else None,
                evidence=seen,
                window=window_of(rounds),
            )
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
    infos = {f: _info(experiment.base(m)) for f, m in zip(runs, experiment.methods, strict=True)}
    text = tomli_w.dumps(experiment.document())
    write(RunData(path, experiment, environment, people, metric, infos, runs, text=text))
    return path


def evidence(shares: np.ndarray, n_test: np.ndarray) -> Evidence:
    """Such a share of each client's test samples is right: always the first ones."""
    parts = [
        np.arange(n) < round(s * n) for s, n in zip(np.nan_to_num(shares), n_test, strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(n_test)]).astype(np.int64)
    return Evidence(offsets, np.concatenate(parts).astype(np.float32), None)


def write(data: RunData) -> None:
    """All files of a run but its models."""
    people = data.clients
    assert people.counts is not None
    rows = [
        {"client": i, "counts": people.counts[i].tolist(), "label": people.names[i]}
        for i in range(len(people))
    ]
    data.path.mkdir(parents=True)
    write_beginning(data, json.dumps({"clients": rows, "class_names": people.class_names}))
    for run in each_run(data):
        folder = seed_folder(data.path, run.method, run.seed)
        folder.mkdir(parents=True)
        write_history(folder / "history.jsonl", run.history.records, people.names)
        write_end(data, run)
    write_summary(data)


def edit_clients(path: Path, change: Callable[[int, dict[str, str]], object]) -> None:
    """Change the rows of a clients.csv, by the columns' names."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows):
        change(i, row)
    path.write_text(csv_text(rows))


def _info(base: str) -> MethodInfo:
    if ":" in base:
        return MethodInfo(base, new_client_start="its global model")
    return method_info(base, algorithms.get(base), algorithms.summary(base))


@contextmanager
def at_work(path: Path) -> Iterator[None]:
    """Another process holds the folder, as `pgfed run` does; at the end it is killed."""
    script = "import sys; from pathlib import Path\n"
    script += "from pgfed.engine.storage.durable import FolderLock\n"
    script += "FolderLock(Path(sys.argv[1])).acquire(); print('held', flush=True); input()"
    words = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.kill()


def _records(
    final: np.ndarray,
    rounds: int,
    cohort: int,
    ratio: float,
    dropped: Sequence[dict[str, Any]],
) -> list[Record]:
    records = []
    for t in range(1, rounds + 1):
        grown = 1 - np.exp(-8 * t / rounds)
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
        records.append(record)
    return records


def _sites(records: list[Record]) -> None:
    """As the server of a federation over Flower adds to the history."""
    for record in records:
        missed = {drop["client"] for drop in record["dropped"]}
        record["sites"] = {
            i: {"bytes_down": 1_000}
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
    records[-1]["sites"].setdefault(0, {})["not_scored"] = "the site went away"


def _alpha(n_train: np.ndarray, cohort: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    n = len(n_train)
    meetings = rng.poisson(1.0, (n, n))
    steps = n_train // 10
    change = -0.001 * meetings * steps[:, None] + 0.0003 * n_train * (meetings > 0)
    alpha = np.maximum(0, 1 / cohort + change).astype(np.float32)
    return {"alpha": alpha, "start": 1 / cohort, "meetings": meetings}
