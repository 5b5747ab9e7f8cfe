"""What a method is in a comparison, and the course its training takes."""

from __future__ import annotations

from typing import Literal

Role = Literal["method", "baseline", "bound"]
Course = Literal["rounds", "once", "pooled"]
# What a personal model is made of: the newest global one (as it is, or tuned when asked for), the
# client's own last one, or parts of both.
Source = Literal["global", "own", "both"]


def rounds_of(course: Course, asked: int) -> int:
    """How many rounds a method takes, where so many are asked for."""
    return asked if course == "rounds" else 1
