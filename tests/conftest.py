"""One thread for everything the tests compute: results do not depend on it, and the machine's
cores are not fought over."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

# A shell's background job has Ctrl+C ignored, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
