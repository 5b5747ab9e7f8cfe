"""A site's privacy: one plan per run, and a round's answer stored and charged before it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgfed.config.privacy import SitePrivacy
from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation, Shard
from pgfed.engine import privacy as protecting
from pgfed.engine.privacy import Protection
from pgfed.engine.storage.durable import state_from_bytes, state_to_bytes
from pgfed.errors import UserError
from pgfed.federation.folders.folder import SiteFolder, digest
from pgfed.federation.folders.models import make_model
from pgfed.federation.site import ledger as ledgers
from pgfed.federation.site.house import Refused
from pgfed.federation.site.ledger import Entries, Ledger, Line, Place
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.methods.randomness import draw_cohort
from pgfed.methods.values import State
from pgfed.model.private import checks
from pgfed.model.private.noise import Secret, Source
from pgfed.model.private.policy import COUNTS, Policy, Releases
from pgfed.model.private.units import Units
from pgfed.model.private.view import PrivateTask
from pgfed.model.task import Task
from pgfed.privacy import accounting, planning

NOTE = "ledger.json"  # in the site's state folder: how long the ledger was
ASKED = ("stage", "run", "method", "seed", "round", "base")  # by which a request is known again
WITHHELD = "withheld: this site trains with privacy, and its scores stay there"


def ledger_of(folder: SiteFolder, data: str = "", at: Path | None = None) -> Ledger:
    """Beside the data, so that two federations on the same data meet in it."""
    table = folder.file.private
    place = (at or folder.path) / Path((data or folder.file.data).partition(":")[2]).expanduser()
    where = place.with_name(f"{place.name}.privacy")
    if table.ledger is not None:
        where = folder.path / Path(table.ledger).expanduser()
    return Ledger(where.absolute(), folder.states / NOTE)


def made(
    folder: SiteFolder,
    experiment: Experiment,
    methods: Mapping[str, Algorithm],
    federation: Federation,
    data: str,
    at: Path,
) -> Private | None:
    """The site's privacy; None where it has none, and never had."""
    ledger = ledger_of(folder, data, at)
    table = folder.file.private
    if table.on:
        return Private(folder, table, experiment, methods, federation, ledger)
    if ledger.exists or ledger.seen():
        raise UserError(
            f"privacy: {ledger.folder} holds a ledger of these records, and site.toml has no "
            "privacy.epsilon; nothing is answered without it"
        )
    return None


class SiteProtection(Protection):
    """Draws and noise are the operating system's; class counts come from the ledger."""

    known: list[float] | None = None  # class counts that were released
    fresh: list[float] | None = None  # that will be, with this answer
    last: PrivateTask | None = None

    def source(self, key: int, *purpose: object) -> Source:
        return Secret()

    def view(
        self, task: Task, federation: Federation, algorithm: Algorithm, client: int, round: int
    ) -> tuple[PrivateTask, Shard]:
        view, data = super().view(task, federation, algorithm, client, round)
        object.__setattr__(self, "last", view)
        return view, data

    def counts(self, view: PrivateTask, units: Units, key: int, classes: int) -> Tensor:
        counts = self.known or self.fresh
        if counts is None:
            counts = super().counts(view, units, key, classes).tolist()
            object.__setattr__(self, "fresh", counts)
        return torch.tensor(counts)


class Private:
    """What a site may give, and has given."""

    def __init__(
        self,
        folder: SiteFolder,
        table: SitePrivacy,
        experiment: Experiment,
        methods: Mapping[str, Algorithm],
        federation: Federation,
        ledger: Ledger,
    ) -> None:
        self._folder, self._table, self._experiment = folder, table, experiment
        self._methods, self._federation, self.ledger = methods, federation, ledger
        self._client = folder.file.client
        self._task = make_model(folder.file, experiment, experiment.seeds[0], federation)
        self._unit = protecting.unit_of(table, federation)
        self._protections: dict[tuple[str, str, int], SiteProtection] = {}
        protecting.check_experiment(experiment, federation.schema)
        checks.check_objective(self._task.objective)
        checks.check_model(self._task)
        for name, method in methods.items():
            if not self.exempt(name):
                planning.check_method(name, method, self._task.layout)
        if table.epsilon is None:
            raise UserError("privacy.epsilon: a site needs a budget beside its noise_multiplier")
        with ledger.locked() as entries:
            self._open(entries)
            ledger.tidy(entries)

    def exempt(self, method: str) -> bool:
        """Whether nothing of a method leaves."""
        return planning.gives_nothing(self._methods[method], self._task.layout)

    def covered(self, method: str) -> bool:
        return self._methods[method].covered

    # -- the ledger's first line -----------------------------------------------------------------

    def _open(self, entries: Entries) -> None:
        table = self._table
        size = table.size or planning.declared(self._units(0))
        size_test = table.size_test or planning.declared(self._units(2))
        assert table.epsilon is not None, "checked before"
        if entries.opened is None:
            planning.check_delta(table, size)
            ledgers.open_ledger(
                self.ledger,
                entries,
                epsilon=table.epsilon,
                delta=table.delta,
                unit=self._unit,
                size=size,
                size_test=size_test,
            )
        opened = entries.opened
        assert opened is not None
        epsilon, delta = entries.budget
        found = {"epsilon": table.epsilon, "delta": table.delta, "unit": self._unit}
        known = {"epsilon": epsilon, "delta": delta, "unit": opened["unit"]}
        if table.size is not None:
            found["size"], known["size"] = table.size, opened["size"]
        for key, value in found.items():
            if value != known[key]:
                raise UserError(
                    f"privacy.{key}: found {value}, and the ledger was opened with {known[key]}; "
                    "put that back, or change the budget with `pgfed privacy open --epsilon`"
                )
        self.size, self.size_test = int(opened["size"]), int(opened["size_test"])

    def _units(self, part: int) -> int:
        bounds = self._federation.bounds[self._client]
        rows = Shard(
            self._federation.x[bounds[part] : bounds[part + 1]],
            self._federation.y[bounds[part] : bounds[part + 1]],
        )
        groups = self._federation.groups(self._client, part) if self._unit == "group" else None
        return len(Units.of(rows, groups)) if len(rows) else 0

    # -- plans -----------------------------------------------------------------------------------

    def _plan(self, entries: Entries, run: str) -> Line:
        """The run's plan; reserved now, if it has none."""
        known = entries.plan(run)
        agreed = digest(self._folder.file, self._experiment)
        if known is not None:
            if known["digest"] != agreed:
                raise Refused("this run's plan was made for another experiment")
            return known
        ledgers.reserve(self.ledger, entries, self._drafted(entries, run, agreed))
        found = entries.plan(run)
        assert found is not None
        return found

    def _drafted(self, entries: Entries, run: str, agreed: str) -> Line:
        """All methods and seeds of the experiment are about the same records: one slice."""
        table = self._table
        (left, _), (budget, budget_delta) = entries.left, entries.budget
        epsilon = min(table.run_epsilon or left, left)
        if epsilon <= 0:
            raise Refused("the privacy budget of this site is used up")
        delta = budget_delta * epsilon / budget
        order, releases = self._course(entries)
        times = len(order)
        total = planning.total_in_order(order, releases)
        if table.noise_multiplier is None:
            noises, spent = accounting.planned(total, epsilon, delta)
        else:
            noises = accounting.noise(total, table.noise_multiplier)
            times = planning.longest(order, releases, noises, epsilon, delta)
            history = accounting.history(planning.total_in_order(order[:times], releases), noises)
            spent = accounting.spent(history, delta)
        allowed = Counter(order[:times])
        scale = checks.loss_scale(self._task.objective, self._task.outputs, table.loss_scale)
        if scale is None and any(map(planning.needs_scale, releases.values())):
            raise UserError("privacy.loss_scale: losses are summed; give their bound")
        return {
            "run": run,
            "digest": agreed,
            "epsilon": spent.epsilon,
            "delta": delta,
            "accountant": spent.accountant,
            "clip": table.clip,
            "personal": table.personal,
            "loss_scale": scale or 1.0,
            "noise": noises,
            "rounds": [[method, seed, allowed[method, seed]] for method, seed in allowed],
            "releases": {
                name: [[kind, q, n] for (kind, q), n in sorted(found.items())]
                for name, found in releases.items()
            },
        }

    def _course(self, entries: Entries) -> tuple[list[tuple[str, int]], dict[str, Releases]]:
        """Every participation in the order in which it will be asked for; what each releases."""
        info = self._info
        releases: dict[str, Releases] = {}
        order: list[tuple[str, int]] = []
        for seed in self._experiment.seeds:
            for name, method in self._methods.items():
                if self.exempt(name):
                    continue
                if name not in releases:
                    found = planning.dry_or_refuse(
                        name,
                        method,
                        self._task,
                        info,
                        self.size,
                        self._table,
                        self._experiment.rounds,
                    )
                    if entries.counts is not None:
                        found = Counter({k: n for k, n in found.items() if k[0] != COUNTS})
                    releases[name] = found
                drawn = sum(self.drawn(seed, t) for t in range(1, self._experiment.rounds + 1))
                order += [(name, seed)] * min(drawn, self._table.participations or drawn)
        return order, releases

    @property
    def _info(self) -> FederationInfo:
        seats = self._folder.file.seats
        return FederationInfo(seats, self._experiment.cohort_size(seats), self._task.layout)

    def drawn(self, seed: int, round: int) -> bool:
        """Whether this site is of the round's cohort, which everybody can compute."""
        info, keys = self._info, self._federation.keys
        named = None if keys is None else list(keys)
        return self._client in draw_cohort(seed, round, info.clients, info.cohort, named)

    def protection(self, run: str, method: str, seed: int) -> SiteProtection:
        """As the run's plan has it."""
        with self.ledger.locked() as entries:
            line, counts = self._plan(entries, run), entries.counts
        if (run, method, seed) not in self._protections:
            releases = {(kind, float(q)): int(n) for kind, q, n in line["releases"][method]}
            policy = Policy(
                self.size,
                line["clip"],
                line["noise"],
                line["loss_scale"],
                self._unit,
                line["personal"],
                releases,
            )
            self._protections[run, method, seed] = SiteProtection({self._client: policy}, seed)
        found = self._protections[run, method, seed]
        object.__setattr__(found, "known", counts)
        return found

    # -- a round ---------------------------------------------------------------------------------

    def answer(
        self,
        place: Place,
        base: int,
        asked: str,
        work: Callable[[SiteProtection], tuple[State, str]],
    ) -> State:
        """What leaves for this request: stored and charged first; the same for the same request.

        ``work`` gives the update and the SHA-256 of the new state, which it has put on disk.
        """
        run, method, seed, round = place
        with self.ledger.locked() as entries:
            line = self._plan(entries, run)
            if (told := self._again(entries, place, asked)) is not None:
                return told
            self._check_turn(entries, line, place)
        protection = self.protection(run, method, seed)
        update, state = work(protection)
        assert protection.last is not None, "the method was given a view"
        reply = state_to_bytes(update)
        sent = self.ledger.put(reply)
        with self.ledger.locked() as entries:
            if (told := self._again(entries, place, asked)) is not None:
                return told  # another process was first
            self._check_turn(entries, line, place)
            if protection.fresh is not None and entries.counts is None:
                self.ledger.append(entries, "once", counts=protection.fresh)
            self.ledger.append(
                entries,
                "charge",
                run=run,
                method=method,
                seed=seed,
                round=round,
                base=base,
                asked=asked,
                sent=sent,
                state=state,
                meter=[
                    [kind, q, n] for (kind, q), n in sorted(protection.last.meter.releases.items())
                ],
            )
        return state_from_bytes(reply)

    def _again(self, entries: Entries, place: Place, asked: str) -> State | None:
        """The stored answer to a request that was answered; another one is refused."""
        charge = entries.charge(place)
        if charge is None:
            return None
        if charge["asked"] != asked:
            raise Refused(
                f"round {place[3]} was answered, to another message; under privacy each round is "
                "answered once"
            )
        return state_from_bytes(self.ledger.reply(charge))

    def _check_turn(self, entries: Entries, line: Line, place: Place) -> None:
        run, method, seed, round = place
        most = {(name, s): times for name, s, times in line["rounds"]}.get((method, seed), 0)
        if entries.charges(run, method, seed) >= most:
            raise Refused(
                f"the privacy budget of this run is used up: {most} rounds of {method}, seed "
                f"{seed}, were planned"
            )
        if not self.drawn(seed, round):
            raise Refused(f"this site is not drawn in round {round}")

    def state_of(self, place: Place) -> str:
        """The SHA-256 of the state that this round left; only what was charged counts."""
        with self.ledger.locked() as entries:
            charge = entries.charge(place)
        if charge is None:
            raise Refused(
                f"round {place[3]} of this run is not in the ledger: privacy was switched on in "
                "mid-run, or the ledger is of other records"
            )
        return str(charge["state"])

    def declared(self) -> dict[str, Any]:
        """What is told in the place of what there is."""
        sizes = {"n_train": self.size, "n_validation": 0, "n_test": self.size_test}
        return {**sizes, "privacy": self._said()}

    def _said(self) -> str:
        """For the server's report: what this site's ledger promises, and has reserved."""
        with self.ledger.locked() as entries:
            (epsilon, delta), (spent, _) = entries.budget, entries.reserved
        return (
            f"epsilon {epsilon:g}, of which {spent:.2f} reserved, delta {delta:g}, "
            f"per {self._unit}, {self.size} declared"
        )

    def facts(self, run: str, method: str) -> dict[str, Any]:
        """For the manifest of a model that stays here, and for the server's report."""
        with self.ledger.locked() as entries:
            line = entries.plan(run)
        spent = {} if line is None else {k: line[k] for k in ("epsilon", "delta", "noise", "clip")}
        return {
            **spent,
            "unit": self._unit,
            "size": self.size,
            "personal": self._table.personal,
            "covered": self.covered(method),
        }
