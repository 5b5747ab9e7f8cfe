"""The methods that take any model: most tests' models have no layer that normalises."""

from __future__ import annotations

from pgfed.methods.registry import METHODS

ANY_MODEL = [name for name in METHODS if name != "fedbn"]
