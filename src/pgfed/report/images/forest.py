"""Differences with their intervals: between methods, and client by client."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgfed.report.figures.clients import STANDING
from pgfed.report.figures.colours import GREY
from pgfed.report.figures.comparisons import better_than, references
from pgfed.report.figures.specification import Style
from pgfed.report.images.drawing import blank
from pgfed.report.tables.clients import shown_of
from pgfed.results.comparison import Group
from pgfed.results.formats import factor, gain_axis

TALLEST = 24.0  # inches


def of_methods(group: Group, style: Style) -> Any:
    """Every method minus the control, or without one minus the best, the best at the top."""
    if len(group.ranked) < 2:
        return None
    reference = references(group)[0]
    compared = [
        (method, found)
        for method in group.ranked
        if method is not reference and (found := group.compare(method, reference)) is not None
    ]
    if not compared:
        return None
    figure = blank(5.0, 0.9 + 0.26 * len(compared))
    axes = figure.subplots()
    scale = factor(group.metric)
    for row, (method, found) in enumerate(compared):
        low, mean, high = (scale * v for v in (found.low, found.mean, found.high))
        colour = style[method.label][0]
        axes.plot([low, high], [row, row], color=colour, lw=1.6)
        axes.plot([mean], [row], "o", color=colour, ms=5)
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set_yticks(range(len(compared)), [method.label for method, _ in compared])
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(better_than(reference, group.metric))
    return figure


def of_clients(group: Group, _: Style) -> Any:
    """What each client gained, with the interval that its own test samples give."""
    if (shown := shown_of(group)) is None:
        return None
    gain, scale = shown.gain, factor(group.metric)
    order = np.argsort(-gain.per_client, kind="stable")
    order = order[~np.isnan(gain.per_client[order])]
    height = min(TALLEST, 1.1 + 0.17 * len(order))
    figure = blank(5.0, height)
    axes = figure.subplots()
    rows = np.arange(len(order))
    statements = gain.statements
    colours = [STANDING.get(statements[i] or "", GREY) for i in order]
    axes.hlines(rows, scale * gain.low[order], scale * gain.high[order], colors=colours, lw=1.3)
    axes.scatter(scale * gain.per_client[order], rows, c=colours, s=16, zorder=3)
    axes.axvline(0, color=GREY, lw=0.8)
    if 1.1 + 0.17 * len(order) <= TALLEST:
        axes.set_yticks(rows, [group.clients.names[i] for i in order], fontsize=7)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{gain_axis(group.metric)} over {group.over}, with {shown.method.label}")
    told = "Blue clearly gained, orange clearly lost, grey cannot be told"
    told = told if gain.gained or gain.lost or not gain.known else "For no client can it be told"
    told = told if gain.judged else "No verdict: nobody is said to have gained or lost"
    axes.set_title(f"{told}; 95 % intervals, pointwise", fontsize=7)
    return figure
