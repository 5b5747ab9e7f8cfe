"""Tables about the clients: who gained, and how each domain fares."""

from __future__ import annotations

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.report.tables.cells import (
    Cell,
    Column,
    Table,
    fill,
    gained,
    integer,
    score,
    seeds,
)
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import bare, sentence
from pgfed.results.statistics import Gain
from pgfed.results.summary import number

Gained = tuple[str, Gain]  # a method's label and what its clients gained


def _gains(metric: Metric) -> list[Column[Gained]]:
    def points(value: float) -> Cell:
        return gained(value, metric)

    return [
        Column("method", "Method", "", lambda g: Cell(g[0])),
        Column("mean", "Mean", "Over the clients", lambda g: points(g[1].mean)),
        Column("std", "Std", "Sample standard deviation over the clients",
               lambda g: Cell(bare(g[1].std, metric), number(g[1].std))),
        Column("worst_decile", "Worst tenth",
               "Mean over the tenth of the clients that gained least",
               lambda g: points(g[1].worst_decile)),
        Column("minimum", "Minimum", "The client that gained least",
               lambda g: points(float(np.nanmin(g[1].per_client)))),
        Column("maximum", "Maximum", "The client that gained most",
               lambda g: points(float(np.nanmax(g[1].per_client)))),
        Column("gained", "Gained", "Clients better off than alone",
               lambda g: integer(g[1].gained)),
        Column("lost", "Lost", "Clients worse off than alone", lambda g: integer(g[1].harmed)),
        Column("unchanged", "Unchanged", "Clients exactly as well off",
               lambda g: integer(g[1].unchanged)),
    ]  # fmt: skip


def gains(group: Group) -> Table:
    """Individual gain over the baseline (the paper's third table)."""
    found = [(m.label, gain) for m in group.methods if (gain := group.gain(m)) is not None]
    return fill(
        "gains-table",
        f"Gain over {group.over} per client{_counted(group.metric)}, on the last ten rounds; each "
        "client's mean over the seeds.",
        _gains(group.metric),
        [(label, (label, gain)) for label, gain in found],
    )


def _counted(metric: Metric) -> str:
    return ", in points" if metric.unit == "share" else f" in {metric.title}; above zero is better"


def domain_names(group: Group) -> list[str]:
    """Each once."""
    return list(dict.fromkeys(group.clients.domains or []))


def domain(group: Group, name: str) -> Column[Method]:
    """How the clients of one domain fare."""
    members = np.array(group.clients.domains) == name

    def cell(method: Method) -> Cell:
        return seeds(np.nanmean(method.scores("best")[:, members], axis=1).tolist(), group.metric)

    return Column(name, name, f"Clients of the domain {name}", cell)


def domains(group: Group) -> Table:
    """Scores by domain, at each method's best round (the paper's Office-Home table)."""
    names = domain_names(group)
    return fill(
        "domains-table",
        f"{sentence(group.metric.title)}, mean over the clients of each domain, at the method's "
        "best round on test data.",
        [
            Column("method", "Method", "", lambda m: Cell(m.label)),
            *(domain(group, name) for name in names),
            Column("all", "All clients", "", lambda m: score(m, "best", group.metric)),
        ],
        [(method.label, method) for method in group.methods if len(names) > 1],
    )
