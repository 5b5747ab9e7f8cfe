"""What a method is in a comparison: the baseline, another's control, or a method on trial.

Colours, notes and captions ask for the role; which method has it, the run itself says.
"""

from __future__ import annotations

from pgfed.results.comparison import Group, Method

YARDSTICK = "fedavg"  # bytes and speeds are told as multiples of its own


def is_baseline(method: Method) -> bool:
    """Whether gains are gains over it."""
    return method.about.role == "baseline"


def controls(group: Group) -> dict[str, str]:
    """The label of each method whose control is in the run -> the control's."""
    found = {method.label: group.control(method) for method in group.methods}
    return {label: control.label for label, control in found.items() if control is not None}


def yardstick(group: Group) -> Method | None:
    """The method of which bytes and speeds are told as multiples."""
    return next((method for method in group.methods if method.name == YARDSTICK), None)
