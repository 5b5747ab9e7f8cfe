"""How the metrics of `pgfed.model.metrics` are computed: over one client's whole set at once.

None where a metric is undefined, as AUC is with one class only, or whatever needs the numbers of a
model that gives none. Definitions are scikit-learn's, which takes a second to import and then a
millisecond for each number, most of it checks: with many clients longer than their training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.model.metrics import RECALL_AT, label_auc

Array = NDArray[Any]

BINS = 15  # of the calibration error
HALF = 0.5  # probability from which on a label is predicted


# -- classes ------------------------------------------------------------------------------------


def of_classes(
    names: Sequence[str], probability: Array, y: Array, positive: int | None = None
) -> dict[str, float | None]:
    """Metrics of one class per sample: probabilities (samples x classes), true classes.

    Without ``positive`` each class is held against the rest, and the mean is taken over the classes
    for which that is defined.
    """
    if not len(y):
        return dict.fromkeys(names)
    predicted = probability.argmax(1)
    found: dict[str, float | None] = {
        name: _decided(name, predicted, y, positive) for name in names if name in _DECIDED
    }
    if len(found) == len(names) or not np.isfinite(probability).all():  # a model that diverged
        return {name: found.get(name) for name in names}
    if "log-loss" in names:
        least = np.finfo(np.float64).eps
        given = probability[np.arange(len(y)), y]
        found["log-loss"] = float(-np.mean(np.log(np.clip(given, least, 1 - least))))
    if "calibration-error" in names:
        found["calibration-error"] = calibration_error(probability.max(1), predicted == y)
    by_rank = [name for name in names if name not in found]
    if by_rank:
        classes = np.unique(y) if positive is None else np.array([positive])
        ranking = Ranking(y[:, None] == classes, probability[:, classes])
        found |= {name: _mean(ranking.told(name)) for name in by_rank}
    return {name: found[name] for name in names}


_DECIDED = ("accuracy", "balanced-accuracy", "f1")  # of what is predicted alone


def _decided(name: str, predicted: Array, y: Array, positive: int | None) -> float:
    if name == "accuracy":
        return float(np.mean(predicted == y))
    if name == "f1" and positive is not None:
        return _f1(y == positive, predicted == positive)
    classes = max(int(y.max()), int(predicted.max())) + 1
    there, said, right = (
        np.bincount(some, minlength=classes) for some in (y, predicted, y[predicted == y])
    )
    if name == "balanced-accuracy":  # a class that is only predicted has no recall
        return float(np.mean(right[there > 0] / there[there > 0]))
    occurs = there + said > 0
    return float(np.mean(2 * right[occurs] / (there + said)[occurs]))


def calibration_error(confidence: Array, right: Array) -> float:
    """Mean distance of confidence and accuracy over bins of confidence, weighted by their size."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bins, confidence - right, minlength=BINS)
    return float(np.abs(gap).sum() / len(confidence))


# -- one against the rest: by rank ----------------------------------------------------------------


def _f1(y: Array, called: Array) -> float:
    right, wrong = int((y & called).sum()), int((y != called).sum())
    return 2 * right / (2 * right + wrong) if right else 0.0


class Ranking:
    """Samples by their scores, the highest first, in each of several columns by itself; ``y`` is
    whether they are positive (samples x columns). A threshold calls all above it positive."""

    def __init__(self, y: Array, score: Array) -> None:
        order = np.argsort(-score, axis=0, kind="stable")
        ranked = np.take_along_axis(score, order, 0)
        self._called = np.arange(1, len(y) + 1)[:, None]  # so many, of which so many are right
        self._right = np.cumsum(np.take_along_axis(y, order, 0), 0)
        # A threshold lies where the score changes: those of equal score are called together.
        self._at = np.ones(y.shape, dtype=bool)
        self._at[:-1] = ranked[1:] != ranked[:-1]
        self._positive = self._right[-1]
        self._defined = (self._positive > 0) & (self._positive < len(y))

    def told(self, name: str) -> list[float | None]:
        """The metric of each column; None where all are positive, or nobody is."""
        if not self._defined.any():
            return [None] * len(self._defined)
        if name == "auc":
            found = self._auc()
        elif name == "average-precision":
            found = self._average_precision()
        else:
            found = self._recall_at(float(RECALL_AT.fullmatch(name)[1]))  # type: ignore[index]
        return [
            float(one) if known else None for one, known in zip(found, self._defined, strict=True)
        ]

    def _auc(self) -> Array:
        right, wrong = self._right, self._called - self._right
        width, height = wrong - self._before(wrong), right + self._before(right)
        area = np.where(self._at, width * height, 0).sum(0) / 2
        return np.asarray(area / np.maximum(right[-1] * wrong[-1], 1))

    def _average_precision(self) -> Array:
        gained = self._right - self._before(self._right)
        each = np.where(self._at, self._right / self._called * gained, 0.0)
        return np.asarray(each.sum(0) / np.maximum(self._positive, 1))

    def _recall_at(self, precision: float) -> Array:
        """The highest recall at which so many of those that are called positive are so."""
        enough = self._at & (self._right / self._called >= precision - 1e-12)
        most = np.where(enough, self._right, 0).max(0)
        return np.asarray(most / np.maximum(self._positive, 1))

    def _before(self, counts: Array) -> Array:
        """The count, which never falls, at the threshold before."""
        reached = np.maximum.accumulate(np.where(self._at, counts, 0))
        return np.concatenate([np.zeros_like(reached[:1]), reached[:-1]])


# -- several labels at once ---------------------------------------------------------------------


def of_labels(
    names: Sequence[str], probability: Array, y: Array, labels: Sequence[str]
) -> dict[str, float | None]:
    """Metrics of several labels per sample (samples x labels); also each label's own AUC."""
    if not len(y):
        return dict.fromkeys(names)
    found: dict[str, float | None] = {}
    predicted = probability >= HALF
    diverged = not np.isfinite(probability).all()
    ranked = Ranking(y > HALF, probability)
    for name in names:
        if diverged and name in ("auc", "average-precision", "log-loss"):
            found[name] = None
        elif name in ("auc", "average-precision"):
            each = ranked.told(name)
            found[name] = _mean(each)
            if name == "auc":
                found |= {label_auc(label): one for label, one in zip(labels, each, strict=True)}
        elif name == "accuracy":
            found[name] = float(np.mean(predicted == y))
        elif name == "f1":
            found[name] = _f1_of_labels(predicted, y)
        else:
            inside = np.clip(probability, 1e-12, 1 - 1e-12)
            found[name] = float(-np.mean(np.log(np.where(y > HALF, inside, 1 - inside))))
    return found


def _f1_of_labels(predicted: Array, y: Array) -> float | None:
    """The mean over the labels that occur or are predicted."""
    occurs = np.flatnonzero((y > HALF).any(0) | predicted.any(0))
    if not len(occurs):
        return None
    return float(np.mean([_f1(y[:, k] > HALF, predicted[:, k]) for k in occurs]))


# -- numbers -----------------------------------------------------------------------------------


def of_values(names: Sequence[str], predicted: Array, y: Array) -> dict[str, float | None]:
    """Metrics of one or several numbers per sample (samples x targets), in the targets' units."""
    if not len(y) or not np.isfinite(predicted).all():
        return dict.fromkeys(names)
    constant = len(y) < 2 or bool((np.ptp(y, axis=0) == 0).any())
    return {
        name: None if name == "r2" and constant else float(np.mean(_VALUES[name](y, predicted)))
        for name in names
    }


# Of each target; what is told is their mean.
_VALUES: dict[str, Callable[[Array, Array], Array]] = {
    "mae": lambda y, predicted: np.abs(predicted - y).mean(0),
    "rmse": lambda y, predicted: np.sqrt(np.square(predicted - y).mean(0)),
    "median-error": lambda y, predicted: np.median(np.abs(predicted - y), axis=0),
    "r2": lambda y, predicted: (
        1 - np.square(predicted - y).sum(0) / np.square(y - y.mean(0)).sum(0)
    ),
}


# -- masks -------------------------------------------------------------------------------------


def overlap(predicted: Array, y: Array, classes: int) -> tuple[Array, Array]:
    """(Dice, IoU) of each sample: the mean over the classes but the first, the background.

    Of a sample only the classes count that it holds or is said to hold; one with neither is
    right: 1.
    """
    n = len(y)
    flat_y, flat_p = y.reshape(n, -1), predicted.reshape(n, -1)
    dice, iou = np.ones(n), np.ones(n)
    both = np.stack([((flat_y == k) & (flat_p == k)).sum(1) for k in range(1, classes)], axis=1)
    size = np.stack([(flat_y == k).sum(1) + (flat_p == k).sum(1) for k in range(1, classes)], 1)
    counted = size > 0
    some = counted.any(1)
    shares = 2 * both / np.maximum(size, 1), both / np.maximum(size - both, 1)
    for out, share in zip((dice, iou), shares, strict=True):
        out[some] = (share * counted).sum(1)[some] / counted.sum(1)[some]
    return dice, iou


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
