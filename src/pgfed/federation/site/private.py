"""A site's privacy: one plan per run, and a round's answer stored and charged before it leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgfed.config.privacy import SitePrivacy
from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation, Shard
from pgfed.engine import privacy as protecting
from pgfed.engine.personal import covered
from pgfed.engine.privacy import Protection
from pgfed.engine.storage.durable import state_from_bytes, state_to_bytes
from pgfed.errors import UserError
from pgfed.federation.folders.folder import SiteFolder, digest
from pgfed.federation.folders.models import make_model
from pgfed.federation.site import ledger as ledgers
from pgfed.federation.site.house import Refused
from pgfed.federation.site.ledger import OLD, Entries, Ledger, Line, Place, ledger_of
from pgfed.federation.site.slices import Slices
from pgfed.methods.contract import Algorithm
from pgfed.methods.values import State
from pgfed.model.private import checks
from pgfed.model.private.noise import Secret, Source
from pgfed.model.private.policy import Meter, Policy
from pgfed.model.private.units import Units
from pgfed.model.private.view import PrivateTask
from pgfed.model.task import Task
from pgfed.privacy import planning

ASKED = ("stage", "run", "method", "seed", "round", "base")  # by which a request is known again
LONGEST = 10**8  # lines of a ledger that a server may say it has seen
WITHHELD = "withheld: this site trains with privacy, and its scores stay there"


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
    if ledger.exists or ledger.seen() is not None:
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

    def class_counts(self, task: Task, federation: Federation, client: int) -> Tensor:
        """Never released: nothing is known of them."""
        return torch.ones(task.outputs) if self.known is None else torch.tensor(self.known)

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
        self._slices = Slices(folder, experiment, methods, federation, self._task)
        for name, method in methods.items():
            if not self.exempt(name):
                protecting.check_method(name, method, self._task.layout)
        if table.scores == "end" and self._task.objective.metric != "accuracy":
            raise UserError(
                f"privacy.scores: found 'end'; {self._task.objective.metric} is no sum over test "
                "units, which could be bounded; allowed: 'withheld', or task.metric = 'accuracy'"
            )
        if table.epsilon is None:
            raise UserError("privacy.epsilon: a site needs a budget beside its noise_multiplier")
        with ledger.locked() as entries:
            self.size, self.size_test = self._sizes(entries)
            self._slices.check(entries, self.size)
            self._open(entries)
            ledger.point()  # also of a ledger that was there, beside data that is new to it
            ledger.tidy(entries)

    def exempt(self, method: str) -> bool:
        """Whether nothing of a method leaves."""
        return self._slices.exempt(method)

    def covered(self, method: str) -> bool:
        return covered(self._methods[method])

    # -- the ledger's first line -----------------------------------------------------------------

    def _sizes(self, entries: Entries) -> tuple[int, int]:
        """The units to train on and to test on, as they are told to others."""
        if entries.opened is not None:
            return int(entries.opened["size"]), int(entries.opened["size_test"])
        table = self._table
        size = table.size or planning.declared(self._units(0))
        return size, table.size_test or planning.declared(self._units(2))

    def _open(self, entries: Entries) -> None:
        table = self._table
        assert table.epsilon is not None, "checked before"
        if entries.opened is None:
            planning.check_delta(table, self.size)
            ledgers.open_ledger(
                self.ledger,
                entries,
                epsilon=table.epsilon,
                delta=table.delta,
                unit=self._unit,
                size=self.size,
                size_test=self.size_test,
            )
        opened = entries.opened
        assert opened is not None
        epsilon, delta = entries.budget
        found = {"epsilon": table.epsilon, "delta": table.delta, "unit": self._unit}
        known = {"epsilon": epsilon, "delta": delta, "unit": opened["unit"]}
        for name in ("size", "size_test"):
            if (declared := getattr(table, name)) is not None:
                found[name], known[name] = declared, opened[name]
        for key, value in found.items():
            if value != known[key]:
                raise UserError(
                    f"privacy.{key}: found {value}, and the ledger was opened with {known[key]}; "
                    "put that back, or change the budget with `pgfed privacy open --epsilon`"
                )

    def _units(self, part: int) -> int:
        data = self._federation.test if part == 2 else self._federation.train
        rows = data(self._client)
        groups = self._federation.groups(self._client, part) if self._unit == "group" else None
        return len(Units.of(rows, groups)) if len(rows) else 0

    def _test_units(self) -> Units:
        groups = self._federation.groups(self._client, 2) if self._unit == "group" else None
        return Units.of(self._federation.test(self._client), groups)

    # -- plans -----------------------------------------------------------------------------------

    def _plan(self, entries: Entries, run: str) -> Line:
        """The run's plan; reserved now, if it has none."""
        known = entries.plan(run)
        agreed = digest(self._folder.file, self._experiment)
        if known is not None:
            if known["digest"] != agreed:
                raise Refused("this run's plan was made for another experiment")
            return known
        draft = self._slices.drafted(entries, run, agreed, self.size)
        try:
            ledgers.reserve(self.ledger, entries, draft)
        except ledgers.LedgerError as error:  # tells of the budget alone
            raise Refused(str(error)) from None
        found = entries.plan(run)
        assert found is not None
        return found

    def protection(self, run: str, method: str, seed: int) -> SiteProtection:
        """As the run's plan has it."""
        with self.ledger.locked() as entries:
            line = self._plan(entries, run)
            counts = entries.counts(self._folder.file.classes)
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
        run, method, seed, _ = place
        with self.ledger.locked() as entries:
            line = self._plan(entries, run)
            if (told := self._again(entries, place, asked)) is not None:
                return told
            self._check_turn(entries, line, place)
        protection = self.protection(run, method, seed)
        update, state = work(protection)
        assert protection.last is not None, "the method was given a view"
        reply = state_to_bytes(update)
        with self.ledger.locked() as entries:
            if (told := self._again(entries, place, asked)) is not None:
                return told  # another process was first
            self._check_turn(entries, line, place)
            sent = self.ledger.put(reply)
            self._keep_counts(entries, protection)
            meter, more = protection.last.meter, {"base": base, "state": state}
            self._charge(entries, "charge", place, asked=asked, sent=sent, meter=meter, **more)
        return state_from_bytes(reply)

    def _keep_counts(self, entries: Entries, protection: SiteProtection) -> None:
        """The class counts that this answer is the first to be made of: once for all."""
        if protection.known is not None or protection.fresh is None:
            return
        classes = self._folder.file.classes
        if entries.counts(classes) is not None:  # two would be more than was planned
            raise Refused("class counts were released meanwhile by another process; ask again")
        self.ledger.append(entries, "once", classes=classes, counts=protection.fresh)

    def _charge(
        self, entries: Entries, kind: str, place: Place, *, meter: Meter, **more: Any
    ) -> None:
        where = dict(zip(("run", "method", "seed", "round"), place, strict=True))
        releases = [[kind, q, n] for (kind, q), n in sorted(meter.releases.items())]
        self.ledger.append(entries, kind, **where, **more, meter=releases)

    def _again(
        self, entries: Entries, place: Place, asked: str, kind: str = "charge"
    ) -> State | None:
        """The stored answer to a request that was answered; another one is refused."""
        charge = entries.charge(place, kind)
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
        self._check_open(entries, line)
        most = {(name, s): times for name, s, times in line["rounds"]}.get((method, seed), 0)
        if entries.charges(run, method, seed) >= most:
            raise Refused(
                f"the privacy budget of this run is used up: {most} rounds of {method}, seed "
                f"{seed}, were planned"
            )
        if not self._slices.drawn(seed, round):
            raise Refused(f"this site is not drawn in round {round}")

    def _check_open(self, entries: Entries, line: Line) -> None:
        if entries.closed(line):
            raise Refused(
                "the ledger was repaired after this run's plan was made: what was answered in it "
                "is not known any more, and nothing more is"
            )

    def scores(
        self, place: Place, asked: str, theta: Callable[[], Tensor], task: Task
    ) -> State | None:
        """The one noisy score of a covered model, after the last round; None: it is withheld."""
        run, method, _, round = place
        last = round == self._experiment.rounds and self.size_test
        if not (last and self._slices.scored(method)):
            return None
        with self.ledger.locked() as entries:
            line = self._plan(entries, run)
            if (told := self._again(entries, place, asked, "score")) is not None:
                return told
            self._check_open(entries, line)
            if method not in line["scores"]:
                return None
        policy = Policy(self.size_test, line["clip"], line["noise"], line["loss_scale"], self._unit)
        view = PrivateTask(task, policy, Secret(), Meter(), who="scores")
        right, loss = view.scores(theta(), self._test_units(), self.size_test)
        scores: State = {
            "test_n": self.size_test,
            "test_loss": loss * self.size_test,
            "test_score": min(1.0, max(0.0, right)),
            "validation_n": 0,
            "validation_loss": 0.0,
        }
        with self.ledger.locked() as entries:
            if (told := self._again(entries, place, asked, "score")) is not None:
                return told  # another process was first
            self._check_open(entries, line)
            sent = self.ledger.put(state_to_bytes(scores))
            self._charge(entries, "score", place, asked=asked, sent=sent, meter=view.meter)
        return scores

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

    def declared(self, echo: object = None) -> dict[str, Any]:
        """What is told in the place of what there is. ``echo``: how the ledger ended when the
        server last heard of it; an older one is a backup that somebody put back."""
        with self.ledger.locked() as entries:
            if echo and not self._knows(entries, str(echo)):
                raise Refused(f"this site's ledger is older than the server knows it; {OLD}")
        sizes = {"n_train": self.size, "n_validation": 0, "n_test": self.size_test}
        return {**sizes, **self._told(entries)}

    def _told(self, entries: Entries) -> dict[str, Any]:
        (epsilon, delta), (spent, _) = entries.budget, entries.reserved
        said = (  # for the server's report
            f"epsilon {epsilon:g}, of which {spent:.2f} reserved, delta {delta:g}, "
            f"per {self._unit}, {self.size} declared"
        )
        return {"privacy": said, "ledger": entries.end}

    def _knows(self, entries: Entries, echo: str) -> bool:
        """What is not known is noted, for `repair` to count it in."""
        lines, _, head = echo.partition(" ")
        length = int(lines) if re.fullmatch(r"[0-9]{1,9}", lines) else None
        if length is not None and entries.has_ended(length, head, sealed=True):
            return True
        self.ledger.note(entries, lost=min(length or 0, LONGEST))
        return False

    @property
    def told(self) -> dict[str, Any]:
        """With each round: what has been spent by now, and how the ledger ends."""
        with self.ledger.locked() as entries:
            return self._told(entries)

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
