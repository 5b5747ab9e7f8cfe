"""Tables about what happened on the way: lost replies, sites, attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgfed.report.tables.cells import (
    NAMED,
    Cell,
    Column,
    Table,
    fill,
    gained,
    integer,
    octets,
    reasons,
    seconds,
    seeds,
    word,
)
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group, Method
from pgfed.results.folder.history import Site
from pgfed.results.formats import NONE, sentence
from pgfed.results.runs import NO_ATTACK, RunData, SeedRun
from pgfed.results.statistics import Floats

# -- replies that did not count ----------------------------------------------------------------


@dataclass(frozen=True)
class _Lost:
    """Replies of a method's clients."""

    label: str
    clients: list[str]
    reasons: list[str]


def _clients(lost: _Lost) -> Cell:
    named, more = lost.clients[:NAMED], len(lost.clients) - NAMED
    return Cell(", ".join(named) + (f" and {more} more" if more > 0 else ""), len(lost.clients))


_LOST: list[Column[_Lost]] = [
    Column("method", "Method", "", lambda o: Cell(o.label)),
    Column("replies", "Replies", "Dropped replies over all seeds",
           lambda o: integer(len(o.reasons))),
    Column("clients", "Clients", "Whose replies they were", _clients),
    Column("reasons", "Reasons", "How often each", lambda o: Cell(reasons(o.reasons))),
]  # fmt: skip


def dropped(group: Group) -> Table:
    """Replies that did not count."""
    rows = []
    for method in group.methods:
        found = [drop for run in method.runs.values() for drop in run.history.dropped]
        names = [group.clients.names[i] for i in sorted({client for _, client, _ in found})]
        if found:
            lost = _Lost(method.label, names, [reason for _, _, reason in found])
            rows.append((method.label, lost))
    return fill(
        "dropped-table",
        "Replies that did not come or were refused; the round went on without them.",
        _LOST,
        rows,
    )


# -- sites -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AtSite:
    """A method's work at a site, all seeds together."""

    name: str
    label: str
    all: Site


def _together(seeds: Sequence[Site]) -> Site:
    return Site(
        asked=sum(site.asked for site in seeds),
        counted=sum(site.counted for site in seeds),
        seconds=[wait for site in seeds for wait in site.seconds],
        work_seconds=sum(site.work_seconds for site in seeds),
        bytes_down=sum(site.bytes_down for site in seeds),
        bytes_up=sum(site.bytes_up for site in seeds),
        failures=[reason for site in seeds for reason in site.failures],
    )


_SITE: list[Column[_AtSite]] = [
    Column("site", "Site", "", lambda s: Cell(s.name)),
    Column("method", "Method", "", lambda s: word(s.label)),
    Column("asked", "Asked", "Rounds in which its update was asked for",
           lambda s: integer(s.all.asked)),
    Column("counted", "Counted", "Rounds in which its update was used",
           lambda s: integer(s.all.counted)),
    Column("seconds", "Answer, mean", "From asking for an update to having it",
           lambda s: seconds(stats.mean_std(s.all.seconds)[0])),
    Column("slowest", "Slowest", "The slowest answer",
           lambda s: seconds(max(s.all.seconds, default=float("nan")))),
    Column("work_seconds", "Training", "All rounds together",
           lambda s: seconds(s.all.work_seconds)),
    Column("bytes_down", "Down", "From the server to the site",
           lambda s: octets(s.all.bytes_down)),
    Column("bytes_up", "Up", "From the site to the server", lambda s: octets(s.all.bytes_up)),
    Column("failures", "Failures", "How often each",
           lambda s: Cell(reasons(s.all.failures) or "none", len(s.all.failures))),
]  # fmt: skip


def sites(group: Group) -> Table:
    """What a federation over Flower was like with each site."""
    rows = []
    for method in group.methods:
        found = [run.history.sites for run in method.runs.values()]
        for i in sorted({client for sites in found for client in sites}):
            site = _together([sites[i] for sites in found if i in sites])
            rows.append((method.label, _AtSite(group.clients.names[i], method.label, site)))
    return fill(
        "sites-table",
        "Over all rounds and seeds. An answer takes the site's training, the way there and back, "
        "and waiting; bytes are those of the messages as they were sent.",
        _SITE,
        rows,
    )


# -- attacks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _UnderAttack:
    """A method's runs in one folder."""

    group: Group
    folder: RunData
    name: str
    runs: Mapping[int, SeedRun]

    @property
    def method(self) -> Method:
        """That these runs are of."""
        run = next(iter(self.runs.values()))
        return next(m for m in self.group.methods if any(r is run for r in m.runs.values()))

    @property
    def scores(self) -> Floats:
        """Seeds x clients, of the kept models; in every row of the same clients."""
        return self.method.scores("kept", list(self.runs))


def _against_no_attack(under: _UnderAttack) -> Cell:
    calm = {"aggregation": "mean", "attack": NO_ATTACK}
    metric = under.group.metric
    for method in under.group.methods:
        if method.name == under.name and method.settings | calm == method.settings:
            both = [s for s, r in under.runs.items() if method.runs.get(s, r) is not r]
            if not both:
                return Cell(NONE)
            own, calm_own = under.method.scores("kept", both), method.scores("kept", both)
            mean, _ = stats.mean_std(own - calm_own)
            return Cell(NONE) if np.isnan(mean) else gained(metric.sign * mean, metric)
    return Cell(NONE)


def _left_out(under: _UnderAttack) -> Cell:
    left = [i in run.attackers for run in under.runs.values() for _, i in run.history.left_out]
    return Cell(f"{len(left)}, {sum(left)} of them attackers'" if left else "0", len(left))


_ATTACK: list[Column[_UnderAttack]] = [
    Column("method", "Method", "", lambda u: Cell(u.name)),
    Column("run", "Run", "The folder of the run", lambda u: word(u.folder.path.name)),
    Column("attack", "Attack", "Its kind, how many times as long, the share of attackers",
           lambda u: word(u.folder.attack)),
    Column("defence", "Aggregation", "How replies become one; mean is no defence",
           lambda u: word(u.folder.experiment.engine.aggregation)),
    Column("honest", "Honest clients", "Mean score of their kept models",
           lambda u: seeds([stats.mean_std(row)[0] for row in u.scores], u.group.metric)),
    Column("against", "Against no attack", "Gain, over the same clients and seeds",
           _against_no_attack),
    Column("refused", "Refused", "Replies that were refused or did not come",
           lambda u: integer(sum(len(run.history.dropped) for run in u.runs.values()))),
    Column("left_out", "Left out", "Replies that krum left out, and whose they were", _left_out),
]  # fmt: skip


def attack(group: Group) -> Table:
    """What an attack costs the honest clients, and what a defence saves."""
    return fill(
        "attack-table",
        f"{sentence(group.metric.title)} is the honest clients' mean, of the kept models; "
        "attackers, whom the seed draws, are left out here and everywhere on this page. The "
        "difference is over the same clients and seeds in a run that nobody attacked and nobody "
        "defended.",
        _ATTACK,
        [(under.method.label, under) for under in _under_attack(group)],
    )


def _under_attack(group: Group) -> Iterator[_UnderAttack]:
    """Method by method, folder by folder."""
    if not group.attacked:
        return
    for name in dict.fromkeys(method.name for method in group.methods):
        for folder in group.folders:
            if runs := folder.runs.get(name):
                yield _UnderAttack(group, folder, name, runs)
