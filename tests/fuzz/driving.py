"""Runs cases and judges how they end: in success, or in one line of the project's own."""

from __future__ import annotations

import random
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from pgfed.engine.storage.durable import DamagedFile
from pgfed.errors import UserError

T = TypeVar("T")

SECONDS = 20  # of one case; nearly all take milliseconds
MEMORY = 768 << 20  # bytes that one case may add to the process
LINE = 2_000  # characters of a message; a path may be long

# kind of input -> cases in the default suite, and in the nightly one.
CASES = {
    "experiment": (150, 2_600),
    "data": (150, 2_600),
    "models": (100, 1_800),
    "checkpoints": (100, 1_800),
    "messages": (150, 2_600),
}


class Hang(BaseException):
    """A case took too long. No `except Exception` catches it."""


def share(kind: str, part: float) -> pytest.MarkDecorator:
    """Parametrises a test with a part of the cases of a kind: by default few, nightly many."""
    default, nightly = (max(1, round(part * n)) for n in CASES[kind])
    return pytest.mark.parametrize(
        "cases",
        [pytest.param(default), pytest.param(nightly, marks=pytest.mark.nightly)],
    )


@contextmanager
def bounded() -> Iterator[None]:
    """Within the time and the memory of one case."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {SECONDS} seconds")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def attempt(read: Callable[[], T], *refusals: type[Exception]) -> tuple[T, None] | tuple[None, str]:
    """What was read, or the one line of its refusal; anything else fails the test."""
    try:
        with bounded():
            return read(), None
    except (UserError, DamagedFile) as refusal:
        return None, one_line(str(refusal))
    except refusals as refusal:  # not for users
        return None, str(refusal)


def one_line(text: str) -> str:
    """Check a message that a user will see, or that a history will hold."""
    assert text, "an empty message"
    assert text.isprintable(), f"not one printable line: {text[:300]!r}"
    assert len(text) <= LINE, f"a line of {len(text)} characters: {text[:300]!r}..."
    return text


def drive(kind: str, cases: int, one: Callable[[random.Random], str | None]) -> Counter[str]:
    """Run cases 0, 1, ... of a kind. ``one`` says how its case ended, or None if it made none."""
    ends: Counter[str] = Counter()
    for number in range(cases):
        rng = random.Random(f"{kind} {number}")
        try:
            ends[next(end for _ in range(1_000) if (end := one(rng)))] += 1
        except BaseException as error:
            error.add_note(f"fuzz: {kind}, case {number} (random.Random('{kind} {number}'))")
            raise
    assert ends["refused"], ends
    return ends


def explore(cases: int, strategy: SearchStrategy[T], one: Callable[[T], object]) -> None:
    """Run cases that hypothesis draws, always the same ones."""
    rule = settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    def in_bounds(case: T) -> None:
        with bounded():
            one(case)

    rule(given(strategy)(in_bounds))()
