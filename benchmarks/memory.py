"""Data four times as large as the memory that a run may take: it stays in files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.text import show, table, verdict

LIMIT = 256  # MiB of memory beyond what an empty run takes
TIMES = 4  # the data against that

# In a process of its own: the limit is for good. RLIMIT_DATA counts what is private and writable;
# shared maps of files are not.
CHILD = """
import resource, sys
from pathlib import Path
import numpy as np
import pgfed

limit, times, folder = int(sys.argv[1]) << 20, int(sys.argv[2]), Path(sys.argv[3])
options = dict(
    methods=["fedavg"], rounds=1, model="mlp",
    train={"epochs": 1, "batch_size": 100}, engine={"backend": "serial"},
)
pgfed.run(data={"dataset": "digits", "clients": 4}, **options)  # what is loaded on use is loaded

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key + ":")).split()[1]) << 10

shape = (3, 32, 32)
n = -(-limit * times // int(np.prod(shape)))
x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=(n, *shape))
rng = np.random.default_rng(0)
for start in range(0, n, 4000):
    x[start:start + 4000] = rng.integers(0, 256, x[start:start + 4000].shape, dtype=np.uint8)
x = np.load(folder / "x.npy", mmap_mode="r")
y = np.arange(n) % 10
before = status("VmData")
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
resource.setrlimit(resource.RLIMIT_DATA, (before + limit, hard))
if sys.argv[4] == "copied":
    x = np.array(x)
result = pgfed.run(datasets={"even": (x[::2], y[::2]), "odd": (x[1::2], y[1::2])}, **options)
print(x.nbytes >> 20, status("VmData") - before >> 20, result.summary[0]["rounds"])
"""


def child(limit: int = LIMIT, how: str = "mapped") -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", CHILD, str(limit), str(TIMES), folder, how]
        return subprocess.run(words, capture_output=True, text=True, check=False)


def run(limit: int = LIMIT) -> Iterator[str]:
    done, copied = child(limit), child(limit, "copied")
    if done.returncode:
        raise AssertionError(done.stderr)
    data, grown, _ = map(int, done.stdout.split())
    refused = "refused by the limit" if copied.returncode else "went through"
    rows = [
        ("memory-mapped", f"{data:,}", f"{limit:,}", f"{grown:,}"),
        ("read into memory", f"{data:,}", f"{limit:,}", refused),
    ]
    yield from table(("data", "MiB", "MiB of memory allowed", "MiB taken in the end"), rows)
    yield ""
    yield verdict("data against memory", data / limit, TIMES, unit=" x", at_most=False)


if __name__ == "__main__":
    show(run())
