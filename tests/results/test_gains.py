"""Who gained, and how surely: against exact enumeration, scikit-learn and simulation."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from pgfed.model import scoring
from pgfed.model.metrics import ACCURACY, METRICS, find
from pgfed.results.folder.history import history_of
from pgfed.results.gains import exact, weighted
from pgfed.results.gains.clients import Gain, gain_of
from pgfed.results.gains.resampling import Measure
from pgfed.results.runs import Evidence, SeedRun, Told

# -- right or wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (6, 0), (9, 1), (12, 3), (3, 40)])
def test_mcnemar_is_the_binomial_test_of_the_samples_that_differ(better: int, worse: int) -> None:
    expected = 1.0
    if better + worse:
        expected = float(scipy_stats.binomtest(better, better + worse, 0.5).pvalue)
    found = exact.discordant_p(np.array([better]), np.array([worse]))[0]
    assert found == pytest.approx(expected)
    assert exact.flips_p(np.array([1] * better + [-1] * worse + [0] * 5)) == pytest.approx(expected)


@pytest.mark.parametrize("sums", [[1, 2, 3], [5, -1, 2, 0, 3], [2, 2, 2, 2, 2, 2], [7, -7, 1]])
def test_units_of_several_samples_are_swapped_in_every_way(sums: list[int]) -> None:
    ways = [
        abs(sum(s * v for s, v in zip(signs, sums, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(sums))
    ]
    expected = np.mean([way >= abs(sum(sums)) for way in ways])
    assert exact.flips_p(np.array(sums)) == pytest.approx(expected)


def test_long_sums_are_normal() -> None:
    rng = np.random.default_rng(0)
    sums = rng.integers(-3, 4, 1500)
    shorter = exact.LONGEST
    assert int(np.abs(sums).sum()) < shorter
    counted = exact.flips_p(sums)
    z = abs(sums.sum()) / np.sqrt(float((sums**2).sum()))
    assert counted == pytest.approx(2 * scipy_stats.norm.sf(z), abs=0.01)
    assert exact.flips_p(np.tile(sums, 3)) == pytest.approx(2 * scipy_stats.norm.sf(z * 3**0.5))


def interval(better: int, worse: int, n: int) -> tuple[float, float]:
    sums = np.array([1.0] * better + [-1.0] * worse + [0.0] * (n - better - worse))
    squares = np.array([exact.squares_of(sums, np.ones(n))])
    units = np.array([n])
    low, high = exact.share_interval(units, units, np.array([sums.sum()]), squares)
    return float(low[0]), float(high[0])


def test_the_interval_leaves_out_zero_where_the_test_is_clear() -> None:
    """Nobody is called clear whose own interval holds zero."""
    for n in (6, 10, 25, 100, 1000):
        for better in range(min(n, 40) + 1):
            for worse in range(min(n - better, 40) + 1):
                p = exact.discordant_p(np.array([better]), np.array([worse]))[0]
                low, high = interval(better, worse, n)
                assert low <= (better - worse) / n <= high
                if p <= 0.05:
                    assert low > 0 or high < 0, (better, worse, n)


@pytest.mark.parametrize(
    ("n", "better", "worse"),
    [(20, 0.2, 0.05), (40, 0.1, 0.1), (100, 0.02, 0.01), (300, 0.08, 0.03)],
)
def test_the_interval_covers_the_true_gain(n: int, better: float, worse: float) -> None:
    rng = np.random.default_rng(n)
    drawn = rng.multinomial(n, [better, worse, 1 - better - worse], size=2000)
    covered = [
        low <= better - worse <= high for low, high in (interval(b, w, n) for b, w, _ in drawn)
    ]
    assert np.mean(covered) > 0.94


def test_false_discoveries_are_held_down_over_the_clients() -> None:
    """Benjamini and Hochberg's step-up by hand: the largest k with p(k) <= 0.05 k / n."""
    p = np.array([0.001, 0.2, 0.012, np.nan, 0.04, 0.9])
    found = exact.adjusted(p)
    known = np.sort(p[~np.isnan(p)])
    k = max(i for i in range(1, 6) if known[i - 1] <= 0.05 * i / 5)
    assert np.isnan(found[3])
    assert np.nansum(found <= 0.05) == k == 2
    assert found[4] == pytest.approx(0.04 * 5 / 3)


@pytest.mark.parametrize("n", [0, 1, 2, 57])
def test_false_discoveries_against_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    p = np.round(rng.random(n) ** 3, 2)  # some alike, some 0
    expected = scipy_stats.false_discovery_control(p) if n else p
    np.testing.assert_allclose(exact.adjusted(p), expected, rtol=1e-12)
    assert np.isnan(exact.adjusted(np.full(n, np.nan))).all()


# -- metrics under weights ------------------------------------------------------------------------


def draws(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.multinomial(n, np.full(n, 1 / n), size=6) * 1.0


CLASSES = ("accuracy", "balanced-accuracy", "f1", "log-loss", "calibration-error", "auc")
CLASSES += ("average-precision", "recall@precision=0.6")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("positive", [None, 1])
def test_metrics_of_classes_are_those_of_the_repeated_samples(
    name: str, positive: int | None
) -> None:
    rng = np.random.default_rng(3)
    n, classes = 40, 2 if positive else 3
    p = np.round(rng.dirichlet(np.ones(classes), n), 1) + 1e-3  # with ties
    p /= p.sum(axis=1, keepdims=True)
    y = rng.integers(0, classes, n)
    weights = draws(n, rng)
    found = weighted.of_classes(name, p, y, weights, positive)
    assert found is not None
    for value, w in zip(found, weights, strict=True):
        chosen = np.repeat(np.arange(n), w.astype(int))
        expected = scoring.of_classes([name], p[chosen], y[chosen], positive)[name]
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("name", ["auc", "average-precision", "f1", "accuracy", "log-loss"])
def test_metrics_of_labels(name: str) -> None:
    rng = np.random.default_rng(4)
    n = 30
    p, y = rng.uniform(size=(n, 3)), (rng.uniform(size=(n, 3)) > 0.6).astype(np.float32)
    weights = draws(n, rng)
    found = weighted.of_labels(name, p, y, weights)
    assert found is not None
    for value, w in zip(found, weights, strict=True):
        chosen = np.repeat(np.arange(n), w.astype(int))
        expected = scoring.of_labels([name], p[chosen], y[chosen], list("abc"))[name]
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mae", "rmse", "median-error", "r2"])
@pytest.mark.parametrize("targets", [1, 2])
def test_metrics_of_values(name: str, targets: int) -> None:
    rng = np.random.default_rng(5)
    n = 31
    y = 100 + rng.normal(size=(n, targets))
    predicted = y + rng.normal(size=(n, targets))
    weights = draws(n, rng)
    found = weighted.of_values(name, predicted, y, weights)
    assert found is not None
    for value, w in zip(found, weights, strict=True):
        chosen = np.repeat(np.arange(n), w.astype(int))
        expected = scoring.of_values([name], predicted[chosen], y[chosen])[name]
        assert value == pytest.approx(expected)


def test_where_a_metric_is_undefined_it_is_so() -> None:
    y, score = np.array([True, False, True]), np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])
    weights = np.array([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    found = weighted.of_classes("auc", score, y.astype(int), weights, 1)
    assert found is not None
    assert np.isnan(found[0])
    assert found[1] == 1
    constant = weighted.of_values("r2", np.ones((3, 1)), np.array([[2.0], [3.0], [4.0]]), weights)
    assert constant is not None
    assert np.isnan(constant[0])


# -- clients --------------------------------------------------------------------------------------


def seed_run(method: str, evidence: Evidence | None, scores: np.ndarray, **more: object) -> SeedRun:
    record = {"round": 1, "mean_score": 0.5, "samples": 1, "train_seconds": 1.0, "seconds": 1.0}
    record |= {"bytes_down": 1, "bytes_up": 1, "cohort": [0], "dropped": []}
    each = {"best": scores, "final": scores, "mean": scores}
    return SeedRun(method, 0, history_of([record]), each, evidence=evidence, **more)  # type: ignore[arg-type]


def of_outcomes(
    outcomes: list[np.ndarray], group: np.ndarray | None = None, **more: np.ndarray | None
) -> Evidence:
    offsets = np.cumsum([0, *map(len, outcomes)]).astype(np.int64)
    outcome = np.concatenate(outcomes).astype(np.float32)
    return Evidence(offsets, outcome, more.get("outputs"), more.get("target"), group)


def gain_between(
    a: list[Evidence], b: list[Evidence], scores: tuple[np.ndarray, np.ndarray], measure: Measure
) -> Gain:
    runs = {s: seed_run("pgfed", e, scores[0][s]) for s, e in enumerate(a)}
    alone = {s: seed_run("local", e, scores[1][s]) for s, e in enumerate(b)}
    return gain_of(runs, alone, scores, np.diff(a[0].offsets), measure)


def right_or_wrong(a: Evidence, b: Evidence) -> Gain:
    scores = a.scores()[None], b.scores()[None]
    return gain_between([a], [b], scores, Measure(ACCURACY))


def test_the_counts_behind_a_gain() -> None:
    ones = np.ones
    a = of_outcomes([ones(17), np.r_[ones(20), np.zeros(20)], np.zeros(0), ones(1)])
    b = of_outcomes([np.r_[ones(16), 0], np.r_[np.zeros(3), ones(17), ones(2), np.zeros(18)],
                     np.zeros(0), ones(1)])  # fmt: skip
    gain = right_or_wrong(a, b)
    assert gain.behind(0, "image") == "1 better of 17 images"
    assert gain.behind(1) == "3 better, 2 worse of 40 samples"
    assert gain.behind(3) == "none of 1 sample changed"
    assert gain.statements == ["cannot be told"] * 2 + [None, "cannot be told"]
    assert gain.per_client[0] == pytest.approx(1 / 17)


def test_samples_of_one_patient_count_once() -> None:
    """Eight samples gained are much, unless all are of one patient."""
    a, b = np.r_[np.ones(8), np.ones(24)], np.r_[np.zeros(8), np.ones(24)]
    each = right_or_wrong(of_outcomes([a]), of_outcomes([b]))
    assert each.statements == ["clearly gained"]
    group = np.arange(32) // 8
    grouped = right_or_wrong(of_outcomes([a], group), of_outcomes([b], group))
    assert grouped.p[0] == 1.0
    assert grouped.statements == ["cannot be told"]
    assert grouped.high[0] - grouped.low[0] > 2 * (each.high[0] - each.low[0])


def test_evidence_that_is_not_about_these_scores_is_not_used() -> None:
    a, b = of_outcomes([np.ones(40)]), of_outcomes([np.zeros(40)])
    found = gain_between([a], [b], (np.array([[0.5]]), np.array([[0.4]])), Measure(ACCURACY))
    assert np.isnan(found.p[0])
    assert found.statements == [None]


def test_what_sites_said_is_taken_over_and_adjusted() -> None:
    scores = np.array([[0.9, 0.8, 0.7]]), np.array([[0.6, 0.75, 0.7]])
    column = np.array
    told = Told(column([0.3, 0.05, 0.0]), column([0.2, -0.1, -0.1]), column([0.4, 0.2, 0.1]),
                column([0.0001, 0.4, 1.0]), column([12.0, 3, 0]), column([0.0, 1, 0]))  # fmt: skip
    run = seed_run("pgfed", None, scores[0][0], told=told)
    alone = seed_run("local", None, scores[1][0])
    n = np.full(3, 40)
    found = gain_of({0: run}, {0: alone}, scores, n, Measure(ACCURACY))
    assert found.statements == ["clearly gained", "cannot be told", "cannot be told"]
    assert found.behind(0) == "12 better of 40 samples"
    assert (found.low[1], found.high[1]) == (-0.1, 0.2)


# -- how often it is wrong: no true gain, by the statistic ----------------------------------------


def two_models(
    n: int, rng: np.random.Generator, rare: float, skill: tuple[float, float]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Targets, and for each of two models its logits: both see one signal through own noise."""
    y = (rng.uniform(size=n) < rare).astype(np.int64)
    shared = rng.normal(size=n)
    logits = []
    for strength in skill:
        z = strength * (2 * y - 1) + 0.7 * shared + 0.7 * rng.normal(size=n)
        logits.append(np.stack([-z, z], axis=1).astype(np.float32) / 2)
    return y, logits


def auc_gain(clients: int, n: int, rare: float, skill: tuple[float, float], seed: int) -> Gain:
    rng = np.random.default_rng(seed)
    made = [two_models(n, rng, rare, skill) for _ in range(clients)]
    y = np.concatenate([one[0] for one in made])
    pair = []
    for k in (0, 1):
        outputs = np.concatenate([one[1][k] for one in made])
        outcome = (outputs.argmax(1) == y).astype(np.float32)
        offsets = np.arange(clients + 1, dtype=np.int64) * n
        pair.append(Evidence(offsets, outcome, outputs, y))
    measure = Measure(METRICS["auc"], "binary", 1)
    ones = np.ones((1, n))
    scores = [np.array([[measure.values(e, i, ones)[0] for i in range(clients)]]) for e in pair]
    return gain_between([pair[0]], [pair[1]], (scores[0], scores[1]), measure)


@pytest.mark.parametrize(("n", "rare"), [(20, 0.4), (60, 0.15), (200, 0.5)])
def test_auc_without_a_true_gain_is_rarely_called(n: int, rare: float) -> None:
    gain = auc_gain(200, n, rare, (0.5, 0.5), seed=n)
    assert gain.gained is not None
    assert gain.gained + (gain.lost or 0) <= 2
    assert np.mean(gain.p[~np.isnan(gain.p)] < 0.05) < 0.07  # one by one, about one in twenty
    inside = (gain.low <= 0) & (gain.high >= 0)
    assert np.mean(inside[~np.isnan(gain.low)]) > 0.93


def test_auc_with_a_true_gain_is_seen() -> None:
    gain = auc_gain(60, 200, 0.5, (1.2, 0.4), seed=1)
    assert gain.gained is not None
    assert gain.gained > 50


def test_errors_in_a_unit_are_resampled(tmp_path: Path) -> None:
    """Mean absolute error: the bootstrap's standard error is that of a mean of differences."""
    rng = np.random.default_rng(0)
    a, b = np.abs(rng.normal(1.0, 0.5, 80)), np.abs(rng.normal(1.4, 0.5, 80))
    first, second = of_outcomes([a]), of_outcomes([b])
    mae = find("mae")
    scores = first.scores()[None], second.scores()[None]
    gain = gain_between([first], [second], scores, Measure(mae, "package.own:Objective"))
    assert gain.per_client[0] == pytest.approx(b.mean() - a.mean(), abs=1e-6)
    test = scipy_stats.ttest_rel(b.astype(np.float32), a.astype(np.float32))
    expected = test.confidence_interval(0.95)
    assert gain.low[0] == pytest.approx(expected.low, abs=0.02)
    assert gain.high[0] == pytest.approx(expected.high, abs=0.02)
    assert gain.statements == ["clearly gained"]
    assert gain.better is None
