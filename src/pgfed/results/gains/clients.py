"""Each client's gain over training alone, from what the kept models gave for its test samples.

Two models of a client are compared on the same samples: by an exact test where a sample is right or
wrong, by a bootstrap over the samples for every other metric; samples of one group (a patient) stay
together. What is found is about these models on data like the client's test data, not about what
training once more would give. Under several seeds a sample counts with its mean over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pgfed.model.metrics import ACCURACY
from pgfed.results.folder.evidence import whole
from pgfed.results.gains import exact
from pgfed.results.gains.resampling import SAME, Measure, resampled
from pgfed.results.runs import Evidence, SeedRun, Told
from pgfed.results.statistics import (
    LEVEL,
    Floats,
    Ints,
    mean_over_seeds,
    mean_std,
    worst_tenth,
)

Statement = Literal["clearly gained", "clearly lost", "cannot be told"]

MANY = 5_000  # clients, beyond which no metric is resampled for each


@dataclass(frozen=True)
class Gain:
    """What the clients gained over training alone, by the kept models; above zero is better.

    Arrays have one number per client, NaN where nothing is known. An interval and a p speak of one
    client by itself (`pointwise`); `statements` and the counts allow for how many there are.
    """

    per_client: Floats  # the mean over the seeds
    n_test: Ints
    low: Floats  # 95 % interval, pointwise
    high: Floats
    p: Floats  # two-sided, pointwise
    better: Ints | None = None  # test samples that only the method, on balance, got right
    worse: Ints | None = None
    judged: bool = True  # otherwise nobody is said to have gained or lost

    @property
    def mean(self) -> float:
        """Over the clients."""
        return mean_std(self.per_client)[0]

    @property
    def std(self) -> float:
        """Sample standard deviation over the clients."""
        return mean_std(self.per_client)[1]

    @property
    def worst_decile(self) -> float:
        """The mean over the tenth of the clients that gained least."""
        return worst_tenth(self.per_client[~np.isnan(self.per_client)])

    @property
    def known(self) -> bool:
        """Whether there is evidence; without, only the gains are known, not how surely."""
        return bool((~np.isnan(self.p)).any())

    @property
    def adjusted(self) -> Floats:
        """p over all clients together: the false discovery rate at which one is called clear."""
        return exact.adjusted(self.p)

    @property
    def statements(self) -> list[Statement | None]:
        """Per client; None for those without test data, attackers, or where nothing can be said."""
        if not self.judged:
            return [None] * len(self.per_client)
        each = zip(self.per_client, self.p, self.adjusted, strict=True)
        return [_statement(gain, p, adjusted) for gain, p, adjusted in each]

    def _count(self, wanted: Statement) -> int | None:
        return self.statements.count(wanted) if self.known and self.judged else None

    @property
    def gained(self) -> int | None:
        """Clients that clearly gained; None without evidence, and where nothing is judged."""
        return self._count("clearly gained")

    @property
    def lost(self) -> int | None:
        """Clients that clearly lost."""
        return self._count("clearly lost")

    @property
    def untold(self) -> int | None:
        """Clients of which it cannot be told."""
        return self._count("cannot be told")

    @property
    def clients(self) -> int:
        """That have a gain."""
        return int((~np.isnan(self.per_client)).sum())

    def behind(self, client: int, noun: str = "sample") -> str:
        """What stands behind a client's gain, in words: "1 better of 17 samples"."""
        n = int(self.n_test[client])
        all_of_them = f"{n:,} {noun}{'s' * (n != 1)}" if noun else f"{n:,}"
        if self.better is None or self.worse is None or np.isnan(self.per_client[client]):
            return all_of_them
        better, worse = int(self.better[client]), int(self.worse[client])
        said = [f"{n:,} {word}" for n, word in ((better, "better"), (worse, "worse")) if n]
        return f"{', '.join(said)} of {all_of_them}" if said else f"none of {all_of_them} changed"


def _statement(gain: float, p: float, adjusted: float) -> Statement | None:
    if np.isnan(gain) or np.isnan(p):
        return None
    if adjusted > 1 - LEVEL or not gain:
        return "cannot be told"
    return "clearly gained" if gain > 0 else "clearly lost"


def unknown(per_client: Floats, n_test: Ints) -> Gain:
    """Gains without evidence: of runs from before it was kept."""
    nothing = np.full(len(per_client), np.nan)
    return Gain(per_client, n_test, nothing, nothing, nothing)


# -- from two methods to the gain ----------------------------------------------------------------

Runs = Mapping[int, SeedRun]  # by seed


def gain_of(
    runs: Runs, alone: Runs, scores: tuple[Floats, Floats], n_test: Ints, measure: Measure
) -> Gain:
    """The gain of a method over a baseline under the same seeds.

    ``scores``: of the kept models of both, seeds x clients, NaN for who does not count.
    """
    each = mean_over_seeds(measure.metric.sign * (scores[0] - scores[1]))
    told = [one.told for _, one in sorted(runs.items()) if one.told is not None]
    if len(told) == len(runs):
        return _told(told, each, n_test)
    pairs = [(runs[seed].evidence, alone[seed].evidence) for seed in sorted(runs)]
    found = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(found) < len(pairs):
        return unknown(each, n_test)
    return gain_between(found, scores, n_test, measure)


def gain_between(
    found: Sequence[tuple[Evidence, Evidence]],
    scores: tuple[Floats, Floats],
    n_test: Ints,
    measure: Measure,
) -> Gain:
    """The same from the evidence of both, seed by seed."""
    each = mean_over_seeds(measure.metric.sign * (scores[0] - scores[1]))
    counts = ~np.isnan(scores[0] - scores[1])  # seeds x clients
    if not _fit(found, n_test):
        return unknown(each, n_test)
    if measure.metric.name == ACCURACY.name and all(_decided(e) for pair in found for e in pair):
        return _right_or_wrong(found, each, counts, n_test)
    if len(each) > MANY:
        return unknown(each, n_test)
    pairs_read = [(whole(a), whole(b)) for a, b in found]
    return Gain(each, n_test, *resampled(pairs_read, each, counts, scores, measure))


def _told(told: Sequence[Told], each: Floats, n_test: Ints) -> Gain:
    """What sites said of themselves, seed by seed; over several, bounds for any dependence."""
    low, high = (np.mean([getattr(t, side) for t in told], axis=0) for side in ("low", "high"))
    p = np.mean([t.p for t in told], axis=0)
    p = np.minimum(1.0, p if len(told) == 1 else 2 * p)
    missing = np.isnan(each)
    for values in (low, high, p):
        values[missing] = np.nan
    if len(told) > 1 or np.isnan(told[0].better[~missing]).any():
        return Gain(each, n_test, low, high, p)
    better, worse = (
        np.nan_to_num(side).astype(np.int64) for side in (told[0].better, told[0].worse)
    )
    return Gain(each, n_test, low, high, p, better, worse)


def _fit(pairs: Sequence[tuple[Evidence, Evidence]], n_test: Ints) -> bool:
    """Whether all of it is about these clients' test samples."""
    return all(np.array_equal(np.diff(e.offsets), n_test) for pair in pairs for e in pair)


def _decided(evidence: Evidence) -> bool:
    outcome = evidence.outcome
    return bool(((outcome == 0) | (outcome == 1)).all())


def _right_or_wrong(
    pairs: Sequence[tuple[Evidence, Evidence]], each: Floats, counts: Any, n_test: Ints
) -> Gain:
    first = pairs[0][0]
    owner = np.repeat(np.arange(len(each)), n_test)
    total = np.zeros(len(owner), dtype=np.int64)  # per sample, over the seeds
    for (a, b), counted in zip(pairs, counts, strict=True):
        total += ((a.outcome > b.outcome).astype(np.int64) - (a.outcome < b.outcome)) * (
            counted[owner]
        )
    seeds = counts.sum(axis=0)  # of each client

    def per_client(values: Any) -> Any:
        return np.bincount(owner, values, minlength=len(each))

    better, worse = (per_client(side).astype(np.int64) for side in (total > 0, total < 0))
    difference = total / np.maximum(seeds[owner], 1)
    group = first.group
    if group is None:
        p = exact.discordant_p(better, worse)
        if len(pairs) > 1:
            p = np.array([exact.flips_p(part) for part in _parts(total, first)])
        sums, units = per_client(difference), n_test
        middle = sums / (n_test + 2)
        squares = per_client(difference**2) + 2 - (n_test + 2) * middle**2
    else:
        cells = [_grouped(t, d, g) for t, d, g in zip(
            _parts(total, first), _parts(difference, first), _parts(group, first), strict=True
        )]  # fmt: skip
        p = np.array([exact.flips_p(cell[0]) for cell in cells])
        sums, units = per_client(difference), np.array([len(cell[0]) for cell in cells])
        squares = np.array([exact.squares_of(cell[1], cell[2]) for cell in cells])
    low, high = exact.share_interval(units, n_test, sums, squares)
    with np.errstate(invalid="ignore"):  # of clients without test data
        other = np.abs(sums / n_test - each) > SAME  # it is not about these models
    for values in (p, low, high):
        values[np.isnan(each) | other] = np.nan
    return Gain(each, n_test, low, high, p, better, worse)


def _parts(values: Any, evidence: Evidence) -> list[Any]:
    """Client by client."""
    return np.split(values, evidence.offsets[1:-1])


def _grouped(total: Ints, difference: Floats, group: Ints) -> tuple[Ints, Floats, Floats]:
    """Per group: its sum over the seeds, its sum of mean differences, its size."""
    code = np.unique(group, return_inverse=True)[1]
    n = int(code.max()) + 1 if len(code) else 0
    sums = np.bincount(code, total, minlength=n).astype(np.int64)
    each: Floats = np.bincount(code, difference, minlength=n).astype(np.float64)
    return sums, each, np.bincount(code, minlength=n).astype(np.float64)
