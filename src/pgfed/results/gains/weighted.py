"""Metrics over many resamples at once: each sample counts as often as it was drawn.

As `pgfed.model.scoring` computes them over one set, in arrays: `weights` are resamples x samples,
and each function gives one number per resample, NaN where the metric is undefined there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.model.metrics import RECALL_AT
from pgfed.model.scoring import BINS, HALF
from pgfed.results.statistics import Floats

Array = NDArray[Any]
EPSILON = float(np.finfo(np.float64).eps)


def mean(values: Array, weights: Floats) -> Floats:
    """The weighted mean of one number per sample."""
    return _ratio(weights @ values, weights.sum(axis=1))


# -- classes ------------------------------------------------------------------------------------


def of_classes(
    name: str, probability: Array, y: Array, weights: Floats, positive: int | None
) -> Floats | None:
    """A metric of one class per sample; None if it is not one that is known here."""
    predicted = probability.argmax(axis=1)
    right = (predicted == y).astype(np.float64)
    if name == "accuracy":
        return mean(right, weights)
    if name == "balanced-accuracy":
        return _mean_of([_ratio(weights @ (right * (y == k)), weights @ (y == k)) for k in _of(y)])
    if name == "f1":
        if positive is not None:
            return np.nan_to_num(_f1(predicted == positive, y == positive, weights))
        both = np.union1d(y, predicted)
        return _mean_of([_f1(predicted == k, y == k, weights) for k in both])
    if name == "log-loss":
        own = probability[np.arange(len(y)), y]
        return mean(-np.log(np.clip(own, EPSILON, 1 - EPSILON)), weights)
    if name == "calibration-error":
        confidence = probability.max(axis=1)
        bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        inside = bins[:, None] == np.arange(BINS)
        gap = weights @ ((confidence - right)[:, None] * inside)
        return _ratio(np.abs(gap).sum(axis=1), weights.sum(axis=1))
    if (rank := _ranked(name)) is None:
        return None
    classes = _of(y) if positive is None else [positive]
    return _mean_of([rank(y == k, probability[:, k], weights) for k in classes])


def _of(y: Array) -> list[int]:
    found: list[int] = np.unique(y).tolist()
    return found


def _f1(predicted: Array, y: Array, weights: Floats) -> Floats:
    """NaN where it neither occurs nor is predicted."""
    hits = weights @ (predicted & y)
    return _ratio(2 * hits, weights @ predicted + weights @ y)


# -- several labels, numbers ---------------------------------------------------------------------


def of_labels(name: str, probability: Array, y: Array, weights: Floats) -> Floats | None:
    """A metric of several labels per sample; None if it is not one that is known here."""
    predicted, true = probability >= HALF, y > HALF
    labels = range(y.shape[1])
    if name == "accuracy":
        return mean((predicted == true).mean(axis=1), weights)
    if name == "f1":
        return _mean_of([_f1(predicted[:, k], true[:, k], weights) for k in labels])
    if name == "log-loss":
        inside = np.clip(probability, 1e-12, 1 - 1e-12)
        return mean(-np.log(np.where(true, inside, 1 - inside)).mean(axis=1), weights)
    if (rank := _ranked(name)) is None:
        return None
    return _mean_of([rank(true[:, k], probability[:, k], weights) for k in labels])


def of_values(name: str, predicted: Array, y: Array, weights: Floats) -> Floats | None:
    """A metric of one or several numbers per sample; None if it is not one that is known here."""
    error = predicted - y
    columns = range(y.shape[1])
    if name == "mae":
        return mean(np.abs(error).mean(axis=1), weights)
    if name == "rmse":
        roots = [np.sqrt(mean(error[:, k] ** 2, weights)) for k in columns]
        return _mean_of(roots)
    if name == "median-error":
        return _mean_of([_median(np.abs(error[:, k]), weights) for k in columns])
    if name == "r2":
        each = np.array([_r2(error[:, k], y[:, k], weights) for k in columns])
        return np.asarray(each.mean(axis=0), dtype=np.float64)  # undefined if one of them is
    return None


def _r2(error: Array, y: Array, weights: Floats) -> Floats:
    centred = y - y.mean()  # for accuracy: what follows is a difference of large numbers
    spread = mean(centred**2, weights) - mean(centred, weights) ** 2
    constant = spread <= 1e-12 * float(np.max(centred**2, initial=0.0))
    return np.where(constant, np.nan, 1 - _ratio(mean(error**2, weights), spread))


def _median(values: Array, weights: Floats) -> Floats:
    """Of the samples as often as they were drawn; of an even number the middle of two."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[:, order], axis=1)
    half = reached[:, -1:] / 2
    lower = values[order][(reached >= half).argmax(axis=1)]
    upper = values[order][(reached > half).argmax(axis=1)]
    return np.asarray((lower + upper) / 2, dtype=np.float64)


# -- one against the rest: by rank ---------------------------------------------------------------

Rank = Callable[[Array, Array, Floats], Floats]


def _ranked(name: str) -> Rank | None:
    if name == "auc":
        return _auc
    if name == "average-precision":
        return _average_precision
    if found := RECALL_AT.fullmatch(name):
        precision = float(found[1])
        return lambda y, score, weights: _recall_at(precision, y, score, weights)
    return None


def _called(y: Array, score: Array, weights: Floats) -> tuple[Floats, Floats]:
    """Rightly and wrongly called positive, by ever lower thresholds; the first calls nobody.

    NaN where there are no positives or no negatives.
    """
    order = np.argsort(-score, kind="stable")
    drawn = weights[:, order]
    last = np.append(np.diff(score[order]) != 0, True)  # equal scores are called together
    hits = np.cumsum(drawn * y[order], axis=1)[:, last]
    called = np.cumsum(drawn, axis=1)[:, last]
    start = np.zeros((len(weights), 1))
    right, wrong = np.hstack([start, hits]), np.hstack([start, called - hits])
    undefined = (right[:, -1] == 0) | (wrong[:, -1] == 0)
    right[undefined] = np.nan
    return right, wrong


def _auc(y: Array, score: Array, weights: Floats) -> Floats:
    right, wrong = _called(y, score, weights)
    area = ((right[:, 1:] + right[:, :-1]) / 2 * np.diff(wrong, axis=1)).sum(axis=1)
    return _ratio(area, right[:, -1] * wrong[:, -1])


def _average_precision(y: Array, score: Array, weights: Floats) -> Floats:
    right, wrong = _called(y, score, weights)
    precision = _ratio(right[:, 1:], right[:, 1:] + wrong[:, 1:])
    gained = np.diff(right, axis=1) * np.where(np.diff(right, axis=1) == 0, 0.0, precision)
    return _ratio(gained.sum(axis=1), right[:, -1])


def _recall_at(precision: float, y: Array, score: Array, weights: Floats) -> Floats:
    right, wrong = _called(y, score, weights)
    enough = _ratio(right, right + wrong) >= precision - 1e-12  # where nobody is called: not so
    best = np.where(enough, right, 0.0).max(axis=1)
    return np.where(np.isnan(right[:, -1]), np.nan, _ratio(best, right[:, -1]))


# -- small helps ---------------------------------------------------------------------------------


def _ratio(a: Array, b: Array) -> Floats:
    """NaN where b is zero."""
    above = np.asarray(a, dtype=np.float64)
    found: Floats = np.divide(above, b, out=np.full(above.shape, np.nan), where=np.asarray(b) != 0)
    return found


def _mean_of(parts: list[Floats]) -> Floats:
    """Over the parts that are defined, resample by resample."""
    each = np.array(parts)
    known = ~np.isnan(each)
    return _ratio(np.where(known, each, 0.0).sum(axis=0), known.sum(axis=0))
