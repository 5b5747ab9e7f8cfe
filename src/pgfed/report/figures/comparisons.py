"""Methods against each other."""

from __future__ import annotations

from typing import Any

from pgfed.report.figures.specification import (
    Figure,
    Panel,
    Style,
    Trace,
    layout_of,
    plain,
    round_to,
    spec,
)
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import signed
from pgfed.results.statistics import Comparison


def differences(group: Group, style: Style) -> Figure | None:
    """Every method minus a chosen one, with paired intervals; controls can be chosen first."""
    if len(group.ranked) < 2:
        return None
    leader, *others = group.ranked
    references = sorted(group.ranked, key=lambda method: not group.is_control(method))
    found = [group.compare(leader, method) for method in others]
    clear = sum(one is not None and one.clear for one in found)
    caption = (
        "Difference of the last-10 accuracy, paired over clients and seeds, with its 95 % "
        "interval. One that crosses zero says: not told apart. "
        f"{leader.label} is clear of {clear} of the {len(others)} others."
    )
    panel = Panel(
        "Differences between methods with intervals",
        [_against(reference, group, style) for reference in references],
        height=110 + 34 * len(group.ranked),
    )
    views = [f"minus {reference.label}" for reference in references]
    return Figure("differences", "", caption, views, [panel])


def _against(reference: Method, group: Group, style: Style) -> dict[str, Any]:
    """All others minus this one, the best at the top."""
    others = [method for method in reversed(group.ranked) if method is not reference]
    found = [(method, group.compare(method, reference)) for method in others]
    layout = layout_of(f"points more than {plain(reference.label)}", "")
    layout["xaxis"] |= {"zeroline": True}
    layout["yaxis"] |= {"type": "category"}
    return spec([_interval(m, one, style[m.label][0]) for m, one in found if one], layout)


def _interval(method: Method, found: Comparison, colour: str) -> Trace:
    low, mean, high = 100 * found.low, 100 * found.mean, 100 * found.high
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": method.label,
        "x": [round_to(mean, 3)],
        "y": [plain(method.label)],
        "marker": {"color": colour, "size": 10},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [round_to(high - mean, 3)],
            "arrayminus": [round_to(mean - low, 3)],
            "color": colour,
            "thickness": 2,
            "width": 5,
        },
        "hovertemplate": f"%{{y}}: {signed(found.mean, 2)} points, "
        f"{signed(found.low, 2)} to {signed(found.high, 2)}<br>{found.better} clients "
        f"better, {found.worse} worse, {found.equal} equal<extra></extra>",
    }
