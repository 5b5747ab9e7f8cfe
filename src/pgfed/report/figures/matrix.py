"""The learned matrix A: who weighed whom, and the controls."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np

from pgfed.report.figures.colours import BLUE, DIVERGING, VERMILLION
from pgfed.report.figures.ordering import CLUSTERED, by_likeness
from pgfed.report.figures.specification import (
    MAX_CLIENTS,
    Figure,
    Panel,
    Trace,
    colorbar,
    layout_of,
    plain,
    round_to,
    rounded,
    spec,
    thinned,
    ticks,
)
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group
from pgfed.results.formats import correlation, percent
from pgfed.results.statistics import Correlation, Floats, Helpfulness, Ints

HEAT = (
    "Change of the matrix A: a row per client whose objective it is, a column per client "
    "whose risk is weighed"
)
SCATTERS = (
    "Mean change of A's columns against the client's training samples",
    "Mean change of A's rows against the client's training samples",
    "Control: mean change of A's columns per step of alpha",
    "Control: mean change of A's rows per step of alpha",
)


def matrix(group: Group) -> Figure | None:
    """The learned matrix, its columns and rows against the clients' sizes, and the controls."""
    runs = [
        (method.run_label(run), run.alpha, found)
        for method in group.methods
        for run in method.runs.values()
        if run.alpha is not None and (found := group.helpfulness(method, run)) is not None
    ]
    if not runs:
        return None
    height = min(720, 200 + 14 * max(20, min(len(group.clients), 40)))
    panels = [Panel(HEAT, [_heat(group, alpha) for _, alpha, _ in runs], height=height)]
    each = zip(*(_scatters(group, found) for _, _, found in runs), strict=True)
    panels += [
        Panel(title, list(specs), wide=False, height=300)
        for title, specs in zip(SCATTERS, each, strict=True)
    ]
    label, alpha, found = runs[0]
    caption = _what_a_says(alpha.start, label, found)
    return Figure("matrix", "", caption, [label for label, _, _ in runs], panels, "Run")


def _scatters(group: Group, found: Helpfulness) -> list[dict[str, Any]]:
    """In the order of SCATTERS."""
    of_j, of_i = "training samples of j", "training samples of i"
    return [
        _scatter(group, found.column, found.column_size, "mean change of column j", of_j),
        _scatter(group, found.row, found.row_size, "mean change of row i", of_i),
        _scatter(
            group, found.column_per_step, found.column_per_step_size, "column j, per step", of_j
        ),
        _scatter(group, found.row_per_step, found.row_per_step_size, "row i, per step", of_i),
    ]


def _what_a_says(start: float, run: str, found: Helpfulness) -> str:
    return (
        f"A starts at 1/M = {start:.3g} everywhere. In {run}, {percent(found.increased)} of its "
        f"entries rose (blue), {percent(found.at_zero)} are clamped at zero, "
        f"{percent(found.never_met)} belong to pairs that never met (grey). The paper reports that "
        "the column means rise and the row means fall with a client's size; here r is "
        f"{correlation(found.column_size)} and {correlation(found.row_size)}, per step of alpha "
        f"{correlation(found.column_per_step_size)} and {correlation(found.row_per_step_size)}. "
        "Counted per step, it no longer matters that larger clients take more of them."
    )


def order_of(n_train: Ints, pairs: stats.Pairs) -> tuple[Ints, str]:
    """Clients by size; where they can be shown but not named, those that weigh alike together."""
    if CLUSTERED < len(n_train) <= MAX_CLIENTS:
        change = pairs.blocks(np.arange(len(n_train)), 1)
        change[~np.isfinite(change)] = 0.0
        return by_likeness(np.hstack([change, change.T])), "alike together"
    return np.argsort(-n_train, kind="stable"), "by size"


def _heat(group: Group, pairs: stats.Pairs) -> dict[str, Any]:
    """A row per client whose objective it is; where clients are many, blocks of them."""
    n = group.clients.n_train
    order, by = order_of(n, pairs)
    size = -(-len(n) // MAX_CLIENTS)
    change = pairs.blocks(order, size)
    top = pairs.scale(change)
    own = (
        _one_by_one(group, pairs, change, order) if size == 1 else _in_blocks(change, len(n), size)
    )
    heat: Trace = {
        "type": "heatmap",
        "colorscale": DIVERGING,
        "zmid": 0,
        "zmin": -top,
        "zmax": top,
        "colorbar": colorbar("change"),
        "hoverongaps": False,
        **own,
    }
    what = "" if size == 1 else f", mean over {size} × {size} clients"
    layout = layout_of(f"client j, weighed, {by}{what}", f"client i, {by}")
    named = {"type": "category", "showgrid": False, **ticks(len(n) <= CLUSTERED)}
    layout["xaxis"] |= named
    layout["yaxis"] |= named | {"autorange": "reversed"}
    return spec([heat], layout, heat="met")


def _one_by_one(group: Group, pairs: stats.Pairs, change: Floats, order: Ints) -> Trace:
    """Blank where two clients never met."""
    names = [plain(group.clients.names[i]) for i in order]
    met = np.zeros((len(order), len(order)), dtype=np.int64)
    met[pairs.row, pairs.column] = pairs.meetings
    met = met[np.ix_(order, order)]
    return {
        "x": names,
        "y": names,
        "z": [
            [round_to(v, 5) if m else None for v, m in zip(row, seen, strict=True)]
            for row, seen in zip(change, met, strict=True)
        ],
        "text": [[f"{m} ×" if m else "" for m in row] for row in met.tolist()],
        "hovertemplate": "client %{y} weighs client %{x}: %{z:+.4f} (met %{text})<extra></extra>",
        "meta": {"order": order.tolist(), "axes": ["y", "x"]},
    }


def _in_blocks(change: Floats, clients: int, size: int) -> Trace:
    names = [f"{k * size + 1}–{min((k + 1) * size, clients)}" for k in range(len(change))]
    return {
        "x": names,
        "y": names,
        "z": [rounded(row, 3) for row in change],
        "hovertemplate": "clients %{y} weigh clients %{x}: %{z:+.3g}<extra></extra>",
        "meta": None,
    }


def _scatter(
    group: Group, values: Floats, fit: Correlation, y_title: str, x_title: str
) -> dict[str, Any]:
    n = group.clients.n_train
    at = thinned(np.flatnonzero(~np.isnan(values)))
    names = [plain(group.clients.names[i]) for i in at]
    points: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": n[at].tolist(),
        "y": rounded(values[at], 4),
        "customdata": [[int(i), name] for i, name in zip(at, names, strict=True)],
        "marker": {"color": BLUE, "size": 8, "opacity": 0.8},
        "hovertemplate": "client %{customdata[1]} (%{x:,} samples): %{y:+.3g}<extra></extra>",
    }
    traces = [points]
    layout = layout_of(x_title, y_title)
    layout["yaxis"] |= {"zeroline": True, "exponentformat": "e"}
    if not math.isnan(fit.r):
        ends = [int(n[at].min()), int(n[at].max())]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": ends,
                "y": rounded([fit.intercept + fit.slope * x for x in ends], 4),
                "line": {"color": VERMILLION, "width": 2},
                "hoverinfo": "skip",
            }
        )
        layout["annotations"] = [
            {
                "text": f"r = {html.escape(correlation(fit))}",
                "xref": "paper",
                "yref": "paper",
                "x": 1,
                "y": 1.02,
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
            }
        ]
        layout["margin"]["t"] = 28
    return spec(traces, layout)
