"""Every check of privacy on every method."""

from __future__ import annotations

import pytest

from pgfed.methods.registry import METHODS, get
from pgfed.testing import CHECKS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("check", [name for name in CHECKS if name.startswith("private")])
def test_method(check: str, method: str) -> None:
    CHECKS[check](get(method))
