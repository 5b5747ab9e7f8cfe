"""Registered means tested: every check on every method."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgfed.methods.registry import METHODS, get
from pgfed.testing import CHECKS

# Where a default is meant for long runs of a CNN, a step that learns within a dozen short rounds.
QUICK = {"pfedme": {"personal_lr": 0.05}, "fedbabu": {"ft_lr": 0.05}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_method(check: Callable[..., None], method: str) -> None:
    fields = QUICK.get(method, {}) if check is CHECKS["learns"] else {}
    check(get(method), **fields)
