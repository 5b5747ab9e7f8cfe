"""Two models on the same samples: how surely does one get more of them right?

A unit is what is drawn by itself: a sample, or all samples of one patient. Its sum is how many more
of its samples the first model got right; over several seeds, how many more in all of them.
"""

from __future__ import annotations

import numpy as np

from pgfed.results.statistics import LEVEL, Floats, Ints

LONGEST = 4_000  # values of the sum that are counted out; beyond, its distribution is normal


def discordant_p(better: Ints, worse: Ints) -> Floats:
    """McNemar's exact test, two-sided, for each pair of counts of samples that only one got right.

    If neither model is better, each such sample is as likely to be the one's as the other's.
    """
    from scipy.special import bdtrc  # scipy.stats takes a second to import

    n, most = better + worse, np.maximum(better, worse)
    p: Floats = np.minimum(1.0, 2 * bdtrc(most - 1.0, n, 0.5))  # of at least so many
    return np.where(n == 0, 1.0, p)


def flips_p(sums: Ints) -> float:
    """The same for units that count several samples: exact over all ways to swap the two models.

    With sums of −1, 0 and 1 it is McNemar's test.
    """
    from scipy.stats import binom, norm

    sizes, counts = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    observed = abs(int(sums.sum()))
    if not len(sizes):
        return 1.0
    if int(sizes @ counts) > LONGEST:
        return float(2 * norm.sf(observed / np.sqrt(float(sizes**2 @ counts))))
    chances = np.ones(1)  # of the sums from -reach to reach
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        part = np.zeros(2 * size * count + 1)
        part[:: 2 * size] = binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, part)
    reach = len(chances) // 2
    as_far = np.abs(np.arange(-reach, reach + 1)) >= observed
    return min(1.0, float(chances[as_far].sum()))


def share_interval(
    units: Ints, samples: Ints, total: Floats, squares: Floats
) -> tuple[Floats, Floats]:
    """Of the difference of two shares of right ones: Bonett and Price's interval (2012).

    Two samples are added, one for each model; then it is the usual interval of a mean. So it does
    not shrink to a point where both got the same few samples right. Of each client: the number of
    its ``units`` and ``samples``, the sum over samples of the difference, and ``squares``: the sum
    over units of (its sum - its size * the mean)², two more included, as `squares_of` gives it.
    """
    from scipy.special import stdtrit

    middle = total / (samples + 2)
    half = stdtrit(units + 1.0, (1 + LEVEL) / 2) * np.sqrt(squares) / (samples + 2)
    return np.maximum(middle - half, -1.0), np.minimum(middle + half, 1.0)


def squares_of(sums: Floats, sizes: Floats) -> float:
    """Over one client's units, and the two that are added."""
    middle = sums.sum() / (sizes.sum() + 2)
    return float(np.square(sums - middle * sizes).sum() + (1 - middle) ** 2 + (1 + middle) ** 2)


def adjusted(p: Floats) -> Floats:
    """By Benjamini and Hochberg: of those at most LEVEL short of 1, so few are false discoveries.

    NaN where nothing is known.
    """
    found = np.full(len(p), np.nan)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return found
