"""What a result depends on beside the experiment file."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from pgfed.data.federation import Federation

PACKAGES = ("pgfed", "torch", "numpy", "safetensors", "pillow", "scikit-learn")


def environment(federation: Federation, model: dict[str, Any]) -> dict[str, Any]:
    """The content of environment.json; ``model``: what there is to say of it."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "git_commit": _git_commit(),
        "command": shlex.join(sys.argv),
        "data": {
            "name": federation.name,
            "fingerprint": federation.fingerprint,
            "clients": len(federation),
            "samples": len(federation.y),
        },
        "model": model,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _git_commit() -> str | None:
    """The commit of the folder the run was started in; '+' where files differ from it."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
