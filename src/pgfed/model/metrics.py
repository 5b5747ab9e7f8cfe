"""The numbers a task is judged by: what they are called, and which way is better.

How they are computed is in `pgfed.model.scoring`; reports know metrics by their description alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pgfed.errors import UserError, unknown

Kind = Literal["classes", "binary", "multilabel", "regression", "segmentation"]
Unit = Literal["share", "number", "target"]  # percent; a plain number; the target's own unit


@dataclass(frozen=True)
class Metric:
    """A metric as files and people know it."""

    name: str
    title: str  # in a sentence
    more_is_better: bool = True
    low: float = 0.0
    high: float = 1.0
    unit: Unit = "number"

    @property
    def sign(self) -> int:
        """Times a difference: above zero is better."""
        return 1 if self.more_is_better else -1

    @property
    def bounded(self) -> bool:
        """Where not, a mean over clients can be owned by one of them."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def better(self, a: float, b: float) -> bool:
        """Whether a is better than b."""
        return self.sign * (a - b) > 0


ACCURACY = Metric("accuracy", "accuracy", unit="share")

METRICS = {
    metric.name: metric
    for metric in (
        ACCURACY,
        Metric("balanced-accuracy", "balanced accuracy", unit="share"),
        Metric("auc", "AUC"),
        Metric("average-precision", "average precision"),
        Metric("f1", "F1"),
        Metric("log-loss", "log loss", more_is_better=False, high=math.inf),
        Metric("calibration-error", "calibration error", more_is_better=False),
        Metric("mae", "mean absolute error", more_is_better=False, high=math.inf, unit="target"),
        Metric("rmse", "root mean squared error", False, 0.0, math.inf, "target"),
        Metric("r2", "R²", low=-math.inf),
        Metric("median-error", "median absolute error", False, 0.0, math.inf, "target"),
        Metric("dice", "Dice"),
        Metric("iou", "IoU"),
    )
}
RECALL_AT = re.compile(r"recall@precision=(0?\.\d{1,4}|1(?:\.0+)?)")
RECALL = "recall@precision=P"

# The first is the primary one unless the experiment says otherwise.
BY_KIND: dict[Kind, tuple[str, ...]] = {
    "classes": (
        *("accuracy", "balanced-accuracy", "auc", "average-precision", "f1"),
        *("log-loss", "calibration-error"),
    ),
    "binary": (
        *("auc", "accuracy", "balanced-accuracy", "average-precision", "recall@precision=0.9"),
        *("f1", "log-loss", "calibration-error"),
    ),
    "multilabel": ("auc", "average-precision", "f1", "accuracy", "log-loss"),
    "regression": ("r2", "mae", "rmse", "median-error"),
    "segmentation": ("dice", "iou", "accuracy"),
}


def find(name: str) -> Metric:
    """A metric by its name; `recall@precision=P` for any P."""
    if name in METRICS:
        return METRICS[name]
    if found := RECALL_AT.fullmatch(name):
        title = f"recall at a precision of {float(found[1]):g}"
        return Metric(name, title, unit="share")
    raise unknown("task.metric", name, [*METRICS, RECALL])


def described(name: str) -> Metric:
    """As `find`; of one that only its own objective knows, the name."""
    if name in METRICS or RECALL_AT.fullmatch(name):
        return find(name)
    return Metric(name, name, low=-math.inf, high=math.inf)


def label_auc(label: str) -> str:
    """What the AUC of one label is called in files."""
    return f"auc:{label}"


def label_of(name: str) -> str | None:
    """The label whose AUC this is, if it is that of one label."""
    return name.removeprefix("auc:") if name.startswith("auc:") else None


def check(key: str, name: str, kind: Kind) -> Metric:
    """A metric that tasks of this kind have; ``key`` is named if it is not one."""
    allowed = list(BY_KIND[kind])
    if kind == "binary":
        allowed[allowed.index("recall@precision=0.9")] = RECALL
    if name not in allowed and not (kind == "binary" and RECALL_AT.fullmatch(name)):
        raise unknown(key, name, allowed)
    return find(name)


def check_unique(names: Sequence[str]) -> None:
    """Each metric once."""
    for name in names:
        if list(names).count(name) > 1:
            raise UserError(f"task.metrics: found {name!r} twice; allowed: each metric once")
