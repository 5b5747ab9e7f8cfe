from __future__ import annotations

from fuzz.driving import CASES


def test_there_are_enough_cases():
    default, nightly = (sum(numbers) for numbers in zip(*CASES.values(), strict=True))
    assert default >= 500
    assert nightly >= 10_000
