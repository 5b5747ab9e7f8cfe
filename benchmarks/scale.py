"""Many clients, few of them per round: PGFedMo, a small model, everything else at its default.

Each number of clients has a process of its own, so that its peak memory is its own. All clients
are scored once, near the end; the time of a round is that of the rounds before. The memory for
clients' states is made small, to see them go to disk.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.text import show, table, verdict
from pgfed.results.formats import size

CLIENTS = (1_000, 10_000, 100_000)
COHORT = 20
ROUNDS = 60
STATE_MEMORY = "16MiB"
PATIENCE = 1_800  # seconds for one number of clients


def run(clients: tuple[int, ...] = CLIENTS, rounds: int = ROUNDS) -> Iterator[str]:
    found = []
    for n in clients:
        words = [sys.executable, "-m", "benchmarks.scale", str(n), str(rounds)]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=PATIENCE)
        found.append(json.loads(done.stdout))
    yield from table(
        (
            "clients",
            "ms per round",
            "scoring all, s",
            "start, s",
            "peak memory",
            "of it each worker",
            "states",
            "in memory",
        ),
        [
            (
                f"{f['clients']:,}",
                f"{1e3 * f['seconds']:.0f}",
                f"{f['scoring']:.1f}",
                f"{f['start']:.1f}",
                size(f["memory"]),
                size(f["worker"]),
                f["states"],
                f["held"],
            )
            for f in found
        ],
    )
    yield (
        f"{COHORT} clients per round, {rounds} rounds, a checkpoint after each. Peak memory: main "
        "process and all workers, as if they shared nothing. States: those of clients that took "
        f"part; beyond {STATE_MEMORY} (engine.state_memory) they are on disk only."
    )
    yield ""
    times = found[-1]["seconds"] / found[0]["seconds"]
    many = f"{found[-1]['clients']:,} clients"
    told = f"{many}, seconds per round, times those of {found[0]['clients']:,}"
    yield verdict(told, times, 1.5, at_most=True)
    yield verdict(f"{many}, peak", found[-1]["memory"] / 2**30, 4, unit=" GiB", at_most=True)


def one(clients: int, rounds: int) -> dict[str, Any]:
    """A run with so many clients, in this process."""
    began = time.perf_counter()
    from pgfed.config.experiment import IN_MEMORY, from_dict
    from pgfed.engine.callbacks import Record
    from pgfed.engine.rounds import Run
    from pgfed.engine.runs import execute
    from pgfed.engine.setup import prepare
    from pgfed.results.folder.writer import RunWriter
    from pgfed.tuning.speed import random_federation

    times: list[float] = []
    seen: dict[str, Any] = {}

    class Watched(RunWriter):
        def begin(self, method: str, run: Run) -> None:
            super().begin(method, run)
            times.append(time.perf_counter())

        def round(self, method: str, run: Run, record: Record) -> None:
            super().round(method, run, record)
            times.append(time.perf_counter())

        def end(self, method: str, run: Run) -> None:
            entries = run.store.entries().values()
            seen["states"] = len(entries)
            seen["held"] = sum(entry.state is not None for entry in entries)
            workers = multiprocessing.active_children()
            seen["worker"] = max(_peak(worker.pid) for worker in workers)
            seen["workers"] = len(workers)
            super().end(method, run)

    experiment = from_dict(
        {
            "rounds": rounds,
            "cohort": COHORT / clients,
            "methods": ["pgfed-mo"],
            "evaluate_every": rounds,
            "data": {"dataset": IN_MEMORY, "clients": clients, "partition": "given"},
            "model": {"name": "mlp"},
            "engine": {"state_memory": STATE_MEMORY},
            "output": {"models": "none"},
        }
    )
    data = random_federation(20, clients=clients, input_shape=(1, 8, 8))
    setup = prepare(experiment, Path(), federation=data)
    with (
        tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place,
        Watched(Path(place) / "run", setup) as folder,
    ):
        execute(setup, [folder], folder)
    spent = [after - before for before, after in pairwise(times)]
    unscored = len(spent) - 10  # the last ten are always scored
    main = _peak("self")
    return {
        "clients": clients,
        "start": times[0] - began,
        "seconds": median(spent[2:unscored]),
        "scoring": spent[unscored],
        "memory": main + seen["workers"] * seen["worker"],
        **seen,
    }


def _peak(pid: int | str | None) -> int:
    """The most memory a process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"no peak memory for process {pid}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        show(run())
