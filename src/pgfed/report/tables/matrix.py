"""The table of the learned matrix A: experiment E4 with its controls."""

from __future__ import annotations

from dataclasses import dataclass

from pgfed.report.tables.cells import Cell, Column, Table, correlated, fill, plain, share
from pgfed.results.comparison import Group
from pgfed.results.statistics import Helpfulness


@dataclass(frozen=True)
class _Run:
    """A run with a matrix, and what the matrix says."""

    label: str
    a: Helpfulness


_COLUMNS: list[Column[_Run]] = [
    Column("run", "Run", "Method and seed", lambda r: Cell(r.label)),
    Column("column_size", "Column mean ~\u00a0n", "Weight others give to j; the paper: positive",
           lambda r: correlated(r.a.column_size)),
    Column("row_size", "Row mean ~\u00a0n", "Weight i gives to others; the paper: negative",
           lambda r: correlated(r.a.row_size)),
    Column("column_step", "Column, per step ~\u00a0n", "The control: change per step of alpha",
           lambda r: correlated(r.a.column_per_step_size)),
    Column("row_step", "Row, per step ~\u00a0n", "The control: change per step of alpha",
           lambda r: correlated(r.a.row_per_step_size)),
    Column("column_met", "Column ~ meetings", "Is it only how often j was met?",
           lambda r: correlated(r.a.column_meetings)),
    Column("meetings", "Meetings per pair", "Rounds in which i trained with j's gradient",
           lambda r: plain(r.a.meetings_per_pair)),
    Column("at_zero", "At zero", "Share of entries clamped at zero", lambda r: share(r.a.at_zero)),
    Column("increased", "Increased", "Share of entries above 1/M", lambda r: share(r.a.increased)),
    Column("never_met", "Never met", "Share of entries that could not change",
           lambda r: share(r.a.never_met)),
]  # fmt: skip


def matrix(group: Group) -> Table:
    """A row per run that learned one."""
    return fill(
        "matrix-table",
        "Correlation (Pearson's r, permutation p) of the changes of A with the clients' training "
        "samples. A client with more data takes more steps of its alphas in a round, so the rows "
        "must also be read per step; by how often a pair met is the other control.",
        _COLUMNS,
        [
            (method.label, _Run(method.run_label(run), found))
            for method in group.methods
            for run in method.runs.values()
            if (found := group.helpfulness(method, run)) is not None
        ],
    )
