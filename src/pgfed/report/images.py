"""The figures as PNG and SVG files, for papers and slides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.errors import UserError
from pgfed.report.extras import module
from pgfed.report.figures.specification import (
    BLUE,
    DIVERGING,
    GAP,
    GREY,
    MAX_CLIENTS,
    SEQUENTIAL,
    VERMILLION,
    Style,
    styles,
)
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import correlation
from pgfed.results.statistics import Correlation, Floats, Pairs

LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
SETTINGS = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "pgfed",  # equal figures are equal files
}


def save(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draw what there is to draw; a file is named after its figure and, if several, federation."""
    style = styles(groups)
    drawings: dict[str, Callable[[Group, Style], Any]] = {
        "curves": _curves,
        "gains": _gains,
        "partition": _partition,
    }
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with module("matplotlib").rc_context(SETTINGS):
            for index, group in enumerate(groups):
                prefix = f"{index + 1}-" if len(groups) > 1 else ""
                figures = {name: draw(group, style) for name, draw in drawings.items()}
                figures |= _matrices(group)
                for name, figure in figures.items():
                    if figure is not None:
                        written += _write(figure, folder / f"{prefix}{name}")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from None
    return written


def _write(figure: Any, path: Path) -> list[Path]:
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    figure.savefig(files[0], dpi=200)
    figure.savefig(files[1], metadata={"Date": None})
    return files


def _figure(width: float, height: float) -> Any:
    return module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _solid_first(methods: Sequence[Method], style: Style) -> list[Method]:
    """A dashed line over a solid one leaves both to be seen."""
    return sorted(methods, key=lambda method: style[method.label][1] != "solid")


def _line(style: Style, method: Method) -> dict[str, Any]:
    colour, dash = style[method.label]
    return {"color": colour, "linestyle": LINES[dash]}


# -- the figures -------------------------------------------------------------------------------


def _curves(group: Group, style: Style) -> Any:
    figure = _figure(7.0, 3.2)
    by_rounds, by_bytes = figure.subplots(1, 2, sharey=True)
    for method in _solid_first(group.methods, style):
        line = _line(style, method)
        if len(method.runs) > 1:
            for curve in map(method.curve, method.seeds):
                by_rounds.plot(curve.rounds, _percent(curve.accuracy), lw=0.6, alpha=0.4, **line)
        mean = method.mean_curve
        by_rounds.plot(mean.rounds, _percent(mean.accuracy), lw=1.6, label=method.label, **line)
        if method.sent() > 0:
            by_bytes.plot(mean.sent, _percent(mean.accuracy), lw=1.6, **line)
        elif method.accuracy("last10"):
            level = 100 * float(np.mean(method.accuracy("last10")))
            by_bytes.axhline(level, lw=1.2, color=line["color"], linestyle=":")
    by_rounds.set(xlabel="round", ylabel="accuracy in %")
    by_bytes.set(xlabel="bytes sent, both directions")
    by_bytes.xaxis.set_major_formatter(module("matplotlib.ticker").EngFormatter(unit="B"))
    figure.legend(loc="outside lower center", ncols=min(6, len(group.methods)))
    return figure


def _gains(group: Group, style: Style) -> Any:
    found = [(method, gain) for method in group.ranked if (gain := group.gain(method)) is not None]
    if not found:
        return None
    figure = _figure(7.0, 3.6)
    every, bars = figure.subplots(1, 2)
    for method, gain in found:
        values = np.sort(gain.per_client[~np.isnan(gain.per_client)])[::-1]
        share = 100 * (np.arange(len(values)) + 0.5) / len(values)
        every.plot(share, 100 * values, lw=1.4, label=method.label, **_line(style, method))
    every.axhline(0, color="black", lw=0.8)
    every.set(xlabel="share of the clients in %", ylabel="gain over Local in points")
    leader, gain = found[0]
    order = np.argsort(-gain.per_client)
    order = order[~np.isnan(gain.per_client[order])]
    values = 100 * gain.per_client[order]
    colours = np.where(values >= 0, BLUE, VERMILLION)
    bars.bar(np.arange(len(order)), values, color=colours, width=0.85)
    bars.axhline(0, color="black", lw=0.8)
    bars.set(xlabel="client, by gain", ylabel="gain in points", title=leader.label)
    sizes = bars.twinx()
    sizes.plot(group.clients.n_train[order], ".", color=GREY, ms=4)
    sizes.set_ylabel("training samples (dots)")
    sizes.grid(visible=False)
    sizes.spines["right"].set_visible(True)
    if len(order) <= 30:
        bars.set_xticks(range(len(order)), [group.clients.names[i] for i in order], rotation=90)
    figure.legend(loc="outside lower center", ncols=min(6, len(found)))
    return figure


def _partition(group: Group, _: Style) -> Any:
    clients = group.clients
    order = np.argsort(-clients.n_train, kind="stable")
    if clients.counts is None:
        figure = _figure(7.0, 2.6)
        axes = figure.subplots()
        at = np.arange(len(order))
        axes.bar(at, clients.n_train[order], color=BLUE, width=0.85, label="training")
        axes.bar(
            at,
            clients.n_test[order],
            bottom=clients.n_train[order],
            color="#56B4E9",
            width=0.85,
            label="test",
        )
        axes.legend()
        axes.set(xlabel="client, by size", ylabel="samples")
    else:
        held = np.ma.masked_equal(clients.counts[order].T, 0)
        classes = len(clients.class_names)
        figure = _figure(7.0, min(9.0, max(2.6, 0.6 + 0.16 * classes)))
        axes = figure.subplots()
        _image(figure, axes, held, SEQUENTIAL, "samples")
        if classes <= 40:
            axes.set_yticks(range(classes), clients.class_names)
        axes.set(xlabel="client, by size", ylabel="class")
    if len(order) <= 50:
        axes.set_xticks(range(len(order)), [clients.names[i] for i in order], rotation=90)
    return figure


def _matrices(group: Group) -> dict[str, Any]:
    """One figure per method with a matrix, of its first seed."""
    found = {}
    for method in group.methods:
        run = method.runs[method.seeds[0]]
        helps = group.helpfulness(method, run)
        if helps is None or run.alpha is None:
            continue
        n = group.clients.n_train
        figure = _figure(7.4, 3.9)
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
    """The change of A, clients by size; pairs that never met are left blank."""
    n = group.clients.n_train
    order = np.argsort(-n, kind="stable")
    size = -(-len(n) // MAX_CLIENTS)
    change: Any = pairs.blocks(order, size)
    top = pairs.scale(change)
    if size == 1:
        met = np.zeros((len(n), len(n)), dtype=bool)
        met[pairs.row, pairs.column] = True
        change = np.ma.masked_where(~met[np.ix_(order, order)], change)
    _image(figure, axes, change, DIVERGING, "change of A", limit=top)
    axes.set_aspect("equal")
    axes.set(xlabel="client j, by size", ylabel="client i, by size")
    ticks = range(len(n)) if len(n) <= 30 else ()
    names = [group.clients.names[order[k]] for k in ticks]
    axes.set_xticks(ticks, names, rotation=90, fontsize=6)
    axes.set_yticks(ticks, names, fontsize=6)


def _image(
    figure: Any,
    axes: Any,
    values: Any,
    scale: Sequence[Sequence[Any]],
    label: str,
    limit: float | None = None,
) -> None:
    colours = [(at, colour) for at, colour in scale]
    colormap = module("matplotlib.colors").LinearSegmentedColormap.from_list(label, colours)
    axes.grid(visible=False)
    axes.set_facecolor(GAP)
    bounds = {} if limit is None else {"vmin": -limit, "vmax": limit}
    shown = axes.imshow(values, cmap=colormap, aspect="auto", interpolation="nearest", **bounds)
    figure.colorbar(shown, ax=axes, label=label, shrink=0.8 if limit else 1)


def _percent(values: Sequence[float]) -> Floats:
    scaled: Floats = 100 * np.asarray(values, dtype=np.float64)
    return scaled
