"""Clients: what each gained, and what each holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.report.figures.colours import BLUE, INK, PALE, SEQUENTIAL, STONE, VERMILLION
from pgfed.report.figures.ordering import CLUSTERED, by_likeness
from pgfed.report.figures.specification import (
    MAX_CLIENTS,
    NAMED,
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
    spec,
    thinned,
    ticks,
)
from pgfed.results import statistics as stats
from pgfed.results.caveats import FEW
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import correlation, factor, gain_axis, points, sentence
from pgfed.results.gains.clients import Gain
from pgfed.results.runs import Clients
from pgfed.results.statistics import Correlation, Ints
from pgfed.results.verdict import counted, judge
from pgfed.results.verdict import gains as gains_of

# -- gains -------------------------------------------------------------------------------------


def gains(group: Group, style: Style) -> Figure | None:
    """Who gained: one method client by client, with the clients' sizes, or all methods sorted."""
    label = judge(group).method  # what the verdict is about comes first
    ranked = sorted(group.ranked, key=lambda method: method.label != label)
    each = gains_of(group)
    found = [(m, each[m.label]) for m in ranked if m.label in each]
    if not found:
        return None
    few = len(group.clients) <= NAMED
    specs = {
        f"with {method.label}": _bars(gain, group) if few else _gain_and_size(gain, group)
        for method, gain in found
    }
    specs["all methods, sorted"] = _all_sorted(found, group, style)
    leader, gain = found[0]
    grey = not any(other.gained or other.lost for _, other in found)
    said = " ".join(_said(gain, group.clients, grey))
    caption = f"With {leader.label} over {group.over}, {said}"
    panel = Panel(f"Gain over {group.over} of every client", list(specs.values()), height=440)
    labels = [method.label for method, _ in found]
    return Figure("gains", "", caption, list(specs), [panel], legend=labels)


def _said(gain: Gain, clients: Clients, grey: bool) -> list[str]:
    """The caption's sentences, but the words that they begin with.

    ``grey``: whether no method has a bar in another colour.
    """
    lines = "thin lines are 95 % intervals, each of one client by itself"
    drawn = gain.known and len(clients) <= NAMED
    if not gain.judged:
        who = "nobody is said to have gained or lost: the run gives no verdict."
        return [who, *([f"{sentence(lines)}."] if drawn else [])]
    said = [f"{counted(gain) or 'who gained is not known'}."]
    if gain.known:
        colours = "Blue clearly gained, orange clearly lost, grey cannot be told"
        if grey:
            said, colours = [], "all bars are grey: for no single client can it be told"
        said.append(f"{colours}; {lines}." if drawn else f"{colours}.")
    fit = stats.correlate(np.log(np.maximum(clients.n_train, 1)), gain.per_client)
    return [*said, _who(fit)]


def _all_sorted(found: Sequence[tuple[Method, Gain]], group: Group, style: Style) -> dict[str, Any]:
    """The leader is drawn last, on top of the others."""
    lines = [_sorted_gains(method, gain, group, style) for method, gain in reversed(found)]
    layout = layout_of(
        "share of the clients in %",
        gain_axis(group.metric).replace("gain", f"gain over {group.over}"),
    )
    layout["yaxis"]["zeroline"] = True
    return spec(lines, layout, ends=True)


def _by_gain(gain: Gain, group: Group) -> tuple[Ints, list[Any]]:
    """The clients that gained most first, and what is known of each."""
    order = np.argsort(-gain.per_client, kind="stable")
    order = thinned(order[~np.isnan(gain.per_client[order])])
    names, sizes = group.clients.names, group.clients.n_train
    return order, [[int(i), plain(names[i]), int(sizes[i])] for i in order]


def _sorted_gains(method: Method, gain: Gain, group: Group, style: Style) -> Trace:
    """One method among all."""
    order, about = _by_gain(gain, group)
    colour, dash = style[method.label]
    share = (np.arange(len(order)) + 0.5) / len(order)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(order) <= NAMED else "lines",
        "meta": method.label,
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour, "size": 6},
        "x": rounded(100 * share, 4),
        "y": shown(gain.per_client[order], group.metric),
        "customdata": about,
        "hovertemplate": f"{plain(method.label)}<br>client %{{customdata[1]}} "
        f"(%{{customdata[2]:,}} samples): {_hover(group)}<extra></extra>",
    }


def _bars(gain: Gain, group: Group) -> dict[str, Any]:
    """A named bar per client, and beside it how much it holds."""
    order, about = _by_gain(gain, group)
    names = [name for _, name, _ in about]
    values = shown(gain.per_client[order], group.metric)
    common: Trace = {"type": "bar", "orientation": "h", "y": names, "customdata": about}
    gained = common | {
        "x": values,
        "marker": {"color": _colours(gain, order)},
        "error_x": _whiskers(gain, order, group.metric),
        "hovertemplate": "client %{customdata[1]} (%{customdata[2]:,} samples): "
        f"{_hover(group).replace('%{y', '%{x')}<extra></extra>",
    }
    held = common | {
        "x": [n for _, _, n in about],
        "xaxis": "x2",
        "marker": {"color": STONE},
        "hovertemplate": "client %{customdata[1]}: %{x:,} training samples<extra></extra>",
    }
    numbers = all(name.isdecimal() for name in names)  # which say themselves that they are clients
    # Over what, the caption says: a narrow screen has no room for it here.
    layout = layout_of(gain_axis(group.metric), "client" if numbers else "")
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "showgrid": False}
    layout["yaxis"] |= {"dtick": 1, "tickmode": "linear"}
    layout["xaxis"] |= {"domain": [0, 0.72], "zeroline": True}
    layout["xaxis2"] = axis("samples") | {"domain": [0.78, 1], "nticks": 3, "tickangle": 0}
    layout["bargap"] = 0.25
    layout["margin"] |= {
        "t": 34
    }  # the titles; on hover plotly's buttons, which lie on no bar there
    layout["annotations"] = [
        _above(f"What each gained over {group.over}", "x"), _above("What each holds", "x2")
    ]  # fmt: skip
    height = 116 + 22 * max(3, len(order))
    return spec([gained, held], layout, height=height, aside="x2")


def _above(title: str, axis: str) -> dict[str, Any]:
    """The title of a half of the figure."""
    return {
        "text": plain(title),
        "font": {"weight": 600},
        "showarrow": False,
        "xref": f"{axis} domain",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
    }


def _gain_and_size(gain: Gain, group: Group) -> dict[str, Any]:
    """Too many clients to name: above, what each gained with one method; below, its size."""
    order, about = _by_gain(gain, group)
    values = shown(gain.per_client[order], group.metric)
    common: Trace = {"type": "bar", "x": [name for _, name, _ in about], "customdata": about}
    above = common | {
        "y": values,
        "marker": {"color": _colours(gain, order)},
        "hovertemplate": "client %{customdata[1]} (%{customdata[2]:,} samples): "
        f"{_hover(group)}<extra></extra>",
    }
    below = common | {
        "y": [n for _, _, n in about],
        "yaxis": "y2",
        "marker": {"color": STONE},
        "hovertemplate": "client %{customdata[1]}: %{y:,} training samples<extra></extra>",
    }
    layout = layout_of("client, by gain", gain_axis(group.metric))
    layout["xaxis"] |= {"type": "category", "anchor": "y2", "showgrid": False}
    layout["xaxis"] |= ticks(False)
    layout["yaxis"] |= {"domain": [0.34, 1], "zeroline": True}
    layout["yaxis2"] = axis("samples") | {"domain": [0, 0.24]}
    layout["bargap"] = 0.15
    return spec([above, below], layout)


STANDING = {"clearly gained": BLUE, "clearly lost": VERMILLION}


def _colours(gain: Gain, order: Ints) -> list[str]:
    """By what the evidence carries: a gain that cannot be told is grey, however long its bar."""
    statements = gain.statements
    return [STANDING.get(statements[i] or "", STONE) for i in order]


def _whiskers(gain: Gain, order: Ints, metric: Metric) -> dict[str, Any]:
    """The interval of each client, where it is known."""
    if not gain.known:
        return {}
    scale = factor(metric)
    above = np.nan_to_num(scale * (gain.high - gain.per_client))[order]
    below = np.nan_to_num(scale * (gain.per_client - gain.low))[order]
    return {
        "type": "data",
        "symmetric": False,
        "array": rounded(np.maximum(above, 0), 4),
        "arrayminus": rounded(np.maximum(below, 0), 4),
        "color": INK,
        "thickness": 1,
        "width": 3,
    }


def _hover(group: Group) -> str:
    return hover(group.metric, "+") + points(group.metric)


def _who(fit: Correlation) -> str:
    """Do small or large clients gain more?"""
    if math.isnan(fit.r) or fit.n < FEW:
        return ""
    found = f"correlation of gain with the logarithm of the client's size {correlation(fit)}"
    if fit.p >= 0.05:
        return f"Size does not tell who gains: {found}."
    return f"{'Larger' if fit.r > 0 else 'Smaller'} clients tended to gain more: {found}."


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
            f"classes (median {np.median(held):.0f}). The darker, the more samples; empty: none "
            "of that class."
        )
        by, at = "by size", order
        if len(clients) > CLUSTERED:
            by, at = "similar ones together", by_likeness(clients.counts)
            caption += " Clients with similar classes stand together."
        views.insert(0, "samples by class")
        specs.insert(0, _by_class(clients, clients.counts[at].T, at, by))
        height = min(900, max(380, 120 + 16 * clients.counts.shape[1]))
    panel = Panel("Samples of each client by class", specs, height=height)
    return Figure("partition", "", caption, views, [panel])


def _sizes(clients: Clients, order: Ints) -> dict[str, Any]:
    """Training data dark, test data light."""
    names = [plain(clients.names[i]) for i in order]
    parts = (("training", clients.n_train, BLUE), ("test", clients.n_test, PALE))
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
    layout["xaxis"] |= ticks(len(order) <= CLUSTERED)
    layout |= {"barmode": "stack", "bargap": 0.1}
    return spec(bars, layout)


def _by_class(clients: Clients, counts: Ints, order: Ints, by: str) -> dict[str, Any]:
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
    layout = layout_of(f"client, {by}", "class")
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout["xaxis"] |= ticks(len(order) <= CLUSTERED)
    layout["yaxis"] |= {"type": "category", "showgrid": False, "autorange": "reversed"}
    return spec([heat], layout, heat="held")
