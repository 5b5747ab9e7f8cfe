"""Random numbers for privacy: 64-bit words, from which draws and noise are made in one way.

In a simulation the words follow from a key, so that a run can be repeated. At a site they are the
operating system's: the server knows the experiment's seed, and whoever knows the draws or the
noise can undo them. numpy's generators are not made to withstand somebody who looks for the next
number, and are not used here.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Source(Protocol):
    """Where 64-bit words come from."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """The next n."""


class Secret:
    """The operating system's: nobody can know them, and no run repeats them."""

    def words(self, n: int) -> NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * n), dtype="<u8")


class Keyed:
    """SHAKE-128 of a key and a count of calls: the same key gives the same words."""

    def __init__(self, *key: object) -> None:
        self._key, self._calls = repr(key), 0

    def words(self, n: int) -> NDArray[np.uint64]:
        self._calls += 1
        stream = hashlib.shake_128(f"{self._key} {self._calls}".encode())
        return np.frombuffer(stream.digest(8 * n), dtype="<u8")


def uniforms(source: Source, n: int) -> Floats:
    """In (0, 1), of 53 bits: neither end is ever reached."""
    found: Floats = ((source.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return found


def normals(source: Source, n: int) -> Floats:
    """Standard normal, by Box and Muller in double precision.

    What is added in double precision and then rounded to single hides the gaps between the
    numbers that floating point can make (Mironov, CCS 2012).
    """
    half = (n + 1) // 2
    u = uniforms(source, 2 * half)
    radius, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:n]


def drawn(source: Source, n: int, q: float) -> NDArray[np.int64]:
    """Which of n units are drawn, each with probability q and by itself."""
    return np.flatnonzero(uniforms(source, n) < q)
