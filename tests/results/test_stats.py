"""The statistics against hand-computed values and scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from pgfed.results import statistics as stats


def test_mean_and_sample_std() -> None:
    mean, std = stats.mean_std([0.70, 0.74, 0.72])
    assert mean == pytest.approx(0.72)
    assert std == pytest.approx(0.02)  # sqrt((0.02^2 + 0.02^2 + 0) / 2)


def test_one_seed_has_no_std_and_none_no_mean() -> None:
    assert math.isnan(stats.mean_std([0.5])[1])
    assert all(math.isnan(v) for v in stats.mean_std([np.nan]))


def test_mean_over_seeds_leaves_out_what_is_missing() -> None:
    values = np.array([[0.5, np.nan, np.nan], [0.7, 0.4, np.nan]])
    np.testing.assert_allclose(stats.mean_over_seeds(values), [0.6, 0.4, np.nan])


def compare(
    a: np.ndarray, b: np.ndarray, *, resamples: int = 10_000, seed: int = 0
) -> stats.Comparison:
    return stats.Paired({"a": a, "b": b}, resamples=resamples, seed=seed).difference("a", "b")


# -- paired comparison -------------------------------------------------------------------------


def test_the_interval_of_one_seed_is_scipys() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.8, 0.05, (1, 40)), rng.normal(0.77, 0.05, (1, 40))
    ours = compare(a, b)
    theirs = scipy_stats.bootstrap(
        ((a - b)[0],), np.mean, method="percentile", n_resamples=20_000, rng=2
    ).confidence_interval
    assert ours.mean == pytest.approx((a - b).mean())
    assert ours.low == pytest.approx(theirs.low, abs=6e-4)
    assert ours.high == pytest.approx(theirs.high, abs=6e-4)


def test_what_a_client_has_in_common_with_itself_drops_out() -> None:
    """Clients differ by 50 points; the paired difference is the same for all, so it is certain."""
    base = np.linspace(0.3, 0.8, 25)[None].repeat(3, axis=0)
    found = compare(base + 0.01, base)
    assert found.low == pytest.approx(0.01)
    assert found.high == pytest.approx(0.01)
    assert (found.better, found.worse, found.equal) == (25, 0, 0)
    assert found.clear


def test_seeds_that_disagree_widen_the_interval() -> None:
    noise = np.random.default_rng(3).normal(0, 0.01, (3, 30))
    agree = compare(0.02 + noise, np.zeros((3, 30)))
    shift = np.array([[-0.04], [0.02], [0.08]])
    disagree = compare(shift + noise, np.zeros((3, 30)))
    assert agree.mean == pytest.approx(disagree.mean)
    assert agree.clear
    assert not disagree.clear
    assert disagree.high - disagree.low > 5 * (agree.high - agree.low)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for trial in range(100):
        sample = rng.normal(0.01, 0.05, (1, 60))
        found = compare(sample, np.zeros((1, 60)), resamples=1000, seed=trial)
        covered += found.low <= 0.01 <= found.high
    assert 0.90 <= covered / 100 <= 0.99


def test_comparison_is_repeatable_and_antisymmetric_in_its_counts() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random((2, 12)), rng.random((2, 12))
    assert compare(a, b) == compare(a, b)
    forth, back = compare(a, b), compare(b, a)
    assert forth.mean == pytest.approx(-back.mean)
    assert (forth.better, forth.worse) == (back.worse, back.better)


def test_a_client_without_test_data_is_left_out() -> None:
    a, b = np.array([[0.9, np.nan, 0.7]]), np.array([[0.8, np.nan, 0.7]])
    found = compare(a, b)
    assert found.mean == pytest.approx(0.05)
    assert (found.better, found.worse, found.equal) == (1, 0, 1)
    assert math.isnan(compare(a * np.nan, b).mean)


def test_comparison_in_blocks_is_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded for many clients; the estimate stays."""
    a = np.random.default_rng(6).random((1, 50))
    whole = compare(a, np.zeros_like(a))
    monkeypatch.setattr(stats, "_BLOCK", 1000)
    parts = compare(a, np.zeros_like(a))
    assert parts.low == pytest.approx(whole.low, abs=5e-3)
    assert parts.mean == whole.mean


def test_only_pairs_can_be_compared() -> None:
    with pytest.raises(ValueError, match="pairs"):
        compare(np.zeros((1, 3)), np.zeros((2, 3)))


# -- gains and rounds --------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "expected"), [(0.6, 2), (0.70, 6), (0.71, None), (0.0, 2)])
def test_rounds_to_counts_scored_rounds_only(target: float, expected: int | None) -> None:
    accuracy = [None, 0.6, None, 0.65, None, 0.70]
    assert stats.rounds_to([1, 2, 3, 4, 5, 6], accuracy, target) == expected


# -- correlation -------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 0.3, -2.0])
def test_correlation_against_scipy(slope: float) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=25)
    y = slope * x + rng.normal(size=25)
    found = stats.correlate(x, y)
    line = scipy_stats.linregress(x, y)
    assert found.r == pytest.approx(line.rvalue)
    assert found.slope == pytest.approx(line.slope)
    assert found.intercept == pytest.approx(line.intercept)
    assert found.p == pytest.approx(scipy_stats.pearsonr(x, y).pvalue, abs=0.02)


def test_permutation_p_of_three_points_by_hand() -> None:
    """Of the six orders of three points on a line, two correlate perfectly."""
    assert stats.correlate([1, 2, 3], [2, 4, 6]).p == pytest.approx(1 / 3, abs=0.02)


def test_nothing_correlates_with_a_constant() -> None:
    assert math.isnan(stats.correlate([1, 1, 1, 1], [1, 2, 3, 4]).r)
    assert math.isnan(stats.correlate([1, 2], [1, 2]).p)


# -- the matrix A ------------------------------------------------------------------------------


def alpha(dense: bool = True) -> dict[str, object]:
    """Four clients, 1/M = 0.5: client 0 met 1 and 2, client 3 met 1 (twice) and itself."""
    start = 0.5
    matrix = np.full((4, 4), start, dtype=np.float32)
    meetings = np.zeros((4, 4), dtype=np.int64)
    for i, j, value, met in [(0, 1, 0.7, 1), (0, 2, 0.0, 1), (3, 1, 0.6, 2), (3, 3, 0.5, 1)]:
        matrix[i, j], meetings[i, j] = value, met
    if dense:
        return {"alpha": matrix, "start": start, "meetings": meetings}
    row, column = np.nonzero(meetings)
    return {
        "data": matrix[row, column],
        "indices": column,
        "indptr": np.searchsorted(row, np.arange(5)),
        "shape": np.array([4, 4]),
        "start": start,
        "meetings": meetings[row, column],
    }


@pytest.mark.parametrize("dense", [True, False])
def test_matrix_by_hand(dense: bool) -> None:
    n_train, steps = np.array([100, 400, 200, 300]), np.array([10, 40, 20, 30])
    found = stats.helpfulness(stats.Pairs.read(alpha(dense)), n_train, steps)
    np.testing.assert_allclose(found.column, [0, 0.3 / 4, -0.5 / 4, 0], atol=1e-7)
    np.testing.assert_allclose(found.row, [-0.3 / 4, 0, 0, 0.1 / 4], atol=1e-7)
    # per step: (0,1) 0.2/10, (0,2) -0.5/10, (3,1) 0.1/(2*30), (3,3) 0
    np.testing.assert_allclose(
        found.column_per_step, [np.nan, (0.02 + 0.1 / 60) / 2, -0.05, 0], atol=1e-7
    )
    np.testing.assert_allclose(found.row_per_step, [-0.015, np.nan, np.nan, 0.1 / 120], atol=1e-7)
    assert found.meetings_per_pair == pytest.approx(5 / 16)
    assert found.never_met == pytest.approx(12 / 16)
    assert found.at_zero == pytest.approx(1 / 16)
    assert found.increased == pytest.approx(2 / 16)
    expected = scipy_stats.pearsonr(n_train, found.column)
    assert found.column_size.r == pytest.approx(expected.statistic)


def test_entries_at_their_start_have_not_increased() -> None:
    """float32(1/6) is above 1/6; that is no change."""
    start = 1 / 6
    arrays = {
        "alpha": np.full((3, 3), start, dtype=np.float32),
        "start": start,
        "meetings": np.ones((3, 3), dtype=np.int64),
    }
    found = stats.helpfulness(stats.Pairs.read(arrays), np.array([1, 2, 3]), np.array([1, 2, 3]))
    assert found.increased == 0
    assert math.isnan(found.column_size.r)


def test_blocks_average_neighbours_in_the_given_order() -> None:
    pairs = stats.Pairs.read(alpha())
    each = pairs.blocks(np.arange(4), 1)
    assert each[0, 1] == pytest.approx(0.2)
    assert each[0, 2] == pytest.approx(-0.5)
    assert pairs.scale(each) == pytest.approx(0.5, abs=0.02)
    assert pairs.scale(np.zeros((2, 2))) == 1.0
    order = np.array([0, 3, 1, 2])  # blocks {0, 3} and {1, 2}
    np.testing.assert_allclose(
        pairs.blocks(order, 2), [[0, (0.2 - 0.5 + 0.1) / 4], [0, 0]], atol=1e-7
    )
    ragged = pairs.blocks(order, 3)  # blocks {0, 3, 1} and {2}
    assert ragged[0, 1] == pytest.approx(-0.5 / 3)


def test_steps_follow_the_mini_batches() -> None:
    n = np.array([3, 10, 25])
    np.testing.assert_array_equal(stats.steps_per_round(n, 5, 10), [5, 5, 10])
    np.testing.assert_array_equal(stats.steps_per_round(n, 2, 0), [2, 2, 2])


def test_a_damaged_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="alpha"):
        stats.Pairs.read({**alpha(), "alpha": np.zeros((4, 3))})
    with pytest.raises(ValueError, match="differ"):
        stats.Pairs.read({**alpha(dense=False), "data": np.zeros(2)})
