"""Registered means tested: every check on every method (`test_conformance_private.py`: those of
privacy)."""

from __future__ import annotations

import pytest

from pgfed.methods.registry import METHODS, get
from pgfed.testing import CHECKS

# Where a default is meant for long runs of a CNN, a step that learns within a dozen short rounds.
QUICK = {"pfedme": {"personal_lr": 0.05}, "fedbabu": {"ft_lr": 0.05}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("check", [name for name in CHECKS if not name.startswith("private")])
def test_method(check: str, method: str) -> None:
    fields = QUICK.get(method, {}) if check == "learns" else {}
    CHECKS[check](get(method), **fields)
