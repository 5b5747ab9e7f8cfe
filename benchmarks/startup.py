"""How long the command line takes to answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from benchmarks.text import show, table, verdict

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "pgfed --help": ["-m", "pgfed", "--help"],
    "pgfed methods": ["-m", "pgfed", "methods"],
}


def start(words: list[str]) -> tuple[float, float]:
    """(seconds, seconds of CPU)."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"{words}: exit code {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def run(starts: int = 7) -> Iterator[str]:
    found = {}
    for name, words in COMMANDS.items():
        start(words)  # its files are in memory from here on
        times = [start(words) for _ in range(starts)]
        found[name] = [median(column) for column in zip(*times, strict=True)]
    rows = [(name, f"{wall:.3f}", f"{cpu:.3f}") for name, (wall, cpu) in found.items()]
    yield from table(("command", "seconds", "of CPU"), rows)
    yield f"Medians of {starts} starts."
    yield ""
    yield verdict("pgfed --help", found["pgfed --help"][0], 0.5, unit=" s", at_most=True)


if __name__ == "__main__":
    show(run())
