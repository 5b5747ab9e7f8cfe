"""Clients: what each gained, and what each holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pgfed.report.figures.specification import (
    BLUE,
    GAP,
    GREY,
    MAX_CLIENTS,
    SEQUENTIAL,
    SKY,
    VERMILLION,
    Figure,
    Panel,
    Style,
    Trace,
    axis,
    colorbar,
    hover,
    layout_of,
    plain,
    rounded,
    shown,
    solid_first,
    spec,
    thinned,
)
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import correlation, gain_axis, points
from pgfed.results.runs import Clients
from pgfed.results.statistics import Correlation, Gain, Ints

# -- gains -------------------------------------------------------------------------------------


def gains(group: Group, style: Style) -> Figure | None:
    """Who gained: all methods sorted, or one method client by client with the clients' sizes."""
    found = [(m, gain) for m in group.ranked if (gain := group.gain(m)) is not None]
    if not found:
        return None
    lines = [_sorted_gains(method, gain, group, style) for method, gain in found]
    together = layout_of(
        "share of the clients in %, sorted by gain",
        gain_axis(group.metric).replace("gain", f"gain over {group.over}"),
    )
    together["yaxis"]["zeroline"] = True
    each = [_gain_and_size(gain, group) for _, gain in found]
    leader, gain = found[0]
    fit = stats.correlate(np.log(np.maximum(group.clients.n_train, 1)), gain.per_client)
    caption = (
        f"Each client's gain over training alone. With {leader.label}, {gain.gained:,} gained, "
        f"{gain.harmed:,} lost, {gain.unchanged:,} stayed. {_who(fit)}"
    )
    panel = Panel(
        f"Gain over {group.over} of every client, sorted",
        [spec(solid_first(lines), together), *each],
        height=440,
    )
    labels = [method.label for method, _ in found]
    return Figure("gains", "Who gained", caption, ["all methods", *labels], [panel], legend=labels)


def _by_gain(gain: Gain, group: Group) -> tuple[Ints, Trace]:
    """The clients that gained most first; what bars and lines over them have in common."""
    order = np.argsort(-gain.per_client, kind="stable")
    order = thinned(order[~np.isnan(gain.per_client[order])])
    names, sizes = group.clients.names, group.clients.n_train
    return order, {
        "y": shown(gain.per_client[order], group.metric),
        "customdata": [[int(i), plain(names[i]), int(sizes[i])] for i in order],
    }


def _sorted_gains(method: Method, gain: Gain, group: Group, style: Style) -> Trace:
    """One method among all."""
    order, common = _by_gain(gain, group)
    colour, dash = style[method.label]
    share = (np.arange(len(order)) + 0.5) / len(order)
    return common | {
        "type": "scatter",
        "mode": "lines+markers" if len(order) <= 60 else "lines",
        "meta": method.label,
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour, "size": 6},
        "x": rounded(100 * share, 4),
        "hovertemplate": f"{plain(method.label)}<br>client %{{customdata[1]}} "
        f"(%{{customdata[2]:,}} samples): {_hover(group)}<extra></extra>",
    }


def _gain_and_size(gain: Gain, group: Group) -> dict[str, Any]:
    """Above, what each client gained with one method; below, how much it holds."""
    order, common = _by_gain(gain, group)
    clients = group.clients
    common |= {"type": "bar", "x": [plain(clients.names[i]) for i in order]}
    colours = [BLUE if v is not None and v >= 0 else VERMILLION for v in common["y"]]
    above = common | {
        "marker": {"color": colours},
        "hovertemplate": "client %{customdata[1]} (%{customdata[2]:,} samples): "
        f"{_hover(group)}<extra></extra>",
    }
    below = common | {
        "y": [int(clients.n_train[i]) for i in order],
        "yaxis": "y2",
        "marker": {"color": GREY},
        "hovertemplate": "client %{customdata[1]}: %{y:,} training samples<extra></extra>",
    }
    layout = layout_of("client, by gain", gain_axis(group.metric))
    layout["xaxis"] |= {"type": "category", "anchor": "y2", "showgrid": False}
    layout["yaxis"] |= {"domain": [0.34, 1], "zeroline": True}
    layout["yaxis2"] = axis("samples") | {"domain": [0, 0.24]}
    layout["bargap"] = 0.15
    return spec([above, below], layout)


def _hover(group: Group) -> str:
    return hover(group.metric, "+") + points(group.metric)


def _who(fit: Correlation) -> str:
    """Do small or large clients gain more?"""
    if math.isnan(fit.r):
        return ""
    found = f"Correlation of gain with the logarithm of the client's size: {correlation(fit)}"
    if fit.p >= 0.05:
        return f"{found}: size does not tell who gains."
    return f"{found}: {'large' if fit.r > 0 else 'small'} clients gain more."


# -- data --------------------------------------------------------------------------------------


def partition(group: Group) -> Figure:
    """Who holds how much of what."""
    clients = group.clients
    n = clients.n_train
    caption = (
        f"{len(clients):,} clients with {n.min():,} to {n.max():,} training samples "
        f"(median {np.median(n):,.0f})."
    )
    if clients.n_test.any():
        caption += " In the sizes, dark is training and light is test data."
    order = thinned(np.argsort(-n, kind="stable"))
    views, specs, height = ["sizes"], [_sizes(clients, order)], 380
    if clients.counts is not None and len(clients) <= MAX_CLIENTS:
        held = (clients.counts > 0).sum(axis=1)
        caption += (
            f" A client holds {held.min()} to {held.max()} of the {len(clients.class_names)} "
            f"classes (median {np.median(held):.0f}). Blank: none of that class."
        )
        views.insert(0, "samples by class")
        specs.insert(0, _by_class(clients, clients.counts[order].T, order))
        height = min(900, max(380, 120 + 16 * clients.counts.shape[1]))
    panel = Panel("Samples of each client by class", specs, height=height)
    return Figure("partition", "Who holds what", caption, views, [panel])


def _sizes(clients: Clients, order: Ints) -> dict[str, Any]:
    """Training data dark, test data light."""
    names = [plain(clients.names[i]) for i in order]
    parts = (("training", clients.n_train, BLUE), ("test", clients.n_test, SKY))
    bars = [
        {
            "type": "bar",
            "x": names,
            "y": [int(values[i]) for i in order],
            "customdata": [[int(i), name] for i, name in zip(order, names, strict=True)],
            "marker": {"color": colour},
            "hovertemplate": f"client %{{customdata[1]}}: %{{y:,}} {what} samples<extra></extra>",
        }
        for what, values, colour in parts
    ]
    layout = layout_of("client, by size", "samples")
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout |= {"barmode": "stack", "bargap": 0.1}
    return spec(bars, layout)


def _by_class(clients: Clients, counts: Ints, order: Ints) -> dict[str, Any]:
    """A column per client, a row per class."""
    heat: Trace = {
        "type": "heatmap",
        "x": [plain(clients.names[i]) for i in order],
        "y": [plain(name) for name in clients.class_names],
        "z": [[int(v) or None for v in row] for row in counts],
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
    return spec([heat], layout)
