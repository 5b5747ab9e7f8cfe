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
    return {name: _of_classes(name, probability, predicted, y, positive) for name in names}


def _of_classes(
    name: str, probability: Array, predicted: Array, y: Array, positive: int | None
) -> float | None:
    if name == "accuracy":
        return float(np.mean(predicted == y))
    if name == "balanced-accuracy":  # a class that is only predicted has no recall
        return float(np.mean([np.mean(predicted[y == k] == k) for k in np.unique(y)]))
    if name == "f1":
        if positive is not None:
            return _f1(y == positive, predicted == positive)
        occurs = np.union1d(y, predicted)
        return float(np.mean([_f1(y == k, predicted == k) for k in occurs]))
    if not np.isfinite(probability).all():  # a model that diverged
        return None
    if name == "log-loss":
        least = np.finfo(np.float64).eps
        given = probability[np.arange(len(y)), y]
        return float(-np.mean(np.log(np.clip(given, least, 1 - least))))
    if name == "calibration-error":
        return calibration_error(probability.max(1), predicted == y)
    ranks = _RANKED.get(name) or _recall_at(float(RECALL_AT.fullmatch(name)[1]))  # type: ignore[index]
    classes = np.unique(y) if positive is None else np.array([positive])
    return _mean([ranks(y == k, probability[:, k]) for k in classes])


def calibration_error(confidence: Array, right: Array) -> float:
    """Mean distance of confidence and accuracy over bins of confidence, weighted by their size."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bins, confidence - right, minlength=BINS)
    return float(np.abs(gap).sum() / len(confidence))


# -- one against the rest: by rank ----------------------------------------------------------------


def _f1(y: Array, called: Array) -> float:
    right, wrong = int((y & called).sum()), int((y != called).sum())
    return 2 * right / (2 * right + wrong) if right else 0.0


def _called(y: Array, score: Array) -> tuple[Array, Array] | None:
    """How many are called positive at every threshold, from the strictest on, and how many of them
    are so; None where all are, or nobody is."""
    if not 0 < y.sum() < len(y):
        return None
    order = np.argsort(-score, kind="stable")
    called = np.append(np.flatnonzero(np.diff(score[order])), len(y) - 1) + 1
    return called, np.cumsum(y[order] > HALF)[called - 1]


def _auc(y: Array, score: Array) -> float | None:
    if (found := _called(y, score)) is None:
        return None
    called, right = found
    wrong = called - right
    area = np.sum(np.diff(wrong, prepend=0) * (right + np.append(0, right[:-1]))) / 2
    return float(area / (right[-1] * wrong[-1]))


def _average_precision(y: Array, score: Array) -> float | None:
    if (found := _called(y, score)) is None:
        return None
    called, right = found
    return float(np.sum(right / called * np.diff(right, prepend=0)) / right[-1])


def _recall_at(precision: float) -> Callable[[Array, Array], float | None]:
    """The highest recall at which so many of those that are called positive are so."""

    def recall(y: Array, score: Array) -> float | None:
        if (found := _called(y, score)) is None:
            return None
        called, right = found
        enough = right[right / called >= precision - 1e-12]
        return float(enough.max(initial=0) / right[-1])

    return recall


_RANKED: dict[str, Callable[[Array, Array], float | None]] = {
    "auc": _auc,
    "average-precision": _average_precision,
}


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
    for name in names:
        if diverged and name in ("auc", "average-precision", "log-loss"):
            found[name] = None
        elif name in _RANKED:
            each = [_RANKED[name](y[:, k], probability[:, k]) for k in range(y.shape[1])]
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
