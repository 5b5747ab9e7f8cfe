"""Tables about the clients: who gained, and how each domain fares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgfed.model.metrics import Metric
from pgfed.report.tables.cells import (
    NOT_JUDGED,
    Cell,
    Column,
    Table,
    fill,
    gained,
    integer,
    score,
    seeds,
    word,
)
from pgfed.results import statistics as stats
from pgfed.results.caveats import called, listed
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import NONE, axis, bare, count, sentence
from pgfed.results.gains.clients import Gain
from pgfed.results.statistics import Floats
from pgfed.results.summary import number
from pgfed.results.verdict import gains as gains_of
from pgfed.results.verdict import judge

MOST = 1_000  # clients that have a row

NONE_TOLD = "not known"  # without evidence

Gained = tuple[str, Gain]  # a method's label and what its clients gained


# -- client by client --------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """The method whose gains are shown client by client, and what it is held against."""

    group: Group
    method: Method
    baseline: Method
    gain: Gain

    def scores(self, method: Method) -> Floats:
        """Per client, the mean over the seeds that both have."""
        seeds = sorted(self.method.runs.keys() & self.baseline.runs.keys())
        return stats.mean_over_seeds(method.scores("kept", seeds))

    def rounds(self) -> Floats:
        """In how many each client's training counted, the mean over the seeds."""
        counted = np.zeros(len(self.group.clients))
        for run in self.method.runs.values():
            for record in run.history.records:
                lost = {drop["client"] for drop in record["dropped"]}
                counted[[i for i in record["cohort"] if i not in lost]] += 1
        return counted / len(self.method.runs)


def shown_of(group: Group) -> Shown | None:
    """The method that the verdict is about, otherwise the best that has gains."""
    label, found = judge(group).method, gains_of(group)
    order = sorted(group.ranked, key=lambda method: method.label != label)
    for method in order:
        gain, baseline = found.get(method.label), group.baseline(method)
        if gain is not None and baseline is not None:
            return Shown(group, method, baseline, gain)
    return None


def each(group: Group) -> Table:
    """Every client: what it would have alone, what it has, and how surely that is more."""
    if (shown := shown_of(group)) is None:
        return Table("clients-table", "", [])
    names, n = group.clients.names, len(group.clients)
    stated = (
        "The statement allows for the number of clients (false discoveries at most 5 %); the 95 % "
        "interval speaks of one client by itself. Both speak of these models on other samples of "
        "the client, not of training again."
    )
    unstated = (
        "The run gives no verdict, so nobody is said to have gained or lost; an interval speaks of "
        "one client and of these models only."
    )
    return fill(
        "clients-table",
        f"With {shown.method.label}, against {shown.baseline.label}, by the kept models on each "
        f"client's own test samples. {stated if shown.gain.judged else unstated}{_by_luck(shown)}",
        _each(shown),
        [(names[i], i) for i in range(min(n, MOST))],
    )


def _by_luck(shown: Shown) -> str:
    """Why a client is not called, though its own interval leaves out zero; where there is one."""
    gain, names = shown.gain, shown.group.clients.names
    own = (gain.low > 0) | (gain.high < 0)
    found = [i for i, said in enumerate(gain.statements) if said == "cannot be told" and own[i]]
    if not found:
        return ""
    who = listed(called(names[i]) for i in found)
    out = "own interval leaves" if len(found) == 1 else "own intervals leave"
    return (
        f" Of {who} the {out} out zero, and yet it cannot be told: among "
        f"{count(gain.clients, 'client')} one can look like a winner or a loser by luck, so "
        "stronger proof is asked than an own interval."
    )


def _each(shown: Shown) -> list[Column[int]]:
    group, gain, metric = shown.group, shown.gain, shown.group.metric
    alone, own, rounds = shown.scores(shown.baseline), shown.scores(shown.method), shown.rounds()
    statements, clients = gain.statements, group.clients
    unsaid = NONE_TOLD if gain.judged else NOT_JUDGED
    domains: list[Column[int]] = []
    if clients.domains is not None:
        told = clients.domains
        domains = [Column("domain", "Domain", "", lambda i: word(told[i]))]

    def interval(i: int) -> Cell:
        low, mean, high = (float(v[i]) for v in (gain.low, gain.per_client, gain.high))
        if np.isnan(low) or np.isnan(high):
            return Cell(NONE)
        return Cell(f"{gained(low, metric).text} to {gained(high, metric).text}", low,
                    (low, mean, high))  # fmt: skip

    return [
        Column("client", "Client", "", lambda i: Cell(clients.names[i])),
        Column("statement", "Gained?", "What the test samples say, all clients allowed for",
               lambda i: word(statements[i] or unsaid)),
        Column("gain", "Gain", f"Of {shown.method.label} over {shown.baseline.label}",
               lambda i: gained(float(gain.per_client[i]), metric)),
        Column("interval", "95 % interval", "Of this client by itself", interval),
        Column("alone", shown.baseline.label, f"{sentence(axis(metric))}, without the others",
               lambda i: seeds([float(alone[i])], metric)),
        Column("federated", shown.method.label, f"{sentence(axis(metric))}, federated",
               lambda i: seeds([float(own[i])], metric)),
        Column("behind", "Test samples", f"That only {shown.method.label} (better) or only "
               f"{shown.baseline.label} (worse) got right, of how many",
               lambda i: Cell(gain.behind(i, noun=""), float(gain.n_test[i]))),
        Column("n_train", "Training samples", "", lambda i: integer(int(clients.n_train[i]))),
        Column("rounds", "Rounds", "In which its training counted",
               lambda i: Cell(f"{rounds[i]:.3g}", float(rounds[i]))),
        *domains,
    ]  # fmt: skip


# -- method by method --------------------------------------------------------------------------


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
        Column("gained", "Clearly gained", "Clients whose test samples say so",
               lambda g: integer(g[1].gained)),
        Column("lost", "Clearly lost", "Clients whose test samples say so",
               lambda g: integer(g[1].lost)),
        Column("untold", "Cannot be told", "Clients with too little evidence for either",
               lambda g: integer(g[1].untold)),
    ]  # fmt: skip


def gains(group: Group) -> Table:
    """Individual gain over the baseline (the paper's third table)."""
    return fill(
        "gains-table",
        f"Gain over {group.over} per client{_counted(group.metric)}, of the kept models; each "
        "client's mean over the seeds.",
        _gains(group.metric),
        [(label, (label, gain)) for label, gain in gains_of(group).items()],
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
