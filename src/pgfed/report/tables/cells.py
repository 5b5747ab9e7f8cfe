"""What tables are made of: columns that say what stands in them, and the kinds of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.results import statistics as stats
from pgfed.results.comparison import Method, Score
from pgfed.results.formats import NONE, bare, bracketed, correlation, gain, percent, size
from pgfed.results.statistics import Comparison, Correlation

NAMED = 8  # clients, or reasons, that a cell names
NOT_JUDGED = "not judged"  # in a run that gives no verdict

S = TypeVar("S")


@dataclass(frozen=True)
class Cell:
    """What people read, and the number behind it for sorting and for CSV."""

    text: str
    value: float | str | None = None
    interval: tuple[float, float, float] | None = None  # low, mean, high: drawn in the page
    note: str = ""


@dataclass(frozen=True)
class Column(Generic[S]):
    """A column of a table whose rows are about subjects of one kind."""

    key: str  # for CSV
    heading: str
    help: str
    cell: Callable[[S], Cell]
    better: int = 0  # 1: more is better, -1: less is; 0: no matter of better and worse
    muted: bool = False  # beside the honest numbers, not one of them


@dataclass(frozen=True)
class Table:
    """Cells under headings; without rows there is no table."""

    id: str
    caption: str
    columns: Sequence[Column[Any]]
    rows: list[list[Cell]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # per row, the method it is about

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def name(self) -> str:
        """What people ask for it by."""
        return self.id.removesuffix("-table")

    def records(self) -> list[dict[str, Cell]]:
        """The rows, their cells by the columns' keys."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


def fill(
    id: str, caption: str, columns: Sequence[Column[S]], subjects: Iterable[tuple[str, S]]
) -> Table:
    """A row per subject, which comes with the label of the method it is about."""
    table = Table(id, caption, columns)
    for label, subject in subjects:
        table.rows.append([column.cell(subject) for column in columns])
        table.labels.append(label)
    return table


# -- kinds of cells ----------------------------------------------------------------------------


def score(method: Method, which: Score, metric: Metric) -> Cell:
    return seeds(method.means(which), metric)


def seeds(values: Sequence[float], metric: Metric) -> Cell:
    """The mean, with the standard deviation over seeds where there are several."""
    mean, std = stats.mean_std(values)
    if np.isnan(mean):
        return Cell(NONE)
    spread = "" if np.isnan(std) else f" ± {bare(std, metric)}"
    return Cell(f"{bare(mean, metric)}{spread}", mean)


def difference(found: Comparison | None, metric: Metric) -> Cell:
    """A gain with its interval."""
    if found is None:
        return Cell(NONE)
    return Cell(bracketed(found, metric), found.mean, (found.low, found.mean, found.high))


def gained(value: float, metric: Metric) -> Cell:
    return Cell(gain(value, metric), value)


def plain(shown: float, value: float | None = None) -> Cell:
    if np.isnan(shown):
        return Cell(NONE)
    return Cell(f"{shown:.1f}", shown if value is None else value)


def integer(value: int | None) -> Cell:
    return Cell(NONE if value is None else str(value), value)


def share(value: float) -> Cell:
    return Cell(percent(value), value)


def seconds(value: float) -> Cell:
    return Cell(NONE) if np.isnan(value) else Cell(f"{value:.3g} s", value)


def octets(value: int) -> Cell:
    return Cell(size(value), value)


def beside(text: str, value: float, base: float | None) -> Cell:
    """A number, and in brackets how many times that of FedAvg it is."""
    return Cell(f"{text} ({value / base:.2f})" if base else text, value)


def ratio(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:.2f}", value)


def correlated(found: Correlation) -> Cell:
    return Cell(correlation(found), None if np.isnan(found.r) else found.r)


def word(text: str) -> Cell:
    """Text that is sorted by."""
    return Cell(text, text)


def reasons(found: Sequence[str]) -> str:
    """How often each, the most frequent first."""
    counted = Counter(sorted(found)).most_common()
    named = [f"{n} × {reason}" for reason, n in counted[:NAMED]]
    rest = sum(n for _, n in counted[NAMED:])
    return "; ".join([*named, f"{rest} × others"] if rest else named)
