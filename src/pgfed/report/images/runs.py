"""The figures of a report as files: curves, gains, differences, who holds what, the matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.report.extras import module
from pgfed.report.figures.colours import BLUE, GREY, PALE, SEQUENTIAL
from pgfed.report.figures.specification import Style, styles
from pgfed.report.images import forest
from pgfed.report.images.drawing import KINDS, NEEDED_BY, blank, heat_map, styled, write
from pgfed.report.images.matrix import matrices
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import axis, factor, gain_axis

LINES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdashdot": (0, (9, 2, 2, 2)),
}


def save(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draw what there is to draw; a file is named after its figure and, if several, federation."""
    style = styles(groups)
    drawings: dict[str, Callable[[Group, Style], Any]] = {
        "curves": _curves,
        "gains": _gains,
        "clients": forest.of_clients,
        "differences": forest.of_methods,
        "partition": _partition,
    }
    written = []
    for index, group in enumerate(groups):
        prefix = f"{index + 1}-" if len(groups) > 1 else ""
        with styled():
            figures = {name: draw(group, style) for name, draw in drawings.items()}
            figures |= matrices(group)
        for name, figure in figures.items():
            if figure is not None:
                written += [write(figure, folder / f"{prefix}{name}.{k}") for k in KINDS]
    return written


def draw(name: str, group: Group) -> Any:
    """One figure, "curves" or "gains", for whoever shows it; None where there is nothing to."""
    with styled():
        return {"curves": _curves, "gains": _gains}[name](group, styles([group]))


def _solid_first(methods: Sequence[Method], style: Style) -> list[Method]:
    """A dashed line over a solid one leaves both to be seen."""
    return sorted(methods, key=lambda method: style[method.label][1] != "solid")


def _line(style: Style, method: Method) -> dict[str, Any]:
    colour, dash = style[method.label]
    return {"color": colour, "linestyle": LINES[dash]}


# -- the figures -------------------------------------------------------------------------------


def _curves(group: Group, style: Style) -> Any:
    figure = blank(7.0, 3.2)
    by_rounds, by_bytes = figure.subplots(1, 2, sharey=True)
    scale = factor(group.metric)
    for method in _solid_first(group.methods, style):
        line = _line(style, method)
        if len(method.runs) > 1:
            for curve in map(method.curve, method.seeds):
                by_rounds.plot(
                    curve.rounds, scale * np.array(curve.score), lw=0.6, alpha=0.4, **line
                )
        mean = method.mean_curve
        by_rounds.plot(
            mean.rounds, scale * np.array(mean.score), lw=1.6, label=method.label, **line
        )
        if method.sent() > 0:
            by_bytes.plot(mean.sent, scale * np.array(mean.score), lw=1.6, **line)
        elif method.means("kept"):
            level = scale * method.mean()
            by_bytes.axhline(level, lw=1.2, color=line["color"], linestyle=":")
    by_rounds.set(xlabel="round", ylabel=axis(group.metric))
    by_bytes.set(xlabel="bytes sent, both directions")
    ticker = module("matplotlib.ticker", NEEDED_BY)
    by_bytes.xaxis.set_major_formatter(ticker.EngFormatter(unit="B"))
    figure.legend(loc="outside lower center", ncols=min(6, len(group.methods)))
    return figure


def _gains(group: Group, style: Style) -> Any:
    found = [(method, gain) for method in group.ranked if (gain := group.gain(method)) is not None]
    if not found:
        return None
    figure = blank(5.0, 3.4)
    axes = figure.subplots()
    for method, gain in found:
        values = np.sort(gain.per_client[~np.isnan(gain.per_client)])[::-1]
        share = 100 * (np.arange(len(values)) + 0.5) / len(values)
        line = _line(style, method)
        axes.plot(share, factor(group.metric) * values, lw=1.4, label=method.label, **line)
    axes.axhline(0, color=GREY, lw=0.8)
    axes.set(
        xlabel="share of the clients in %", ylabel=f"{gain_axis(group.metric)}, over {group.over}"
    )
    figure.legend(loc="outside lower center", ncols=min(4, len(found)))
    return figure


def _partition(group: Group, _: Style) -> Any:
    clients = group.clients
    order = np.argsort(-clients.n_train, kind="stable")
    if clients.counts is None:
        figure = blank(7.0, 2.6)
        axes = figure.subplots()
        at = np.arange(len(order))
        axes.bar(at, clients.n_train[order], color=BLUE, width=0.85, label="training")
        axes.bar(
            at,
            clients.n_test[order],
            bottom=clients.n_train[order],
            color=PALE,
            width=0.85,
            label="test",
        )
        axes.legend()
        axes.set(xlabel="client, by size", ylabel="samples")
    else:
        held = np.ma.masked_equal(clients.counts[order].T, 0)
        classes = len(clients.class_names)
        figure = blank(7.0, min(9.0, max(2.6, 0.6 + 0.16 * classes)))
        axes = figure.subplots()
        heat_map(figure, axes, held, SEQUENTIAL, "samples")
        if classes <= 40:
            axes.set_yticks(range(classes), clients.class_names)
        axes.set(xlabel="client, by size", ylabel="class")
    if len(order) <= 50:
        axes.set_xticks(range(len(order)), [clients.names[i] for i in order], rotation=90)
    return figure
