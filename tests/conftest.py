"""One thread for everything the tests compute: results do not depend on it, and the machine's
cores are not fought over."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import hypothesis
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
