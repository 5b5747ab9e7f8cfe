"""The learned matrix A: who is said to help whom, and the controls."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np

from pgfed.report.figures.specification import (
    BLUE,
    DIVERGING,
    GAP,
    MAX_CLIENTS,
    VERMILLION,
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
)
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group
from pgfed.results.formats import correlation, percent
from pgfed.results.statistics import Correlation, Floats, Helpfulness


def matrix(group: Group) -> Figure | None:
    """The learned matrix, its columns and rows against the clients' sizes, and the controls."""
    views: list[str] = []
    specs: list[list[dict[str, Any]]] = [[] for _ in range(5)]
    caption = ""
    n = group.clients.n_train
    for method in group.methods:
        for run in method.runs.values():
            found = group.helpfulness(method, run)
            if found is None or run.alpha is None:
                continue
            caption = caption or _what_a_says(run.alpha.start, method.run_label(run), found)
            views.append(method.run_label(run))
            specs[0].append(_heat(group, run.alpha))
            scatters = (
                (found.column, found.column_size, "mean change of column j", "j"),
                (found.row, found.row_size, "mean change of row i", "i"),
                (found.column_per_step, found.column_per_step_size, "column j, per step", "j"),
                (found.row_per_step, found.row_per_step_size, "row i, per step", "i"),
            )
            for at, (values, fit, title, index) in enumerate(scatters, start=1):
                specs[at].append(
                    _scatter(group, values, fit, title, f"training samples of {index}")
                )
    if not views:
        return None
    titles = (
        "Change of the matrix A: a row per client whose objective it is, a column per client "
        "whose risk is weighed",
        "Mean change of A's columns against the client's training samples",
        "Mean change of A's rows against the client's training samples",
        "Control: mean change of A's columns per step of alpha",
        "Control: mean change of A's rows per step of alpha",
    )
    panels = [Panel(titles[0], specs[0], height=min(720, 200 + 14 * max(20, min(len(n), 40))))]
    panels += [
        Panel(t, s, wide=False, height=300) for t, s in zip(titles[1:], specs[1:], strict=True)
    ]
    return Figure("matrix", "", caption, views, panels, "Run")


def _what_a_says(start: float, run: str, found: Helpfulness) -> str:
    return (
        f"A starts at 1/M = {start:.3g} everywhere. In {run}, {percent(found.increased)} of its "
        f"entries rose, {percent(found.at_zero)} are clamped at zero, {percent(found.never_met)} "
        "belong to pairs that never met (blank). The paper reports that the column means rise and "
        f"the row means fall with a client's size; here r is {correlation(found.column_size)} and "
        f"{correlation(found.row_size)}, per step of alpha "
        f"{correlation(found.column_per_step_size)} and {correlation(found.row_per_step_size)}. "
        "Counted per step, it no longer matters that larger clients take more of them."
    )


def _heat(group: Group, pairs: stats.Pairs) -> dict[str, Any]:
    n = group.clients.n_train
    order = np.argsort(-n, kind="stable")
    size = -(-len(n) // MAX_CLIENTS)
    change = pairs.blocks(order, size)
    if size == 1:
        names = [plain(group.clients.names[i]) for i in order]
        met = np.zeros((len(n), len(n)), dtype=np.int64)
        met[pairs.row, pairs.column] = pairs.meetings
        met = met[np.ix_(order, order)]
        z = [
            [round_to(v, 5) if m else None for v, m in zip(row, seen, strict=True)]
            for row, seen in zip(change, met, strict=True)
        ]
        extra: Trace = {
            "text": [[f"{m} ×" if m else "" for m in row] for row in met.tolist()],
            "hovertemplate": "client %{y} weighs client %{x}: %{z:+.4f} (met %{text})"
            "<extra></extra>",
        }
        what = ""
    else:
        names = [f"{k * size + 1}–{min((k + 1) * size, len(n))}" for k in range(len(change))]
        z = [rounded(row, 3) for row in change]
        extra = {"hovertemplate": "clients %{y} weigh clients %{x}: %{z:+.3g}<extra></extra>"}
        what = f", mean over {size} × {size} clients"
    top = pairs.scale(change)
    heat: Trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": z,
        "colorscale": DIVERGING,
        "zmid": 0,
        "zmin": -top,
        "zmax": top,
        "colorbar": colorbar("change"),
        "hoverongaps": False,
        "meta": {"order": order.tolist(), "axes": ["y", "x"]} if size == 1 else None,
        **extra,
    }
    layout = layout_of(f"client j whose risk is weighed, by size{what}", "client i, by size")
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout["yaxis"] |= {"type": "category", "showgrid": False, "autorange": "reversed"}
    layout["plot_bgcolor"] = GAP
    return spec([heat], layout)


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
