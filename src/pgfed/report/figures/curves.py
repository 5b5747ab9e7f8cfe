"""How the score grows, over the rounds and over the bytes sent."""

from __future__ import annotations

import math

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.report.figures.specification import (
    Figure,
    Panel,
    Style,
    Trace,
    hover,
    layout_of,
    plain,
    rounded,
    shown,
    solid_first,
    spec,
)
from pgfed.results.comparison import Curve, Group, Method
from pgfed.results.formats import axis, score, sentence


def curves(group: Group, style: Style) -> Figure:
    """The mean score against rounds and against bytes."""
    by_rounds: list[Trace] = []
    by_bytes: list[Trace] = []
    most = max(method.sent() for method in group.methods)
    for method in group.methods:
        seeds = [method.curve(seed) for seed in method.seeds] if len(method.runs) > 1 else []
        for curve in [*seeds, method.mean_curve]:
            trace = _trace(method, curve, style, group.metric)
            by_rounds.append(trace | {"x": curve.rounds})
            if method.sent() > 0:
                by_bytes.append(trace | {"x": rounded(curve.sent, 4)})
        if method.sent() == 0:
            by_bytes.append(_level(method, most, style, group.metric))
    rounds = layout_of("round", axis(group.metric))
    if max(len(method.mean_curve.rounds) for method in group.methods) <= 12:
        rounds["xaxis"]["dtick"] = 1
    sent = layout_of("bytes sent so far, both directions", axis(group.metric))
    sent["xaxis"] |= {"tickformat": ".3~s", "ticksuffix": "B"}
    panel = Panel(
        f"{sentence(group.metric.title)} of each method over the rounds, or over the bytes sent",
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


def _trace(method: Method, curve: Curve, style: Style, metric: Metric) -> Trace:
    """The mean over the seeds, thick and with words; a single seed, thin."""
    colour, dash = style[method.label]
    thin = curve is not method.mean_curve
    trace: Trace = {
        "type": "scatter",
        "mode": "lines",
        "meta": method.label,
        "line": {"color": colour, "dash": dash, "width": 1 if thin else 2.5},
        "opacity": 0.35 if thin else 1,
        "y": shown(curve.score, metric),
    }
    if thin:
        return trace | {"hoverinfo": "skip"}
    name = plain(method.label)
    return trace | {"hovertemplate": f"{name}<br>%{{x}}: {hover(metric)}<extra></extra>"}


def _level(method: Method, most: float, style: Style, metric: Metric) -> Trace:
    """Whoever sends nothing has no place on the axis of bytes but as a level to compare with."""
    level = float(np.mean(method.means("last10") or [math.nan]))
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": method.label,
        "line": {"color": style[method.label][0], "dash": "dot", "width": 2},
        "x": [0, most],
        "y": shown([level, level], metric),
        "hovertemplate": f"{plain(method.label)}, last 10 rounds: {hover(metric)}<extra></extra>",
    }


def _caption(group: Group) -> str:
    leader = group.ranked[0] if group.ranked else group.methods[0]
    last = leader.mean_curve
    caption = f"{sentence(group.metric.title)}, mean over all clients of each client's own model."
    if any(len(method.runs) > 1 for method in group.methods):
        caption += " Thick: mean over seeds; thin: single seeds."
    if last.rounds:
        caption += (
            f" Best over the last ten rounds: {leader.label}, which ends at "
            f"{score(last.score[-1], group.metric)} in round {last.rounds[-1]}."
        )
    return caption
