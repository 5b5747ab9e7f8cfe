"""How the score grows: over the rounds, over the bytes sent, and beside the control."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pgfed.model.metrics import Metric
from pgfed.report import roles
from pgfed.report.figures.specification import (
    MANY,
    Figure,
    Panel,
    Style,
    Trace,
    hover,
    layout_of,
    plain,
    rounded,
    shown,
    spec,
)
from pgfed.results.comparison import Curve, Group, Method
from pgfed.results.formats import axis, gain_axis, points, score, sentence


def curves(group: Group, style: Style, running: Sequence[Method] = ()) -> Figure | None:
    """The mean score; a panel per method where they are many.

    ``running``: methods that have not finished, of which only the rounds so far can be shown.
    """
    methods = [*_worst_first(group), *running]
    if not any(method.mean_curve.rounds for method in methods):
        return None
    reference = _reference(group)
    specs = {
        "against rounds": _against_rounds(methods, group.metric, style),
        "against bytes sent": _against_bytes(methods, group.metric, style),
    }
    if reference is not None:
        name = f"difference from {reference.label}"
        specs[name] = _against_reference(reference, methods, group.metric, style)
    labels = [method.label for method in reversed(methods)]
    first, *others = labels
    title = f"{sentence(group.metric.title)} of each method over the rounds, or over the bytes sent"
    if len(methods) <= MANY:
        panels, legend = [Panel(title, list(specs.values()), height=420)], labels
    else:
        panels = [Panel(f"{title}: {first}", list(specs.values()), False, 190, first)]
        panels += [Panel(f"{title}: {label}", [], False, 190, label) for label in others]
        legend = []
    return Figure("curves", "", _caption(group, methods), list(specs), panels, legend=legend)


def _worst_first(group: Group) -> list[Method]:
    """The leader is drawn last, on top of all others."""
    rest = [method for method in group.methods if method not in group.ranked]
    return [*rest, *reversed(group.ranked)]


def _reference(group: Group) -> Method | None:
    """The control that most methods have; without any, the baseline."""
    if len(group.methods) < 2:
        return None
    for label, _ in Counter(roles.controls(group).values()).most_common(1):
        return next(method for method in group.methods if method.label == label)
    return next((method for method in group.methods if roles.is_baseline(method)), None)


# -- the three views ---------------------------------------------------------------------------


def _against_rounds(methods: Sequence[Method], metric: Metric, style: Style) -> dict[str, Any]:
    last = max(method.mean_curve.rounds[-1] for method in methods if method.mean_curve.rounds)
    traces: list[Trace] = []
    for method in methods:
        if len(method.mean_curve.rounds) == 1 < last:
            traces.append(_level(method, [1, last], style, metric))
            continue
        traces += [trace | {"x": curve.rounds} for curve, trace in _lines(method, metric, style)]
    layout = layout_of("round", axis(metric))
    if last <= 12:
        layout["xaxis"]["dtick"] = 1
    return spec(_thin_first(traces), layout, ends=True)


def _against_bytes(methods: Sequence[Method], metric: Metric, style: Style) -> dict[str, Any]:
    most = max(method.sent() for method in methods if method.mean_curve.rounds)
    traces: list[Trace] = []
    for method in methods:
        if method.sent() == 0:
            traces.append(_level(method, [0, most], style, metric))
            continue
        traces += [
            trace | {"x": rounded(curve.sent, 4)} for curve, trace in _lines(method, metric, style)
        ]
    layout = layout_of("bytes sent so far, both directions", axis(metric))
    layout["xaxis"] |= {"tickformat": ".3~s", "ticksuffix": "B"}
    return spec(_thin_first(traces), layout, ends=True)


def _against_reference(
    reference: Method, methods: Sequence[Method], metric: Metric, style: Style
) -> dict[str, Any]:
    """Methods that lie on one another are told apart here, if anywhere."""
    base = dict(zip(reference.mean_curve.rounds, reference.mean_curve.score, strict=True))
    traces = []
    for method in methods:
        curve = method.mean_curve
        at = [k for k, t in enumerate(curve.rounds) if t in base]
        if len(at) < 2:
            continue
        better = [metric.sign * (curve.score[k] - base[curve.rounds[k]]) for k in at]
        line = _line(method, style)
        line |= {"x": [curve.rounds[k] for k in at], "y": shown(better, metric)}
        line["hovertemplate"] = (
            f"{plain(method.label)}, round %{{x}}: {hover(metric, '+')}{points(metric)}"
            f" against {plain(reference.label)}<extra></extra>"
        )
        traces.append(line)
    title = gain_axis(metric).replace("gain", "difference")
    layout = layout_of("round", f"{title} from {plain(reference.label)}")
    layout["yaxis"]["zeroline"] = True
    return spec(traces, layout, ends=True)


# -- lines -------------------------------------------------------------------------------------


def _lines(method: Method, metric: Metric, style: Style) -> Iterator[tuple[Curve, Trace]]:
    """The mean over the seeds, thick and with words; each single seed, thin."""
    if len(method.runs) > 1:
        for curve in map(method.curve, method.seeds):
            thin = _line(method, style) | {"y": shown(curve.score, metric), "opacity": 0.35}
            thin["line"] = {**thin["line"], "width": 1}
            yield curve, thin | {"hoverinfo": "skip"}
    curve = method.mean_curve
    words = f"{plain(method.label)}<br>%{{x}}: {hover(metric)}<extra></extra>"
    yield curve, _line(method, style) | {"y": shown(curve.score, metric), "hovertemplate": words}


def _line(method: Method, style: Style) -> Trace:
    colour, dash = style[method.label]
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": method.label,
        "line": {"color": colour, "dash": dash, "width": 2.5},
    }


def _level(method: Method, ends: Sequence[float], style: Style, metric: Metric) -> Trace:
    """Whoever has one round, or sends nothing, has no line but a level to compare with."""
    level = method.mean_curve.score[-1] if method.mean_curve.score else math.nan
    line = _line(method, style)
    line["line"] = {**line["line"], "dash": "dot", "width": 2}
    words = f"{plain(method.label)}, at the end: {hover(metric)}<extra></extra>"
    return line | {"x": list(ends), "y": shown([level, level], metric), "hovertemplate": words}


def _thin_first(traces: Sequence[Trace]) -> list[Trace]:
    """Single seeds below all means."""
    return sorted(traces, key=lambda trace: trace["line"]["width"] > 1)


def _caption(group: Group, methods: Sequence[Method]) -> str:
    caption = f"{sentence(group.metric.title)}, mean over all clients of each client's own model."
    if any(len(method.runs) > 1 for method in group.methods):
        caption += " Thick: mean over seeds; thin: single seeds."
    if len(methods) > MANY:
        caption += " In each panel one method, the others grey; the best comes first."
    if not group.ranked:
        return caption
    leader = group.ranked[0]
    last = leader.mean_curve
    if last.rounds:
        caption += (
            f" Best: {leader.label}, which ends at {score(last.score[-1], group.metric)} in round "
            f"{last.rounds[-1]}."
        )
    return caption
