"""Data larger than the memory that a run may take."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.mark.nightly
def test_four_times_the_memory_goes_through_mapped_and_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    memory = importlib.import_module("benchmarks.memory")
    mapped, copied = memory.child(), memory.child(how="copied")
    assert mapped.returncode == 0, mapped.stderr
    data, taken, rounds = map(int, mapped.stdout.split())
    assert data >= memory.TIMES * memory.LIMIT
    assert taken < memory.LIMIT
    assert rounds == 1
    assert "MemoryError" in copied.stderr
