"""The interactive figures, as plotly specifications: plain dictionaries, no plotly needed.

A figure has views to choose from, and one or more panels that show the chosen view. A trace that
is about one method carries its label in `meta`, so that the page can hide the method everywhere;
points that are about one client carry its number in `customdata`, so that it can be picked.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pgfed import stats
from pgfed.report import paper
from pgfed.report.group import Group
from pgfed.report.numbers import correlation, signed
from pgfed.stats import Correlation, Floats, Helpfulness, Ints
from pgfed.verdict import CONTROL
from pgfed.words import percent

Trace = dict[str, Any]

# Okabe and Ito's palette, which colour-blind readers can tell apart; grey for black, and no
# yellow, so that every colour shows on white and on black.
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#808080"
PALETTE = (VERMILLION, BLUE, GREY, "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")
# The same in every report. PGFed's relatives often lie on one another: their dashes let each be
# seen through the others.
STYLES = {
    "local": (GREY, "solid"),
    "fedavg": ("#E69F00", "solid"),
    CONTROL: (BLUE, "dash"),
    "pgfed": (VERMILLION, "solid"),
    "pgfed-mo": ("#CC79A7", "dot"),
    "pgfed-ce": ("#009E73", "dashdot"),
}
GAP = "#cfd2d6"  # behind a heat map's blanks; the page has a darker one for the dark
SEQUENTIAL = [[0, "#22559c"], [0.4, "#4f9fc8"], [0.7, "#a5d3a0"], [1, "#ffe14d"]]
DIVERGING = [[0, VERMILLION], [0.5, "#f4f1ea"], [1, BLUE]]

MAX_CLIENTS = 400  # shown one by one; beyond, blocks and quantiles


@dataclass(frozen=True)
class Panel:
    """One plot; a specification per view."""

    alt: str
    specs: list[dict[str, Any]]
    wide: bool = True
    height: int = 380


@dataclass(frozen=True)
class Figure:
    id: str
    title: str  # empty where the section's heading says it
    caption: str  # what there is to see
    views: list[str]
    panels: list[Panel]
    choose: str = "Show"  # what the choice of a view is called
    legend: list[str] = field(default_factory=list)  # methods that can be hidden


def styles(groups: Sequence[Group]) -> dict[str, tuple[str, str]]:
    """label -> colour and dash, the same in every figure and different for every method."""
    labels = dict.fromkeys(m.label for group in groups for m in group.methods)
    free = [(c, d) for d in DASHES for c in PALETTE if (c, d) not in STYLES.values()]
    others = [label for label in labels if label not in STYLES]
    return STYLES | {label: free[k % len(free)] for k, label in enumerate(others)}


def _solid_first(traces: Iterable[Trace]) -> list[Trace]:
    """A dashed line over a solid one leaves both to be seen."""
    return sorted(traces, key=lambda trace: trace["line"]["dash"] != "solid")


# -- learning curves ---------------------------------------------------------------------------


def curves(group: Group, style: dict[str, tuple[str, str]]) -> Figure:
    """Accuracy against rounds and against bytes."""
    by_rounds: list[Trace] = []
    by_bytes: list[Trace] = []
    most = max(method.sent() for method in group.methods)
    for method in group.methods:
        colour, dash = style[method.label]
        seeds = [method.curve(seed) for seed in method.seeds] if len(method.runs) > 1 else []
        for curve in [*seeds, method.mean_curve]:
            thin = curve is not method.mean_curve
            y = _percents(curve.accuracy)
            line = {"color": colour, "dash": dash, "width": 1 if thin else 2.5}
            common: Trace = {
                "type": "scatter",
                "mode": "lines",
                "meta": method.label,
                "line": line,
                "opacity": 0.35 if thin else 1,
                "y": y,
            }
            hover: Trace = {"hoverinfo": "skip"}
            if not thin:
                name = _plain(method.label)
                hover = {"hovertemplate": f"{name}<br>%{{x}}: %{{y:.1f}} %<extra></extra>"}
            by_rounds.append({**common, **hover, "x": curve.rounds})
            if method.sent() > 0:
                by_bytes.append({**common, **hover, "x": _rounded(curve.sent, 4)})
        if method.sent() == 0:
            # Whoever sends nothing has no place on this axis but as a level to compare with.
            level = 100 * float(np.mean(method.accuracy("last10") or [math.nan]))
            by_bytes.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "meta": method.label,
                    "line": {"color": colour, "dash": "dot", "width": 2},
                    "x": [0, most],
                    "y": [_round(level, 2)] * 2,
                    "hovertemplate": f"{_plain(method.label)}, last 10 rounds: %{{y:.1f}} %"
                    "<extra></extra>",
                }
            )
    leader = group.ranked[0] if group.ranked else group.methods[0]
    last = leader.mean_curve
    caption = "Mean accuracy over all clients of each client's own model."
    if any(len(method.runs) > 1 for method in group.methods):
        caption += " Thick: mean over seeds; thin: single seeds."
    if last.rounds:
        caption += (
            f" Highest over the last ten rounds: {leader.label}, at {percent(last.accuracy[-1])} "
            f"in round {last.rounds[-1]}."
        )
    layouts = [
        _layout("round", "accuracy in %"),
        _layout("bytes sent so far, both directions", "accuracy in %"),
    ]
    layouts[1]["xaxis"]["tickformat"] = ".3~s"
    layouts[1]["xaxis"]["ticksuffix"] = "B"
    return Figure(
        "curves",
        "",
        caption,
        ["against rounds", "against bytes sent"],
        [
            Panel(
                "Accuracy of each method over the rounds, or over the bytes sent",
                [
                    _spec(_solid_first(by_rounds), layouts[0]),
                    _spec(_solid_first(by_bytes), layouts[1]),
                ],
                height=420,
            )
        ],
        legend=[method.label for method in group.methods],
    )


# -- methods against each other ----------------------------------------------------------------


def differences(group: Group, style: dict[str, tuple[str, str]]) -> Figure | None:
    """Every method minus a chosen one, with paired intervals."""
    if len(group.ranked) < 2:
        return None
    first = [m for m in group.ranked if m.name == CONTROL]
    references = first + [m for m in group.ranked if m.name != CONTROL]
    specs = []
    for reference in references:
        traces: list[Trace] = []
        for method in reversed(group.ranked):
            found = group.compare(method, reference)
            if method is reference or found is None:
                continue
            low, mean, high = 100 * found.low, 100 * found.mean, 100 * found.high
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "meta": method.label,
                    "x": [_round(mean, 3)],
                    "y": [_plain(method.label)],
                    "marker": {"color": style[method.label][0], "size": 10},
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [_round(high - mean, 3)],
                        "arrayminus": [_round(mean - low, 3)],
                        "color": style[method.label][0],
                        "thickness": 2,
                        "width": 5,
                    },
                    "hovertemplate": f"%{{y}}: {signed(found.mean, 2)} points, "
                    f"{signed(found.low, 2)} to {signed(found.high, 2)}<br>{found.better} clients "
                    f"better, {found.worse} worse, {found.equal} equal<extra></extra>",
                }
            )
        layout = _layout(f"points more than {_plain(reference.label)}", "")
        layout["xaxis"] |= {"zeroline": True}
        layout["yaxis"] |= {"type": "category"}
        specs.append(_spec(traces, layout))
    clear = sum(
        (found := group.compare(group.ranked[0], m)) is not None and found.clear
        for m in group.ranked[1:]
    )
    caption = (
        "Difference of the last-10 accuracy, paired over clients and seeds, with its 95 % "
        "interval. One that crosses zero says: not told apart. "
        f"{group.ranked[0].label} is clear of {clear} of the {len(group.ranked) - 1} others."
    )
    return Figure(
        "differences",
        "",
        caption,
        [f"minus {reference.label}" for reference in references],
        [
            Panel(
                "Differences between methods with intervals",
                specs,
                height=110 + 34 * len(group.ranked),
            )
        ],
    )


# -- clients -----------------------------------------------------------------------------------


def gains(group: Group, style: dict[str, tuple[str, str]]) -> Figure | None:
    """Who gained: all methods sorted, or one method client by client with the clients' sizes."""
    found = [(m, gain) for m in group.ranked if (gain := group.gain(m)) is not None]
    if not found:
        return None
    names = [_plain(name) for name in group.clients.names]
    sizes = group.clients.n_train
    lines: list[Trace] = []
    specs = []
    for method, gain in found:
        order = np.argsort(-gain.per_client, kind="stable")
        order = _thinned(order[~np.isnan(gain.per_client[order])])
        values = _percents(gain.per_client[order])
        share = (np.arange(len(order)) + 0.5) / len(order)
        colour, dash = style[method.label]
        customdata = [[int(i), names[i], int(sizes[i])] for i in order]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(order) <= 60 else "lines",
                "meta": method.label,
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"color": colour, "size": 6},
                "x": _rounded(100 * share, 4),
                "y": values,
                "customdata": customdata,
                "hovertemplate": f"{_plain(method.label)}<br>client %{{customdata[1]}} "
                "(%{customdata[2]:,} samples): %{y:+.1f} points<extra></extra>",
            }
        )
        colours = [BLUE if v is not None and v >= 0 else VERMILLION for v in values]
        x = [names[i] for i in order]
        bars: Trace = {
            "type": "bar",
            "x": x,
            "y": values,
            "customdata": customdata,
            "marker": {"color": colours},
            "hovertemplate": "client %{customdata[1]} (%{customdata[2]:,} samples): "
            "%{y:+.1f} points<extra></extra>",
        }
        below: Trace = {
            "type": "bar",
            "x": x,
            "y": [int(sizes[i]) for i in order],
            "yaxis": "y2",
            "customdata": customdata,
            "marker": {"color": GREY},
            "hovertemplate": "client %{customdata[1]}: %{y:,} training samples<extra></extra>",
        }
        layout = _layout("client, by gain", "gain in points")
        layout["xaxis"] |= {"type": "category", "anchor": "y2", "showgrid": False}
        layout["yaxis"] |= {"domain": [0.34, 1], "zeroline": True}
        layout["yaxis2"] = _axis("samples") | {"domain": [0, 0.24]}
        layout["bargap"] = 0.15
        specs.append(_spec([bars, below], layout))
    layout = _layout("share of the clients in %, sorted by gain", "gain over Local in points")
    layout["yaxis"]["zeroline"] = True
    leader, gain = found[0]
    fit = stats.correlate(np.log(np.maximum(sizes, 1)), gain.per_client)
    caption = (
        f"Each client's gain over training alone. With {leader.label}, {gain.gained} gained, "
        f"{gain.harmed} lost, {gain.unchanged} stayed. {_who(fit)}"
    )
    return Figure(
        "gains",
        "Who gained",
        caption,
        ["all methods", *(method.label for method, _ in found)],
        [
            Panel(
                "Gain over Local of every client, sorted",
                [_spec(_solid_first(lines), layout), *specs],
                height=440,
            )
        ],
        legend=[method.label for method, _ in found],
    )


def _who(fit: Correlation) -> str:
    """Do small or large clients gain more?"""
    if math.isnan(fit.r):
        return ""
    told = f"Correlation of gain with the logarithm of the client's size: {correlation(fit)}"
    if fit.p >= 0.05:
        return f"{told}: size does not tell who gains."
    return f"{told}: {'large' if fit.r > 0 else 'small'} clients gain more."


def partition(group: Group) -> Figure:
    """Who holds how much of what."""
    clients = group.clients
    names = [_plain(name) for name in clients.names]
    n = clients.n_train
    caption = (
        f"{len(clients)} clients with {n.min():,} to {n.max():,} training samples "
        f"(median {np.median(n):,.0f})."
    )
    if clients.n_test.any():
        caption += " In the sizes, dark is training and light is test data."
    order = _thinned(np.argsort(-n, kind="stable"))
    x = [names[i] for i in order]
    sizes = _layout("client, by size", "samples")
    sizes["xaxis"] |= {"type": "category", "showgrid": False}
    sizes |= {"barmode": "stack", "bargap": 0.1}
    parts = (("training", clients.n_train, BLUE), ("test", clients.n_test, "#56B4E9"))
    bars = [
        {
            "type": "bar",
            "x": x,
            "y": [int(values[i]) for i in order],
            "customdata": [[int(i), names[i]] for i in order],
            "marker": {"color": colour},
            "hovertemplate": f"client %{{customdata[1]}}: %{{y:,}} {what} samples<extra></extra>",
        }
        for what, values, colour in parts
    ]
    views, specs = ["sizes"], [_spec(bars, sizes)]
    height = 380
    if clients.counts is not None and len(clients) <= MAX_CLIENTS:
        z = clients.counts[order].T
        held = (clients.counts > 0).sum(axis=1)
        caption += (
            f" A client holds {held.min()} to {held.max()} of the {len(clients.class_names)} "
            f"classes (median {np.median(held):.0f}). Blank: none of that class."
        )
        heat: Trace = {
            "type": "heatmap",
            "x": x,
            "y": [_plain(name) for name in clients.class_names],
            "z": [[int(v) or None for v in row] for row in z],
            "meta": {"order": order.tolist(), "axes": ["x"]},
            "colorscale": SEQUENTIAL,
            "colorbar": _colorbar("samples"),
            "hoverongaps": False,
            "hovertemplate": "client %{x}, class %{y}: %{z:,} samples<extra></extra>",
        }
        layout = _layout("client, by size", "class")
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        layout["yaxis"] |= {"type": "category", "showgrid": False, "autorange": "reversed"}
        layout["plot_bgcolor"] = GAP
        views.insert(0, "samples by class")
        specs.insert(0, _spec([heat], layout))
        height = min(900, max(380, 120 + 16 * len(z)))
    return Figure(
        "partition",
        "Who holds what",
        caption,
        views,
        [Panel("Samples of each client by class", specs, height=height)],
    )


# -- the matrix A ------------------------------------------------------------------------------


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
        "What is gone per step was the number of steps, which grows with size."
    )


def _heat(group: Group, pairs: stats.Pairs) -> dict[str, Any]:
    n = group.clients.n_train
    order = np.argsort(-n, kind="stable")
    size = -(-len(n) // MAX_CLIENTS)
    change = pairs.blocks(order, size)
    if size == 1:
        names = [_plain(group.clients.names[i]) for i in order]
        met = np.zeros((len(n), len(n)), dtype=np.int64)
        met[pairs.row, pairs.column] = pairs.meetings
        met = met[np.ix_(order, order)]
        z = [
            [_round(v, 5) if m else None for v, m in zip(row, seen, strict=True)]
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
        z = [_rounded(row, 5) for row in change]
        extra = {"hovertemplate": "clients %{y} weigh clients %{x}: %{z:+.5f}<extra></extra>"}
        what = f", mean over {size} × {size} clients"
    top = float(np.quantile(np.abs(pairs.change), 0.99)) if len(pairs.change) else 1.0
    heat: Trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": z,
        "colorscale": DIVERGING,
        "zmid": 0,
        "zmin": -(top or 1.0),
        "zmax": top or 1.0,
        "colorbar": _colorbar("change"),
        "hoverongaps": False,
        "meta": {"order": order.tolist(), "axes": ["y", "x"]} if size == 1 else None,
        **extra,
    }
    layout = _layout(f"client j whose risk is weighed, by size{what}", "client i, by size")
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout["yaxis"] |= {"type": "category", "showgrid": False, "autorange": "reversed"}
    layout["plot_bgcolor"] = GAP
    return _spec([heat], layout)


def _scatter(
    group: Group, values: Floats, fit: Correlation, y_title: str, x_title: str
) -> dict[str, Any]:
    n = group.clients.n_train
    at = _thinned(np.flatnonzero(~np.isnan(values)))
    names = [_plain(group.clients.names[i]) for i in at]
    points: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": n[at].tolist(),
        "y": _rounded(values[at], 4),
        "customdata": [[int(i), name] for i, name in zip(at, names, strict=True)],
        "marker": {"color": BLUE, "size": 8, "opacity": 0.8},
        "hovertemplate": "client %{customdata[1]} (%{x:,} samples): %{y:+.3g}<extra></extra>",
    }
    traces = [points]
    layout = _layout(x_title, y_title)
    layout["yaxis"] |= {"zeroline": True, "exponentformat": "e"}
    if not math.isnan(fit.r):
        ends = [int(n[at].min()), int(n[at].max())]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": ends,
                "y": _rounded([fit.intercept + fit.slope * x for x in ends], 4),
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
    return _spec(traces, layout)


# -- new clients -------------------------------------------------------------------------------


def new_clients(group: Group, style: dict[str, tuple[str, str]]) -> Figure | None:
    """Clients that were not there during training, fine-tuning the global model."""
    found = {name: curve for folder in group.folders for name, curve in folder.new_clients.items()}
    if not found:
        return None
    traces: list[Trace] = []
    told = []
    for name, curve in found.items():
        colour, dash = style.get(name, (GREY, "solid"))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "meta": name,
                "x": curve["epochs"],
                "y": _percents(curve["accuracy"]),
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"color": colour, "size": 6},
                "hovertemplate": f"{_plain(name)}, epoch %{{x}}: %{{y:.1f}} %<extra></extra>",
            }
        )
        best = f"{name} {percent(max(curve['accuracy'], default=0.0))}"
        printed = paper.new_clients(group, name)
        told.append(best if printed is None else f"{best} (paper {percent(printed)})")
    return Figure(
        "new-clients",
        "",
        "Clients that took no part in training start from the global model and train on their own "
        f"data. Best over the epochs: {'; '.join(told)}.",
        ["accuracy over epochs"],
        [
            Panel(
                "Accuracy of new clients over epochs of fine-tuning",
                [_spec(traces, _layout("epochs of fine-tuning", "accuracy in %"))],
            )
        ],
        legend=list(found),
    )


# -- small things ------------------------------------------------------------------------------


def _spec(data: Sequence[Trace], layout: dict[str, Any]) -> dict[str, Any]:
    return {"data": list(data), "layout": layout}


def _axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False}


def _layout(x: str, y: str) -> dict[str, Any]:
    return {
        "xaxis": _axis(x),
        "yaxis": _axis(y),
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "hovermode": "closest",
        "showlegend": False,
    }


def _colorbar(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0}


def _plain(text: str) -> str:
    """Text that plotly shows as it is: it reads a little HTML and %{...} of its own."""
    return html.escape(text).replace("%{", "%&#123;")


def _thinned(order: Ints) -> Ints:
    """At most MAX_CLIENTS of them, evenly, first and last included."""
    if len(order) <= MAX_CLIENTS:
        return order
    at = np.linspace(0, len(order) - 1, MAX_CLIENTS).round().astype(np.int64)
    return order[at]


def _percents(values: Iterable[float]) -> list[float | None]:
    return [_round(100 * value, 2) for value in values]


def _round(value: float, digits: int) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(value) else round(float(value), digits)


def _rounded(values: Iterable[float], significant: int) -> list[float | None]:
    """Significant digits: bytes and changes per step are far apart in size."""
    return [None if math.isnan(v) else float(f"{v:.{significant}g}") for v in values]
