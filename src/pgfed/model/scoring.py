"""How the metrics of `pgfed.model.metrics` are computed: over one client's whole set at once.

None where a metric is undefined, as AUC is with one class only, or whatever needs the numbers of a
model that gives none. Definitions are scikit-learn's, which is slow to import and so imported when
it is needed.
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
    from sklearn import metrics

    if name == "accuracy":
        return float(np.mean(predicted == y))
    if name == "balanced-accuracy":
        present = np.unique(y)  # a class that is only predicted has no recall
        return float(metrics.recall_score(y, predicted, labels=present, average="macro"))
    if name == "f1":
        if positive is None:
            return float(metrics.f1_score(y, predicted, average="macro"))
        return float(metrics.f1_score(y == positive, predicted == positive, zero_division=0.0))
    if not np.isfinite(probability).all():  # a model that diverged
        return None
    if name == "log-loss":
        classes = np.arange(probability.shape[1])
        return float(metrics.log_loss(y, probability, labels=classes))
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


def _auc(y: Array, score: Array) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, score)) if 0 < y.sum() < len(y) else None


def _average_precision(y: Array, score: Array) -> float | None:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(y, score)) if 0 < y.sum() < len(y) else None


def _recall_at(precision: float) -> Callable[[Array, Array], float | None]:
    """The highest recall at which so many of those that are called positive are so."""

    def recall(y: Array, score: Array) -> float | None:
        from sklearn.metrics import precision_recall_curve

        if not 0 < y.sum() < len(y):
            return None
        precisions, recalls, _ = precision_recall_curve(y, score)
        # The curve's last point calls nobody positive: recall 0, which is always there.
        return float(recalls[precisions >= precision - 1e-12].max())

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
    from sklearn.metrics import f1_score

    occurs = np.flatnonzero((y > HALF).any(0) | predicted.any(0))
    if not len(occurs):
        return None
    each = f1_score(y[:, occurs] > HALF, predicted[:, occurs], average=None, zero_division=0.0)
    return float(np.mean(each))


# -- numbers -----------------------------------------------------------------------------------


def of_values(names: Sequence[str], predicted: Array, y: Array) -> dict[str, float | None]:
    """Metrics of one or several numbers per sample (samples x targets), in the targets' units."""
    from sklearn import metrics

    if not len(y) or not np.isfinite(predicted).all():
        return dict.fromkeys(names)
    compute: dict[str, Callable[[Array, Array], float]] = {
        "mae": metrics.mean_absolute_error,
        "rmse": metrics.root_mean_squared_error,
        "median-error": metrics.median_absolute_error,
        "r2": metrics.r2_score,
    }
    constant = len(y) < 2 or bool((np.ptp(y, axis=0) == 0).any())
    return {
        name: None if name == "r2" and constant else float(compute[name](y, predicted))
        for name in names
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
