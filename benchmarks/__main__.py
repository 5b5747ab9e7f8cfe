"""Run all parts, or those named: `python -m benchmarks speed scale --write`.

``--write`` puts what was measured, with the machine, into RESULTS.md beside this file; the
sections of parts that were not run stay as they are.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.text import show
from pgfed.engine.environment import environment
from pgfed.engine.storage.durable import write_atomic
from pgfed.tuning.speed import random_federation

PARTS = {
    "startup": "Start-up",
    "speed": "Training speed",
    "step": "What a training step is made of",
    "precision": "bfloat16 and torch.compile",
    "rounds": "Whole rounds",
    "before": "Version 0.1 and now, in turns",
    "workers": "Workers, and a busy machine",
    "server": "PGFed's server step",
    "scale": "Scale in clients",
    "since": "Small models and many clients, since 0.1.0",
    "peers": "Beside other programs",
    "memory": "Data larger than memory",
    "checkpoint_cost": "What checkpoints cost",
    "ray_overhead": "A round on Ray",
    "flower_overhead": "A round on Flower",
}
RESULTS = Path(__file__).with_name("RESULTS.md")
TITLE = """# Results

Written by `python -m benchmarks --write`; `python -m benchmarks PART --write` replaces one section.
Each ratio comes from work that took turns in one run. "Load" is the machine's load average before
the part began: well below 1 on a quiet machine.
"""


def machine() -> str:
    facts = environment(random_federation(1, clients=1), {})
    versions = facts["packages"]
    return (
        f"{facts['cpu']} ({torch.backends.cpu.get_cpu_capability()}), {facts['cores']} cores, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB; torch "
        f"{versions['torch']}, Python {facts['python']}, pgfed {versions['pgfed']} "
        f"({str(facts['git_commit'])[:10]})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    asked = parser.parse_args()
    for name in asked.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; allowed: {', '.join(PARTS)}")
    for name in asked.parts or PARTS:
        print(f"\n== {PARTS[name]}", flush=True)
        load, began = os.getloadavg()[0], time.monotonic()
        lines = show(importlib.import_module(f"benchmarks.{name}").run())
        took = time.monotonic() - began
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {load:.2f}, took {took:.0f} s."
        show([when])
        if asked.write:
            write(name, [f"{machine()}; {when}", "", *lines])


def write(name: str, lines: list[str]) -> None:
    """Put one section into RESULTS.md, in the place of what it held."""
    old = RESULTS.read_text() if RESULTS.is_file() else ""
    found = re.findall(r"^<!-- (\w+) -->\n(.*?)(?=^<!-- |\Z)", old, re.MULTILINE | re.DOTALL)
    sections = dict(found)
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    sections[name] = f"## {PARTS[name]}\n\n{body}\n\n"
    text = "".join(f"<!-- {part} -->\n{sections[part]}" for part in PARTS if part in sections)
    write_atomic(RESULTS, f"{TITLE}\n{text.rstrip()}\n")


if __name__ == "__main__":
    main()
