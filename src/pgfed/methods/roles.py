"""What a method is in a comparison, and the course its training takes."""

from __future__ import annotations

from typing import Literal

Role = Literal["method", "baseline", "bound"]
Course = Literal["rounds", "once", "pooled"]
