"""The learned matrix A, one figure per method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pgfed.report.figures.colours import BLUE, DIVERGING, NEVER_MET, VERMILLION
from pgfed.report.figures.matrix import order_of
from pgfed.report.figures.specification import MAX_CLIENTS
from pgfed.report.images.drawing import blank, heat_map
from pgfed.results.comparison import Group
from pgfed.results.formats import correlation
from pgfed.results.statistics import Correlation, Floats, Pairs


def matrices(group: Group) -> dict[str, Any]:
    """One figure per method with a matrix, of its first seed."""
    found = {}
    for method in group.methods:
        run = method.runs[method.seeds[0]]
        helps = group.helpfulness(method, run)
        if helps is None or run.alpha is None:
            continue
        n = group.clients.n_train
        figure = blank(7.4, 3.9)
        grid = figure.add_gridspec(2, 4)
        heat = figure.add_subplot(grid[:, :2])
        _heat(figure, heat, group, run.alpha)
        panels: list[tuple[Floats, Correlation, str]] = [
            (helps.column, helps.column_size, "column mean"),
            (helps.row, helps.row_size, "row mean"),
            (helps.column_per_step, helps.column_per_step_size, "column, per step"),
            (helps.row_per_step, helps.row_per_step_size, "row, per step"),
        ]
        for k, (values, fit, title) in enumerate(panels):
            axes = figure.add_subplot(grid[k // 2, 2 + k % 2])
            axes.plot(n, values, ".", color=BLUE)
            if not math.isnan(fit.r):
                ends = np.array([n.min(), n.max()])
                axes.plot(ends, fit.intercept + fit.slope * ends, color=VERMILLION, lw=1.2)
            axes.set_title(f"{title}\nr = {correlation(fit)}", fontsize=7)
            axes.set_xlabel("training samples", fontsize=7)
            axes.tick_params(labelsize=7)
            axes.yaxis.get_offset_text().set_fontsize(7)
            axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in method.label)
        found[f"matrix-{name}"] = figure
    return found


def _heat(figure: Any, axes: Any, group: Group, pairs: Pairs) -> None:
    """The change of A, clients by size; pairs that never met are grey."""
    n = group.clients.n_train
    order, by = order_of(n, pairs)
    size = -(-len(n) // MAX_CLIENTS)
    change: Any = pairs.blocks(order, size)
    top = pairs.scale(change)
    if size == 1:
        met = np.zeros((len(n), len(n)), dtype=bool)
        met[pairs.row, pairs.column] = True
        change = np.ma.masked_where(~met[np.ix_(order, order)], change)
    heat_map(figure, axes, change, DIVERGING, "change of A", limit=top, blank=NEVER_MET)
    axes.set_aspect("equal")
    axes.set(xlabel=f"client j, {by}", ylabel=f"client i, {by}")
    ticks = range(len(n)) if len(n) <= 30 else ()
    names = [group.clients.names[order[k]] for k in ticks]
    axes.set_xticks(ticks, names, rotation=90, fontsize=6)
    axes.set_yticks(ticks, names, fontsize=6)
