"""What a run's numbers say, and how surely: seeds, paired comparisons, gains, the matrix A.

Arrays of scores are seeds x clients; NaN stands for a client without test data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 10_000
LEVEL = 0.95
_EFFORT = 20_000_000  # numbers drawn for one interval or p; many clients get fewer resamples
_BLOCK = 4_000_000  # numbers held at a time while resampling


def mean_std(values: ArrayLike) -> tuple[float, float]:
    """Mean and sample standard deviation; the latter is NaN for a single value."""
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    if array.size == 0:
        return float("nan"), float("nan")
    return float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else float("nan")


def mean_over_seeds(values: Floats) -> Floats:
    """Per client, over the seeds in which it was scored; NaN if it never was."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return np.round(mean, 9)  # equal scores must not differ by a rounding error


# -- comparing two methods ---------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """a - b, client by client and seed by seed."""

    mean: float
    low: float
    high: float
    better: int  # clients, by their mean over the seeds
    worse: int
    equal: int
    seeds: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def same(self) -> bool:
        """Whether no client scores differently under any seed."""
        return not self.better and not self.worse and self.low == self.high == 0


class Paired:
    """Methods on the same clients and seeds, to be compared in pairs (seeds x clients each).

    A difference is always taken within one client and one seed, so what they have in common
    (partition, cohorts, initial model) drops out. Clients and, where there are several, seeds are
    drawn with replacement independently of each other, because every client occurs under every
    seed: the interval speaks about other clients *and* other seeds like these. It is the
    percentile interval; with one seed it knows nothing of the variation between seeds.
    """

    def __init__(
        self, values: Mapping[str, Floats], *, resamples: int | None = None, seed: int = 0
    ) -> None:
        shapes = {array.shape for array in values.values()}
        if len(shapes) != 1:
            raise ValueError(f"pairs are needed, found {sorted(shapes)}")
        counted = ~np.any([np.isnan(array) for array in values.values()], axis=0)
        some = counted.any(axis=0)
        self._counted = counted[:, some]  # the same clients under a seed for every method
        self._values = {name: np.where(counted, v, 0.0)[:, some] for name, v in values.items()}
        self._resamples = resamples or _resamples(int(some.sum()))
        self._seed = seed

    def mean(self, name: str) -> float:
        """Over the clients that count, then over the seeds."""
        return self._mean_of(self._values[name])

    def _mean_of(self, values: Floats) -> float:
        return float(np.mean(values.sum(axis=1) / self._counted.sum(axis=1)))

    def difference(self, a: str, b: str, level: float = LEVEL) -> Comparison:
        """a - b with its bootstrap interval."""
        difference = self._values[a] - self._values[b]
        seeds = len(difference)
        if not self._counted.size or not self._counted.any(axis=1).all():
            nan = float("nan")
            return Comparison(nan, nan, nan, 0, 0, 0, seeds)
        resampled = self._resampled[a] - self._resampled[b]
        low, high = np.nanquantile(resampled, [(1 - level) / 2, (1 + level) / 2])
        each = mean_over_seeds(np.where(self._counted, difference, np.nan))
        return Comparison(
            mean=self._mean_of(difference),
            low=float(low),
            high=float(high),
            better=int((each > 0).sum()),
            worse=int((each < 0).sum()),
            equal=int((each == 0).sum()),
            seeds=seeds,
        )

    @cached_property
    def _resampled(self) -> dict[str, Floats]:
        """Each method's mean in every resample; all methods see the same draws."""
        seeds, clients = next(iter(self._values.values())).shape
        means: dict[str, list[Floats]] = {name: [] for name in self._values}
        rng = np.random.default_rng(self._seed)
        for count in _blocks(self._resamples, clients):
            by_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=count)
            by_client = rng.multinomial(clients, np.full(clients, 1 / clients), size=count)
            drawn = by_client @ self._counted.T.astype(np.float64)  # resamples x seeds
            drawn[drawn == 0] = np.nan  # nobody who counts under that seed
            for name, values in self._values.items():
                by_seed_mean = (by_client @ values.T) / drawn
                means[name].append((by_seed * by_seed_mean).sum(axis=1) / seeds)
        return {name: np.concatenate(parts) for name, parts in means.items()}


def _resamples(width: int) -> int:
    """RESAMPLES, and fewer for many clients, but never less than a tenth."""
    return max(RESAMPLES // 10, min(RESAMPLES, _EFFORT // max(1, width)))


def _blocks(total: int, width: int) -> Iterator[int]:
    """Split so many rows of this width into blocks that fit into memory."""
    at_once = max(1, _BLOCK // width)
    for start in range(0, total, at_once):
        yield min(at_once, total - start)


# -- one method --------------------------------------------------------------------------------


def worst_tenth(values: Floats) -> float:
    """The mean over the tenth of the clients that are worst off, at least one."""
    worst = np.sort(values)[: max(1, len(values) // 10)]
    return float(worst.mean()) if len(worst) else float("nan")


def rounds_to(rounds: Sequence[int], scores: Sequence[float | None], target: float) -> int | None:
    """The first scored round whose score is at least the target."""
    for t, value in zip(rounds, scores, strict=True):
        if value is not None and value >= target:
            return t
    return None


# -- correlation -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Correlation:
    """Pearson's r, and how often shuffled pairs correlate as strongly."""

    r: float
    p: float
    slope: float
    intercept: float
    n: int


def correlate(
    x: ArrayLike, y: ArrayLike, *, permutations: int | None = None, seed: int = 0
) -> Correlation:
    """Pearson's r with a two-sided permutation p, and the regression line of y on x."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    keep = ~(np.isnan(a) | np.isnan(b))
    a, b = a[keep], b[keep]
    nan = float("nan")
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(nan, nan, nan, nan, len(a))
    u, v = a - a.mean(), b - b.mean()
    scale = float(np.linalg.norm(u) * np.linalg.norm(v))
    r = float(u @ v) / scale
    rng = np.random.default_rng(seed)
    permutations = permutations or _resamples(len(v))
    as_strong = 0
    for count in _blocks(permutations, len(v)):
        shuffled = rng.permuted(np.broadcast_to(v, (count, len(v))), axis=1) @ u / scale
        as_strong += int((np.abs(shuffled) >= abs(r) - 1e-12).sum())
    slope = float(u @ v / (u @ u))
    return Correlation(
        r=r,
        p=(1 + as_strong) / (1 + permutations),  # the observed order is one of the shuffles
        slope=slope,
        intercept=float(b.mean() - slope * a.mean()),
        n=len(a),
    )


# -- the matrix A ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """A - 1/M by the pairs that met; all other entries are zero."""

    clients: int
    start: float  # 1/M
    row: Ints  # i, whose objective it is
    column: Ints  # j, whose risk is weighed
    change: Floats
    meetings: Ints  # rounds in which i trained with j's gradient

    @classmethod
    def read(cls, arrays: dict[str, Any]) -> Pairs:
        """From the arrays of alpha.npz: dense, or the parts of a CSR matrix."""
        start = float(np.float32(arrays["start"]))  # as in the entries: 1/M minus 1/M is zero
        meetings = np.asarray(arrays["meetings"], dtype=np.int64)
        if "alpha" in arrays:
            alpha = np.asarray(arrays["alpha"], dtype=np.float64)
            if alpha.ndim != 2 or alpha.shape[0] != alpha.shape[1] or alpha.shape != meetings.shape:
                raise ValueError(f"alpha is {alpha.shape}, meetings {meetings.shape}")
            row, column = np.nonzero(meetings)
            values = alpha[row, column]
            return cls(len(alpha), start, row, column, values - start, meetings[row, column])
        n = int(arrays["shape"][0])
        row = np.repeat(np.arange(n), np.diff(arrays["indptr"]))
        values = np.asarray(arrays["data"], dtype=np.float64)
        column = np.asarray(arrays["indices"], dtype=np.int64)
        if not len(row) == len(column) == len(values) == len(meetings):
            raise ValueError("the parts of the CSR matrix differ in length")
        return cls(n, start, row, column, values - start, meetings)

    def mean_by(self, axis: Ints, values: Floats) -> Floats:
        """The mean over a whole row or column of A, entries that never met included as zero."""
        mean: Floats = np.bincount(axis, values, minlength=self.clients) / self.clients
        return mean

    def mean_met(self, axis: Ints, values: Floats) -> Floats:
        """The mean over the entries of a row or column that met; NaN where none did."""
        total = np.bincount(axis, values, minlength=self.clients)
        count = np.bincount(axis, minlength=self.clients)
        mean = np.full(self.clients, np.nan)
        np.divide(total, count, out=mean, where=count > 0)
        return mean

    def blocks(self, order: Ints, size: int) -> Floats:
        """Mean change in `size` x `size` blocks of clients taken in this order (size 1: each)."""
        count = -(-self.clients // size)
        block = np.empty(self.clients, dtype=np.int64)
        block[order] = np.arange(self.clients) // size
        width = np.bincount(block, minlength=count)
        cells = block[self.row] * count + block[self.column]
        total = np.bincount(cells, self.change, minlength=count * count).reshape(count, count)
        mean: Floats = total / np.outer(width, width)
        return mean

    def scale(self, blocks: Floats) -> float:
        """A bound for colours that a few large changes do not stretch."""
        changed = np.abs(blocks[blocks != 0])
        return float(np.quantile(changed, 0.99)) if len(changed) else 1.0


@dataclass(frozen=True)
class Helpfulness:
    """Experiment E4: who is said to help, who to need help, and what else could explain it."""

    column: Floats  # mean change of A's column j: the weight others give to j
    row: Floats  # mean change of A's row i: the weight i gives to others
    column_per_step: Floats  # the same per step of alpha, over the pairs that met
    row_per_step: Floats
    column_size: Correlation  # column against n_j (the paper: positive)
    row_size: Correlation  # row against n_i (the paper: negative)
    column_per_step_size: Correlation  # the controls: a client with more data takes more steps
    row_per_step_size: Correlation
    column_meetings: Correlation  # column against how often j was met
    meetings_per_pair: float  # mean over all pairs
    never_met: float  # shares of all entries
    at_zero: float
    increased: float


def helpfulness(pairs: Pairs, n_train: Ints, steps: Ints, *, seed: int = 0) -> Helpfulness:
    """Analyse A against the clients' sizes; `steps` are the steps a client takes in a round."""
    if not len(n_train) == len(steps) == pairs.clients:
        raise ValueError(f"A has {pairs.clients} clients, the sizes {len(n_train)}")
    per_step = pairs.change / (pairs.meetings * steps[pairs.row])
    column = pairs.mean_by(pairs.column, pairs.change)
    row = pairs.mean_by(pairs.row, pairs.change)
    column_per_step = pairs.mean_met(pairs.column, per_step)
    row_per_step = pairs.mean_met(pairs.row, per_step)
    met = np.bincount(pairs.column, pairs.meetings, minlength=pairs.clients)
    entries = pairs.clients**2
    return Helpfulness(
        column=column,
        row=row,
        column_per_step=column_per_step,
        row_per_step=row_per_step,
        column_size=correlate(n_train, column, seed=seed),
        row_size=correlate(n_train, row, seed=seed),
        column_per_step_size=correlate(n_train, column_per_step, seed=seed),
        row_per_step_size=correlate(n_train, row_per_step, seed=seed),
        column_meetings=correlate(met, column, seed=seed),
        meetings_per_pair=float(pairs.meetings.sum()) / entries,
        never_met=1 - len(pairs.row) / entries,
        at_zero=float((pairs.change == -pairs.start).sum()) / entries,
        increased=float((pairs.change > 0).sum()) / entries,
    )


def steps_per_round(n_train: Ints, epochs: int, batch_size: int) -> Ints:
    """Mini-batch steps of each client in a round; an incomplete last batch is dropped."""
    size = np.minimum(batch_size or n_train, n_train)
    steps: Ints = epochs * (n_train // size)
    return steps
