"""How accuracy grows, over the rounds and over the bytes sent."""

from __future__ import annotations

import math

import numpy as np

from pgfed.report.figures.specification import (
    Figure,
    Panel,
    Style,
    Trace,
    layout_of,
    percents,
    plain,
    round_to,
    rounded,
    solid_first,
    spec,
)
from pgfed.results.comparison import Curve, Group, Method
from pgfed.results.formats import percent


def curves(group: Group, style: Style) -> Figure:
    """Accuracy against rounds and against bytes."""
    by_rounds: list[Trace] = []
    by_bytes: list[Trace] = []
    most = max(method.sent() for method in group.methods)
    for method in group.methods:
        seeds = [method.curve(seed) for seed in method.seeds] if len(method.runs) > 1 else []
        for curve in [*seeds, method.mean_curve]:
            trace = _trace(method, curve, style)
            by_rounds.append(trace | {"x": curve.rounds})
            if method.sent() > 0:
                by_bytes.append(trace | {"x": rounded(curve.sent, 4)})
        if method.sent() == 0:
            by_bytes.append(_level(method, most, style))
    rounds = layout_of("round", "accuracy in %")
    if max(len(method.mean_curve.rounds) for method in group.methods) <= 12:
        rounds["xaxis"]["dtick"] = 1
    sent = layout_of("bytes sent so far, both directions", "accuracy in %")
    sent["xaxis"] |= {"tickformat": ".3~s", "ticksuffix": "B"}
    panel = Panel(
        "Accuracy of each method over the rounds, or over the bytes sent",
        [spec(solid_first(by_rounds), rounds), spec(solid_first(by_bytes), sent)],
        height=420,
    )
    return Figure(
        "curves",
        "",
        _caption(group),
        ["against rounds", "against bytes sent"],
        [panel],
        legend=[method.label for method in group.methods],
    )


def _trace(method: Method, curve: Curve, style: Style) -> Trace:
    """The mean over the seeds, thick and with words; a single seed, thin."""
    colour, dash = style[method.label]
    thin = curve is not method.mean_curve
    trace: Trace = {
        "type": "scatter",
        "mode": "lines",
        "meta": method.label,
        "line": {"color": colour, "dash": dash, "width": 1 if thin else 2.5},
        "opacity": 0.35 if thin else 1,
        "y": percents(curve.accuracy),
    }
    if thin:
        return trace | {"hoverinfo": "skip"}
    name = plain(method.label)
    return trace | {"hovertemplate": f"{name}<br>%{{x}}: %{{y:.1f}} %<extra></extra>"}


def _level(method: Method, most: float, style: Style) -> Trace:
    """Whoever sends nothing has no place on the axis of bytes but as a level to compare with."""
    level = 100 * float(np.mean(method.accuracy("last10") or [math.nan]))
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": method.label,
        "line": {"color": style[method.label][0], "dash": "dot", "width": 2},
        "x": [0, most],
        "y": [round_to(level, 2)] * 2,
        "hovertemplate": f"{plain(method.label)}, last 10 rounds: %{{y:.1f}} %<extra></extra>",
    }


def _caption(group: Group) -> str:
    leader = group.ranked[0] if group.ranked else group.methods[0]
    last = leader.mean_curve
    caption = "Mean accuracy over all clients of each client's own model."
    if any(len(method.runs) > 1 for method in group.methods):
        caption += " Thick: mean over seeds; thin: single seeds."
    if last.rounds:
        caption += (
            f" Highest over the last ten rounds: {leader.label}, which ends at "
            f"{percent(last.accuracy[-1])} in round {last.rounds[-1]}."
        )
    return caption
