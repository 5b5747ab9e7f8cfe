"""A client's gain in any metric, by drawing its test samples again and again.

The standard error is that of the bootstrap, the interval Student's: with few samples the
bootstrap's own percentiles are too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgfed.model.metrics import ACCURACY, Metric
from pgfed.results.gains import weighted
from pgfed.results.runs import Evidence, RunData
from pgfed.results.statistics import LEVEL, Floats

RESAMPLES = 1_000  # of a client's test samples
EFFORT = 5_000_000  # samples drawn for one method at most, but never fewer than a fifth of these
BLOCK = 4_000_000  # numbers held at a time
SAME = 1e-4  # a metric that is computed again differs by less

Pair = tuple[Evidence, Evidence]  # of the method, and of the baseline


# -- how a metric is computed from evidence ------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """The metric that a run is judged by, from what the models gave."""

    metric: Metric
    kind: str = "classes"
    positive: int | None = None  # of a binary task
    means: Sequence[float] | None = None  # of regression
    scales: Sequence[float] | None = None

    def values(self, evidence: Evidence, client: int, weights: Floats) -> Floats:
        """One for each row of weights. What is not known here is a mean over the samples."""
        part = slice(evidence.offsets[client], evidence.offsets[client + 1])
        if evidence.outputs is not None and evidence.target is not None:
            outputs = evidence.outputs[part].astype(np.float64)
            found = self._computed(outputs, evidence.target[part], weights)
            if found is not None:
                return found
        return weighted.mean(evidence.outcome[part].astype(np.float64), weights)

    def _computed(self, outputs: Floats, target: Any, weights: Floats) -> Floats | None:
        name = self.metric.name
        if not np.isfinite(outputs).all():
            return np.full(len(weights), np.nan)
        if self.kind in ("classes", "binary"):
            return weighted.of_classes(name, _softmax(outputs), target, weights, self.positive)
        if self.kind == "multilabel":
            return weighted.of_labels(name, _sigmoid(outputs), target, weights)
        if self.kind == "regression":
            y = target.reshape(outputs.shape).astype(np.float64)
            scales = np.ones(y.shape[1]) if self.scales is None else np.array(self.scales)
            means = np.zeros(y.shape[1]) if self.means is None else np.array(self.means)
            return weighted.of_values(name, outputs * scales + means, y, weights)
        return None

    def freedom(self, evidence: Evidence, client: int, units: int) -> int:
        """Degrees of freedom of the metric's error: of two classes the smaller one has them."""
        if self.kind != "binary" or evidence.target is None or self.metric.name == ACCURACY.name:
            return units - 1
        part = evidence.target[evidence.offsets[client] : evidence.offsets[client + 1]]
        positives = int((part == self.positive).sum())
        return min(units, positives, len(part) - positives) - 1


def measure_of(data: RunData) -> Measure:
    """What a run is judged by."""
    task, names = data.experiment.task, data.clients.class_names
    positive = None
    if task.kind == "binary":
        positive = names.index(task.positive) if task.positive in names else len(names) - 1
    return Measure(data.metric, task.kind, positive, task.target_means, task.target_scales)


def _softmax(outputs: Floats) -> Floats:
    raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    found: Floats = raised / raised.sum(axis=1, keepdims=True)
    return found


def _sigmoid(outputs: Floats) -> Floats:
    found: Floats = 0.5 * (1 + np.tanh(outputs / 2))  # never overflows
    return found


def resampled(
    pairs: Sequence[Pair],
    each: Floats,
    counts: Any,
    scores: tuple[Floats, Floats],
    measure: Measure,
) -> tuple[Floats, Floats, Floats]:
    """Low, high and p of each client."""
    first = pairs[0][0]
    n_test = np.diff(first.offsets)
    draws = max(RESAMPLES // 5, min(RESAMPLES, EFFORT // max(1, int(n_test.sum()))))
    low, high, p = (np.full(len(each), np.nan) for _ in range(3))
    for i in np.flatnonzero(~np.isnan(each)).tolist():
        chosen = [s for s in range(len(pairs)) if counts[s, i]]
        if not all(
            _same(measure, pairs[s][k], i, float(scores[k][s, i])) for s in chosen for k in (0, 1)
        ):
            continue  # the metric is not what the evidence gives
        error, units = _error(measure, [pairs[s] for s in chosen], i, draws)
        freedom = measure.freedom(first, i, units)
        low[i], high[i], p[i] = _studentized(float(each[i]), error, freedom)
    span = measure.metric.high - measure.metric.low
    return np.maximum(low, -span), np.minimum(high, span), p


def _same(measure: Measure, evidence: Evidence, client: int, score: float) -> bool:
    n = int(np.diff(evidence.offsets)[client])
    found = float(measure.values(evidence, client, np.ones((1, n)))[0])
    return abs(found - score) <= SAME * max(1.0, abs(score))


def _error(measure: Measure, pairs: Sequence[Pair], client: int, draws: int) -> tuple[float, int]:
    """The bootstrap's standard error of the difference, and how many units were drawn from."""
    evidence = pairs[0][0]
    part = slice(evidence.offsets[client], evidence.offsets[client + 1])
    n = part.stop - part.start
    code = np.arange(n)
    if evidence.group is not None:
        code = np.unique(evidence.group[part], return_inverse=True)[1]
    units = int(code.max()) + 1
    if units < 2:
        return float("nan"), units
    rng = np.random.default_rng(n)  # both models see the same draws, here and at a site
    found = []
    for start in range(0, draws, at_once := max(1, BLOCK // n)):
        size = min(at_once, draws - start)
        drawn = rng.multinomial(units, np.full(units, 1 / units), size=size)
        weights: Floats = drawn[:, code].astype(np.float64)
        each = [_difference(measure, pair, client, weights) for pair in pairs]
        found.append(np.mean(each, axis=0))
    differences = np.concatenate(found)
    known = differences[~np.isnan(differences)]  # AUC needs both classes in a resample
    return (float(known.std(ddof=1)) if len(known) > draws // 2 else float("nan")), units


def _difference(measure: Measure, pair: Pair, client: int, weights: Floats) -> Floats:
    first, second = (measure.values(one, client, weights) for one in pair)
    return first - second


def _studentized(gain: float, error: float, freedom: int) -> tuple[float, float, float]:
    """(low, high, p) by Student's t."""
    from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

    if np.isnan(error) or freedom < 1:
        return float("nan"), float("nan"), 1.0
    if error == 0:
        return (gain, gain, 1.0) if gain == 0 else (float("nan"), float("nan"), 1.0)
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    return gain - half, gain + half, float(2 * stdtr(freedom, -abs(gain) / error))
