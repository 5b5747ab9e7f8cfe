"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pgfed.model.metrics import ACCURACY, Metric
from pgfed.results.statistics import Comparison, Correlation

NONE = "–"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"


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


def sentence(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def settings(found: Mapping[str, Any]) -> str:
    """Keys with their values, as somebody would set them."""
    return ", ".join(
        f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"
        for key, value in found.items()
    )


# -- scores and their differences -----------------------------------------------------------------


def factor(metric: Metric) -> float:
    """Shares are shown in percent."""
    return 100.0 if metric.unit == "share" else 1.0


def score(value: float | None, metric: Metric) -> str:
    """A score with its unit."""
    text = bare(value, metric)
    return f"{text} %" if metric.unit == "share" and text != NONE else text


def bare(value: float | None, metric: Metric) -> str:
    """A score where its unit is known."""
    if value is None or math.isnan(value):
        return NONE
    match metric.unit:
        case "share":
            return f"{100 * value:.1f}"
        case "number":
            return f"{value:.3f}".replace("-", "−")
        case "target":
            return _significant(value, 4).replace("-", "−")


def gain(value: float | None, metric: Metric, digits: int = 1) -> str:
    """A gain with its sign, a real minus: in percentage points, or in the metric's unit.

    ``digits``: of points.
    """
    if value is None or math.isnan(value):
        return NONE
    match metric.unit:
        case "share":
            text = f"{100 * value:+.{digits}f}"
        case "number":
            text = f"{value:+.{digits + 2}f}"
        case "target":
            text = _significant(value, 3, sign="+")
    zero = not any(sign in "123456789" for sign in text)
    return text.replace("-", "+" if zero else "−")  # no negative zero


def _significant(value: float, digits: int, sign: str = "") -> str:
    """So many digits, but no powers of ten for what people count: 19,560 and not 1.956e+04."""
    rounded = float(f"{value:.{digits}g}")
    if 10**digits <= abs(rounded) < 1e12:
        return f"{rounded:{sign},.0f}"
    return f"{value:{sign},.{digits}g}"


def share_gain(value: float | None) -> str:
    """A gain of a share, in percentage points."""
    return gain(value, ACCURACY)


def points(metric: Metric) -> str:
    """What a gain is counted in, after the number."""
    return " points" if metric.unit == "share" else ""


def axis(metric: Metric) -> str:
    return f"{metric.title} in %" if metric.unit == "share" else metric.title


def gain_axis(metric: Metric) -> str:
    return "gain in points" if metric.unit == "share" else f"gain in {metric.title}"


def between(found: Comparison, metric: Metric) -> str:
    """Its 95 % interval in words."""
    digits = _digits(found, metric)
    return f"95 % interval {gain(found.low, metric, digits)} to {gain(found.high, metric, digits)}"


def difference(found: Comparison, metric: Metric) -> str:
    return gain(found.mean, metric, _digits(found, metric))


def bracketed(found: Comparison, metric: Metric) -> str:
    """A difference with its interval, for tables."""
    digits = _digits(found, metric)
    mean, low, high = (gain(v, metric, digits) for v in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]"


def _digits(found: Comparison, metric: Metric) -> int:
    """Small differences need a second digit to tell their interval from zero."""
    return 2 if metric.bounded and abs(found.mean) < 0.0095 else 1


def meaning(found: Comparison, metric: Metric) -> str:
    """Whether the interval leaves out zero, and whether it matters."""
    if found.same:
        return "the same at every client"
    if not found.clear:
        return "no measurable difference"
    word = "better" if found.mean > 0 else "worse"
    if metric.unit == "share" and abs(found.mean) < 0.005:
        return f"{word}, by less than half a point"
    return word


# -- probabilities --------------------------------------------------------------------------------


def probability(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def correlation(found: Correlation) -> str:
    if math.isnan(found.r):
        return NONE
    return f"{found.r:+.2f}".replace("-", "−") + f" ({probability(found.p)})"
