"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pgfed.results.statistics import Comparison, Correlation

NONE = "–"


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


def travelling(model: Mapping[str, Any]) -> str:
    """In words what of a model travels and what stays, from environment.json."""
    whole = model["trained"] + model["buffers"]
    by_size: dict[int, list[str]] = {}
    for method, sent in model["travels"].items():
        by_size.setdefault(sent, []).append(method)
    sent = [
        f"{n:,} sent each way ({size(4 * n)}) and {whole - n:,} kept at home by {', '.join(names)}"
        for n, names in sorted(by_size.items(), reverse=True)
    ]
    text = f"{whole:,} numbers: {'; '.join(sent)}"
    if model["frozen"]:
        text += f"; {model['frozen']:,} frozen ({size(model['frozen_bytes'])}), never sent"
    return text


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


# -- differences and probabilities --------------------------------------------------------------


def signed(share: float, digits: int = 1) -> str:
    """A difference of shares in percentage points, with a real minus sign."""
    if math.isnan(share):
        return NONE
    text = f"{100 * share:+.{digits}f}".replace("-", "−")
    return text.replace("−0." + "0" * digits, "+0." + "0" * digits)  # no negative zero


def between(found: Comparison) -> str:
    """Its 95 % interval in words."""
    digits = _digits(found)
    return f"95 % interval {signed(found.low, digits)} to {signed(found.high, digits)}"


def difference(found: Comparison) -> str:
    return signed(found.mean, _digits(found))


def bracketed(found: Comparison) -> str:
    """A difference with its interval, for tables."""
    digits = _digits(found)
    return (
        f"{signed(found.mean, digits)} [{signed(found.low, digits)}, {signed(found.high, digits)}]"
    )


def _digits(found: Comparison) -> int:
    """Small differences need a second digit to tell their interval from zero."""
    return 2 if abs(found.mean) < 0.0095 else 1


def meaning(found: Comparison) -> str:
    """Whether the interval leaves out zero, and whether it matters."""
    if not found.clear:
        return "no measurable difference"
    word = "better" if found.mean > 0 else "worse"
    return f"{word}, by less than half a point" if abs(found.mean) < 0.005 else word


def probability(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def correlation(found: Correlation) -> str:
    if math.isnan(found.r):
        return NONE
    return f"{found.r:+.2f}".replace("-", "−") + f" ({probability(found.p)})"
