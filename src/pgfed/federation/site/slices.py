"""What a run takes of a site's budget: its plan, made by the site before it answers anything."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation
from pgfed.engine import privacy as protecting
from pgfed.engine.personal import covered
from pgfed.errors import UserError
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.site.house import Refused
from pgfed.federation.site.ledger import Entries, Line
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.methods.randomness import draw_cohort
from pgfed.model.private import checks
from pgfed.model.private.policy import COUNTS, SCORES, Releases
from pgfed.model.task import Task
from pgfed.privacy import accounting, planning

Course = list[tuple[str, int]]  # participations in their order: method and seed of each


@dataclass(frozen=True)
class Slices:
    """Drafts the plans of a site's runs from its own files alone."""

    folder: SiteFolder
    experiment: Experiment
    methods: Mapping[str, Algorithm]
    federation: Federation
    task: Task

    def exempt(self, method: str) -> bool:
        """Whether nothing of a method leaves."""
        return protecting.exempt(self.methods[method], self.task.layout)

    def scored(self, method: str) -> bool:
        """Whether the model's scores leave once, after the last round."""
        own = self.methods[method]
        ends = self.folder.file.private.scores == "end"
        return ends and not self.exempt(method) and covered(own)

    @property
    def _info(self) -> FederationInfo:
        seats = self.folder.file.seats
        return FederationInfo(seats, self.experiment.cohort_size(seats), self.task.layout)

    def drawn(self, seed: int, round: int) -> bool:
        """Whether this site is of the round's cohort, which everybody can compute."""
        info, keys = self._info, self.federation.keys
        named = None if keys is None else list(keys)
        cohort = draw_cohort(seed, round, info.clients, info.cohort, named)
        return self.folder.file.client in cohort

    def check(self, entries: Entries, size: int) -> None:
        """Refuse at the site's start what would fail in every round, where its operator sees it."""
        accounting.check_installed()
        _, releases = self._course(entries, size)
        self._loss_scale(releases)

    def drafted(self, entries: Entries, run: str, agreed: str, size: int) -> Line:
        """All methods and seeds of the experiment are about the same records: one slice."""
        table = self.folder.file.private
        (left, left_delta), (budget, budget_delta) = entries.left, entries.budget
        epsilon = min(table.run_epsilon or left, left)
        delta = min(budget_delta * epsilon / budget, left_delta)
        if epsilon <= 0 or delta <= 0:
            raise Refused("the privacy budget of this site is used up")
        order, releases = self._course(entries, size)
        times, scores = len(order), self._scores(order)
        total = _total(order, releases, scores)
        if table.noise_multiplier is None:
            noises, spent = accounting.planned(total, epsilon, delta)
        else:
            noises = accounting.noise(total, table.noise_multiplier)
            times = planning.longest(
                len(order), lambda n: _total(order[:n], releases, scores), noises, epsilon, delta
            )
            history = accounting.history(_total(order[:times], releases, scores), noises)
            spent = accounting.spent(history, delta)
            if spent.epsilon > epsilon:
                raise Refused("the noise of this site's scores alone is more than a run may spend")
        allowed = Counter(order[:times])
        return {
            "run": run,
            "server": self._server(),
            "digest": agreed,
            "epsilon": spent.epsilon,
            "delta": delta,
            "accountant": spent.accountant,
            "clip": table.clip,
            "personal": table.personal,
            "loss_scale": self._loss_scale(releases),
            "noise": noises,
            "rounds": [[method, seed, allowed[method, seed]] for method, seed in allowed],
            "scores": sorted({method for method, _ in order if self.scored(method)}),
            "releases": {
                name: [[kind, q, n] for (kind, q), n in sorted(found.items())]
                for name, found in releases.items()
            },
        }

    def _loss_scale(self, releases: Mapping[str, Releases]) -> float:
        given = self.folder.file.private.loss_scale
        scale = checks.loss_scale(self.task.objective, self.task.outputs, given)
        if scale is None and any(map(planning.needs_scale, releases.values())):
            raise UserError("privacy.loss_scale: losses are summed; give their bound")
        return scale or 1.0

    def _server(self) -> str:
        """By what the site knows the server: of its certificate's authority the SHA-256."""
        if self.folder.file.insecure or not self.folder.authority.is_file():
            return ""
        return hashlib.sha256(self.folder.authority.read_bytes()).hexdigest()

    def _course(self, entries: Entries, size: int) -> tuple[Course, dict[str, Releases]]:
        """Every participation in the order in which it will be asked for; what each releases."""
        table, rounds = self.folder.file.private, self.experiment.rounds
        releases: dict[str, Releases] = {}
        order: Course = []
        for seed in self.experiment.seeds:
            drawn = sum(self.drawn(seed, t) for t in range(1, rounds + 1))
            for name, method in self.methods.items():
                if self.exempt(name):
                    continue
                if name not in releases:
                    releases[name] = protecting.released(
                        name, method, self.task, self._info, size, table, rounds
                    )
                    if entries.counts(self.folder.file.classes) is not None:
                        del releases[name][COUNTS, 1.0]
                order += [(name, seed)] * min(drawn, table.participations or drawn)
        return order, releases

    def _scores(self, order: Course) -> int:
        """How often scores leave: once for each method and seed."""
        return sum(self.scored(method) for method, _ in set(order))


def _total(order: Course, releases: Mapping[str, Releases], scores: int) -> Releases:
    """What these participations release; class counts once, and so many scores."""
    total: Releases = Counter({(SCORES, 1.0): scores} if scores else {})
    for (method, _), times in Counter(order).items():
        for (kind, q), n in releases[method].items():
            total[kind, q] = 1 if kind == COUNTS else total[kind, q] + n * times
    return total
