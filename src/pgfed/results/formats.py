"""Numbers as people read them."""

from __future__ import annotations


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def points(share: float | None) -> str:
    """A difference of shares, in percentage points, with its sign."""
    return "–" if share is None else f"{100 * share:+.1f}"


def size(count: float) -> str:
    """Bytes, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def duration(seconds: float) -> str:
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 3570:
        return f"{seconds / 60:.0f} min"
    if seconds < 86_400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
