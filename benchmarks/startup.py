"""How long the command line takes to answer, and where the demo's seconds go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.text import show, table, verdict
from pgfed.results.folder.reader import load

DEMO = "pgfed run"
IMPORT = "import of torch and the engine"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    IMPORT: ["-c", "import pgfed.engine.setup"],
    "pgfed --help": ["-m", "pgfed", "--help"],
    "pgfed methods": ["-m", "pgfed", "methods"],
    "pgfed report": ["-m", "pgfed", "report", "run"],
    DEMO: ["-m", "pgfed", "run", "--out", "demo", "--quiet"],
}
LIMITS = {"pgfed --help": 0.3, "pgfed methods": 0.4, "pgfed report": 3}
DEMO_LIMIT = 15
SMALL = ["-m", "pgfed", "run", "--rounds", "2", "--set", "method.alone.max_epochs=1"]


def start(words: list[str], place: str) -> tuple[float, float]:
    """(seconds, seconds of CPU), in this folder."""
    shutil.rmtree(Path(place) / "demo", ignore_errors=True)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], cwd=place, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"{words}: exit code {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def run(starts: int = 7, runs: int = 3) -> Iterator[str]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="pgfed-bench-") as place:
        start([*SMALL, "--out", "run", "--quiet"], place)  # what the report is of
        for name, words in COMMANDS.items():
            start(words, place)  # its files are in memory from here on
            times = [start(words, place) for _ in range(runs if name == DEMO else starts)]
            found[name] = [median(column) for column in zip(*times, strict=True)]
        last, runs_of = times[-1][0], load(Path(place) / "demo").runs
    rows = [(name, f"{wall:.3f}", f"{cpu:.3f}") for name, (wall, cpu) in found.items()]
    yield from table(("command", "seconds", "of CPU"), rows)
    yield f"Medians of {starts} starts; of {runs} of the demo, `{DEMO}`: training, models and page."
    yield ""
    for name, must in LIMITS.items():
        yield verdict(name, found[name][0], must, unit=" s", at_most=True)
    imported = found[IMPORT][0]
    rest = found[DEMO][0] - imported
    yield verdict(f"{DEMO} without the import", rest, DEMO_LIMIT, unit=" s", at_most=True)
    trained = {name: seeds[0].history.seconds for name, seeds in runs_of.items()}
    told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in trained.items())
    others = last - imported - sum(trained.values())
    yield f"- the last one, {last:.1f} s: rounds of {told}; all else but the import {others:.1f}"


if __name__ == "__main__":
    show(run())
