"""Methods against each other."""

from __future__ import annotations

from typing import Any

from pgfed.model.metrics import Metric
from pgfed.report.figures.specification import (
    Figure,
    Panel,
    Style,
    Trace,
    layout_of,
    plain,
    rounded,
    spec,
)
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import factor, gain, points
from pgfed.results.statistics import Comparison
from pgfed.results.verdict import judge


def differences(group: Group, style: Style) -> Figure | None:
    """Every method minus a chosen one, with paired intervals; controls can be chosen first."""
    if len(group.ranked) < 2:
        return None
    leader, *others = group.ranked
    found = [group.compare(leader, method) for method in others]
    clear = sum(one is not None and one.clear for one in found)
    standing = f"{leader.label} is clear of {clear} of the {len(others)} others."
    if not judge(group).comparable:
        standing = "The run gives no verdict: nothing is to be read from them yet."
    caption = (
        f"Difference of the kept models' {group.metric.title}, paired over clients and seeds, with "
        f"its 95 % interval. One that crosses zero says: not told apart. {standing}"
    )
    panel = Panel(
        "Differences between methods with intervals",
        [_against(reference, group, style) for reference in references(group)],
        height=110 + 34 * len(group.ranked),
    )
    views = [f"minus {reference.label}" for reference in references(group)]
    return Figure("differences", "", caption, views, [panel])


def references(group: Group) -> list[Method]:
    """What methods are held against, controls first."""
    return sorted(group.ranked, key=lambda method: not group.is_control(method))


def _against(reference: Method, group: Group, style: Style) -> dict[str, Any]:
    """All others minus this one, the best at the top."""
    others = [method for method in reversed(group.ranked) if method is not reference]
    found = [(method, group.compare(method, reference)) for method in others]
    layout = layout_of(better_than(reference, group.metric), "")
    layout["xaxis"] |= {"zeroline": True}
    layout["yaxis"] |= {"type": "category"}
    return spec(
        [_interval(m, one, style[m.label][0], group.metric) for m, one in found if one], layout
    )


def better_than(reference: Method, metric: Metric) -> str:
    """The title of the axis."""
    name = plain(reference.label)
    if metric.unit == "share":
        return f"points more than {name}"
    return f"{metric.title}: by how much better than {name}"


def _interval(method: Method, found: Comparison, colour: str, metric: Metric) -> Trace:
    low, mean, high = (factor(metric) * v for v in (found.low, found.mean, found.high))
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": method.label,
        "x": rounded([mean], 5),
        "y": [plain(method.label)],
        "marker": {"color": colour, "size": 10},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": rounded([high - mean], 5),
            "arrayminus": rounded([mean - low], 5),
            "color": colour,
            "thickness": 2,
            "width": 5,
        },
        "hovertemplate": f"%{{y}}: {gain(found.mean, metric, 2)}{points(metric)}, "
        f"{gain(found.low, metric, 2)} to {gain(found.high, metric, 2)}<extra></extra>",
    }
