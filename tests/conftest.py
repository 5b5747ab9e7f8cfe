"""One thread for everything the tests compute: results do not depend on it, and the machine's
cores are not fought over. Their files are in memory, where syncing them takes no time."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

# The same examples in every run: a release does not turn red by chance.
hypothesis.settings.register_profile(
    "pgfed",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("pgfed")

# A shell's background job has Ctrl+C ignored, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
ROOM = 4 << 30  # bytes; a whole suite leaves less than one GiB


def pytest_configure(config: pytest.Config) -> None:
    """Put the tests' folders into memory: a run syncs hundreds of files, each 15 ms on a disk."""
    if config.option.basetemp or hasattr(config, "workerinput") or not os.access(MEMORY, os.W_OK):
        return
    for old in MEMORY.glob("pgfed-tests-*"):  # what failed is kept until the next time
        if not Path("/proc", old.name.rpartition("-")[2]).exists():
            shutil.rmtree(old, ignore_errors=True)
    if shutil.disk_usage(MEMORY).free > ROOM:
        config.option.basetemp = MEMORY / f"pgfed-tests-{os.getpid()}"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Give the memory back, unless somebody wants to look at what a test left."""
    base = session.config.option.basetemp
    mine = base and not hasattr(session.config, "workerinput") and Path(base).parent == MEMORY
    if mine and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(base, ignore_errors=True)
