"""What the interactive figures are made of: plotly specifications as plain dictionaries.

A figure has views to choose from, and one or more panels that show the chosen view. A trace that
is about one method carries its label in `meta`, so that the page can hide the method everywhere;
points that are about one client carry its number in `customdata`, so that it can be picked.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.report import roles
from pgfed.report.figures.colours import BLUE, GREY, PALETTE, VERMILLION
from pgfed.results.comparison import Group
from pgfed.results.statistics import Ints

Style = dict[str, tuple[str, str]]  # label -> colour and dash
Trace = dict[str, Any]

DASHES = ("solid", "dot", "dashdot", "dash", "longdashdot")
MANY = 8  # methods; beyond, lines in one plot cannot be told apart
NAMED = 60  # clients that a figure names
MAX_CLIENTS = 400  # shown one by one; beyond, blocks and quantiles


@dataclass(frozen=True)
class Panel:
    """One plot; a specification per view."""

    alt: str
    specs: list[dict[str, Any]]
    wide: bool = True
    height: int = 380
    focus: str = ""  # the one method of the first panel's specifications that is shown in colour


@dataclass(frozen=True)
class Figure:
    id: str
    title: str  # empty where the section's heading says it
    caption: str  # what there is to see
    views: list[str]
    panels: list[Panel]
    choose: str = "Show"  # what the choice of a view is called
    legend: list[str] = field(default_factory=list)  # methods that can be hidden


def styles(groups: Sequence[Group]) -> Style:
    """label -> colour and dash, the same in every figure and different for every method.

    By role: the baseline is grey, a control blue and dashed, all others take the palette in turn.
    Methods with one control often lie on one another: their dashes let each be seen through the
    others.
    """
    methods = {method.label: method for group in groups for method in group.methods}
    control = {of: label for group in groups for of, label in roles.controls(group).items()}
    later = [name for group in groups for folder in group.folders for name in folder.new_clients]
    given: Style = {}
    on_trial = 0
    relatives: Counter[str] = Counter()
    for label in dict.fromkeys([*methods, *later]):
        if label in methods and roles.is_baseline(methods[label]):
            colour, dash = GREY, "solid"
        elif label in control.values():
            colour, dash = BLUE, "dash"
        else:
            colour = PALETTE[on_trial % len(PALETTE)]
            dash = DASHES[relatives[control.get(label, label)] % len(DASHES)]
            on_trial += 1
            relatives[control.get(label, label)] += 1
        free = [d for d in DASHES if (colour, d) not in given.values()]
        given[label] = colour, dash if dash in free or not free else free[0]
    return given


def objective_colours(mus: Iterable[float]) -> dict[float, str]:
    """Of the arms of explicit against implicit, by their mu: none of them is a method."""
    palette = (BLUE, VERMILLION, *(colour for colour in PALETTE if colour != VERMILLION))
    return dict(zip(mus, cycle(palette), strict=False))


def spec(
    data: Sequence[Trace],
    layout: dict[str, Any],
    *,
    ends: bool = False,
    heat: str = "",
    height: int = 0,
    aside: str = "",
) -> dict[str, Any]:
    """What a panel shows in a view.

    ``ends``: lines are labelled where they end. ``heat``: what lies behind a heat map's blanks
    ("held" by nobody, never "met"). ``height``: in pixels, where it is not the panel's own.
    ``aside``: the x axis of a half that a narrow screen leaves out.
    """
    more = {"ends": ends, "heat": heat, "height": height, "aside": aside}
    return {"data": list(data), "layout": layout, **{k: v for k, v in more.items() if v}}


def axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False}


def ticks(named: bool) -> dict[str, Any]:
    """Of an axis with a name each, or too many for that."""
    return {} if named else {"showticklabels": False, "ticks": ""}


def layout_of(x: str, y: str) -> dict[str, Any]:
    return {
        "xaxis": axis(x),
        "yaxis": axis(y),
        # plotly hides a last tick label for which there is no room on the right.
        "margin": {"l": 8, "r": 18, "t": 8, "b": 8},
        "hovermode": "closest",
        "showlegend": False,
    }


def colorbar(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0}


def plain(text: str) -> str:
    """Text that plotly shows as it is: it reads a little HTML and %{...} of its own."""
    return html.escape(text).replace("%{", "%&#123;")


def thinned(order: Ints) -> Ints:
    """At most MAX_CLIENTS of them, evenly, first and last included."""
    if len(order) <= MAX_CLIENTS:
        return order
    at = np.linspace(0, len(order) - 1, MAX_CLIENTS).round().astype(np.int64)
    return order[at]


def percents(values: Iterable[float]) -> list[float | None]:
    return [round_to(100 * value, 2) for value in values]


def shown(values: Iterable[float], metric: Metric) -> list[float | None]:
    """Scores as axes have them."""
    if metric.unit == "share":
        return percents(values)
    return [None if math.isnan(v) else float(f"{v:.4g}") for v in values]


def hover(metric: Metric, sign: str = "") -> str:
    """How plotly writes a score, or with its sign a gain."""
    digits = {"share": ".1f", "number": ".3f", "target": ".4g"}[metric.unit]
    return f"%{{y:{sign}{digits}}}" + (" %" if metric.unit == "share" and not sign else "")


def round_to(value: float, digits: int) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(value) else round(float(value), digits)


def rounded(values: Iterable[float], significant: int) -> list[float | None]:
    """Significant digits: bytes and changes per step are far apart in size."""
    return [None if math.isnan(v) else float(f"{v:.{significant}g}") for v in values]
