"""The interactive figures, but for the matrix A."""

from __future__ import annotations

import math

import numpy as np

from pgfed.report.figures.specification import (
    BLUE,
    GAP,
    GREY,
    MAX_CLIENTS,
    SEQUENTIAL,
    VERMILLION,
    Figure,
    Panel,
    Style,
    Trace,
    axis,
    colorbar,
    layout_of,
    percents,
    plain,
    round_to,
    rounded,
    solid_first,
    spec,
    thinned,
)
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group
from pgfed.results.formats import correlation, percent, signed
from pgfed.results.statistics import Correlation

# -- learning curves ---------------------------------------------------------------------------


def curves(group: Group, style: Style) -> Figure:
    """Accuracy against rounds and against bytes."""
    by_rounds: list[Trace] = []
    by_bytes: list[Trace] = []
    most = max(method.sent() for method in group.methods)
    for method in group.methods:
        colour, dash = style[method.label]
        seeds = [method.curve(seed) for seed in method.seeds] if len(method.runs) > 1 else []
        for curve in [*seeds, method.mean_curve]:
            thin = curve is not method.mean_curve
            y = percents(curve.accuracy)
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
                name = plain(method.label)
                hover = {"hovertemplate": f"{name}<br>%{{x}}: %{{y:.1f}} %<extra></extra>"}
            by_rounds.append({**common, **hover, "x": curve.rounds})
            if method.sent() > 0:
                by_bytes.append({**common, **hover, "x": rounded(curve.sent, 4)})
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
                    "y": [round_to(level, 2)] * 2,
                    "hovertemplate": f"{plain(method.label)}, last 10 rounds: %{{y:.1f}} %"
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
            f" Highest over the last ten rounds: {leader.label}, which ends at "
            f"{percent(last.accuracy[-1])} in round {last.rounds[-1]}."
        )
    layouts = [
        layout_of("round", "accuracy in %"),
        layout_of("bytes sent so far, both directions", "accuracy in %"),
    ]
    if max(len(method.mean_curve.rounds) for method in group.methods) <= 12:
        layouts[0]["xaxis"]["dtick"] = 1
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
                    spec(solid_first(by_rounds), layouts[0]),
                    spec(solid_first(by_bytes), layouts[1]),
                ],
                height=420,
            )
        ],
        legend=[method.label for method in group.methods],
    )


# -- methods against each other ----------------------------------------------------------------


def differences(group: Group, style: Style) -> Figure | None:
    """Every method minus a chosen one, with paired intervals."""
    if len(group.ranked) < 2:
        return None
    first = [m for m in group.ranked if group.is_control(m)]
    references = first + [m for m in group.ranked if m not in first]
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
                    "x": [round_to(mean, 3)],
                    "y": [plain(method.label)],
                    "marker": {"color": style[method.label][0], "size": 10},
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [round_to(high - mean, 3)],
                        "arrayminus": [round_to(mean - low, 3)],
                        "color": style[method.label][0],
                        "thickness": 2,
                        "width": 5,
                    },
                    "hovertemplate": f"%{{y}}: {signed(found.mean, 2)} points, "
                    f"{signed(found.low, 2)} to {signed(found.high, 2)}<br>{found.better} clients "
                    f"better, {found.worse} worse, {found.equal} equal<extra></extra>",
                }
            )
        layout = layout_of(f"points more than {plain(reference.label)}", "")
        layout["xaxis"] |= {"zeroline": True}
        layout["yaxis"] |= {"type": "category"}
        specs.append(spec(traces, layout))
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


def gains(group: Group, style: Style) -> Figure | None:
    """Who gained: all methods sorted, or one method client by client with the clients' sizes."""
    found = [(m, gain) for m in group.ranked if (gain := group.gain(m)) is not None]
    if not found:
        return None
    names = [plain(name) for name in group.clients.names]
    sizes = group.clients.n_train
    lines: list[Trace] = []
    specs = []
    for method, gain in found:
        order = np.argsort(-gain.per_client, kind="stable")
        order = thinned(order[~np.isnan(gain.per_client[order])])
        values = percents(gain.per_client[order])
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
                "x": rounded(100 * share, 4),
                "y": values,
                "customdata": customdata,
                "hovertemplate": f"{plain(method.label)}<br>client %{{customdata[1]}} "
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
        layout = layout_of("client, by gain", "gain in points")
        layout["xaxis"] |= {"type": "category", "anchor": "y2", "showgrid": False}
        layout["yaxis"] |= {"domain": [0.34, 1], "zeroline": True}
        layout["yaxis2"] = axis("samples") | {"domain": [0, 0.24]}
        layout["bargap"] = 0.15
        specs.append(spec([bars, below], layout))
    layout = layout_of("share of the clients in %, sorted by gain", "gain over Local in points")
    layout["yaxis"]["zeroline"] = True
    leader, gain = found[0]
    fit = stats.correlate(np.log(np.maximum(sizes, 1)), gain.per_client)
    caption = (
        f"Each client's gain over training alone. With {leader.label}, {gain.gained:,} gained, "
        f"{gain.harmed:,} lost, {gain.unchanged:,} stayed. {_who(fit)}"
    )
    return Figure(
        "gains",
        "Who gained",
        caption,
        ["all methods", *(method.label for method, _ in found)],
        [
            Panel(
                "Gain over Local of every client, sorted",
                [spec(solid_first(lines), layout), *specs],
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
    names = [plain(name) for name in clients.names]
    n = clients.n_train
    caption = (
        f"{len(clients):,} clients with {n.min():,} to {n.max():,} training samples "
        f"(median {np.median(n):,.0f})."
    )
    if clients.n_test.any():
        caption += " In the sizes, dark is training and light is test data."
    order = thinned(np.argsort(-n, kind="stable"))
    x = [names[i] for i in order]
    sizes = layout_of("client, by size", "samples")
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
    views, specs = ["sizes"], [spec(bars, sizes)]
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
            "y": [plain(name) for name in clients.class_names],
            "z": [[int(v) or None for v in row] for row in z],
            "meta": {"order": order.tolist(), "axes": ["x"]},
            "colorscale": SEQUENTIAL,
            "colorbar": colorbar("samples"),
            "hoverongaps": False,
            "hovertemplate": "client %{x}, class %{y}: %{z:,} samples<extra></extra>",
        }
        layout = layout_of("client, by size", "class")
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        layout["yaxis"] |= {"type": "category", "showgrid": False, "autorange": "reversed"}
        layout["plot_bgcolor"] = GAP
        views.insert(0, "samples by class")
        specs.insert(0, spec([heat], layout))
        height = min(900, max(380, 120 + 16 * len(z)))
    return Figure(
        "partition",
        "Who holds what",
        caption,
        views,
        [Panel("Samples of each client by class", specs, height=height)],
    )
