"""Every benchmark still runs: each part once, as small as it goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, dict[str, Any]] = {
    "startup": {"starts": 1, "runs": 1},
    "speed": {"seconds": 0.1, "turns": 1, "epochs": 1},
    "step": {"seconds": 0.1, "processes": 1},
    "precision": {"seconds": 0.1},
    "rounds": {"samples": 20, "rounds": 1, "epochs": 1},
    "before": {"digits": 2, "cifar": 2},
    "workers": {"samples": 20, "turns": 1, "epochs": 1},
    "server": {"cohorts": (4, 6), "rounds": 4},
    "scale": {"clients": (30, 60), "rounds": 14},
    "since": {"turns": 1, "rounds": 4, "clients": 60},
    "checkpoint_cost": {"samples": 20, "rounds": 1, "epochs": 1},
    "ray_overhead": {"samples": 10, "rounds": 1},
    "flower_overhead": {"rounds": 4},
}
ELSEWHERE = {
    "memory",  # data/test_larger_than_memory.py
    "peers",  # it installs other programs, each into an environment of its own
}
ROOT = Path(__file__).parents[1]
CHILD = """
import importlib, sys
print(*importlib.import_module("benchmarks." + sys.argv[1]).run(**eval(sys.argv[2])), sep="\\n")
"""


def child(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_part_is_here() -> None:
    found = child(["from benchmarks.__main__ import PARTS; print(*PARTS)"])
    assert set(found.stdout.split()) == SMALL.keys() | ELSEWHERE


def test_the_table_of_limits_reads_what_verdicts_write() -> None:
    text = """
from benchmarks.limits import rows
from benchmarks.text import verdict
below = verdict("speed", 1, 2, 2.5, unit=" x")
above = verdict("seconds", 1.25, 3, at_most=True)
print(*rows(f"## Part\\n### Batch 10\\n{below}\\n## Other\\n- another line\\n{above}"), sep="\\n")
"""
    assert child([text]).stdout.splitlines() == [
        "('Part: batch 10, speed', '**1 x**', '≥ 2 x (2.5 x)')",
        "('Other: seconds', '1.25', '≤ 3')",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("part", SMALL)
def test_part_runs_and_tells_something(part: str) -> None:
    done = child([CHILD, part, repr(SMALL[part])])
    assert done.returncode == 0, done.stderr
    assert "|" in done.stdout or "- " in done.stdout  # a table, or a verdict
