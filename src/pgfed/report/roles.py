"""What a method is in a comparison: the baseline, another's control, or a method on trial.

All that the report knows of single methods is here; colours, notes and captions ask for the role.
"""

from __future__ import annotations

from pgfed.results.comparison import FAMILY, Group, Method
from pgfed.results.sentence import CONTROL

CONTROL_IS = f"{CONTROL} is PGFed with mu = 0"  # for captions


def is_baseline(method: Method) -> bool:
    """Whether gains are gains over it."""
    return method.base == "local"


def is_control(method: Method) -> bool:
    """Whether it is made to be another's control, be that one in the run or not."""
    return method.base == CONTROL


def has_control(method: Method) -> bool:
    """Whether there is a control for it, be that one in the run or not."""
    return method.base in FAMILY


def controls(group: Group) -> dict[str, str]:
    """The label of each method whose control is in the run -> the control's."""
    found = {method.label: group.control(method) for method in group.methods}
    return {label: control.label for label, control in found.items() if control is not None}


def yardstick(group: Group) -> Method | None:
    """The method of which bytes and speeds are told as multiples."""
    return next((method for method in group.methods if method.name == "fedavg"), None)
