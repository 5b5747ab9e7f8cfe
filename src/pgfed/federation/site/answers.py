"""What a site does when it is asked. The same code as in simulation does the client's work.

A round is idempotent. Every request to train names the round whose state the work starts from, the
last one that the server has on record; the new state is a file of its own beside it. Asked for the
same round again, the site does the same work again, with the same result. A state is removed when
a later one has been named: by then the server remembers that later round for good.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from pgfed.engine.client import ClientSide
from pgfed.engine.exchange.compression import Damaged
from pgfed.engine.personal import fitted
from pgfed.engine.privacy import adapted
from pgfed.federation.flower.records import BadRecord, Head, field, pack, unpack
from pgfed.federation.folders.folder import SiteFolder, digest, load_experiment
from pgfed.federation.folders.keys import load_private, sign_claim
from pgfed.federation.folders.models import frozen_digests, make_model, make_side
from pgfed.federation.site import arriving, keeping, private
from pgfed.federation.site import data as sitedata
from pgfed.federation.site.house import (
    Refused,
    Seat,
    check_agreed,
    check_asked,
    check_consent,
    check_questions,
    facts_of,
    salted,
    told_of,
)
from pgfed.federation.site.record import Record, left
from pgfed.federation.site.states import States
from pgfed.methods.registry import BASELINE
from pgfed.methods.values import State
from pgfed.results.folder.layout import seed_folder

log = logging.getLogger(__name__)

Parts = dict[str, State]


class Site:
    """One site: its data, its key, its states, and the work it does."""

    def __init__(self, folder: SiteFolder, data: str = "") -> None:
        self.folder = folder
        self.file = folder.file
        self.client = folder.file.client
        self.experiment, self.methods = load_experiment(folder.experiment_file, folder.allowed)
        name, at = (data, Path.cwd()) if data else (self.file.data, folder.path)
        divided = adapted(self.experiment) if self.file.private.on else self.experiment
        self.federation = sitedata.load(folder, name, divided.data, at)
        task = make_model(self.file, self.experiment, self.experiment.seeds[0], self.federation)
        self.methods, _ = fitted(self.methods, self.experiment, task)
        self.longest = arriving.longest(task, self.file.seats)  # bytes of a message
        self._private = private.made(
            folder, self.experiment, self.methods, self.federation, name, at
        )
        self._key = load_private(folder.key)
        self._digest = digest(self.file, self.experiment)
        self._frozen = frozen_digests(self.file, self.experiment, self.federation)
        self._sides: dict[tuple[str, int], ClientSide] = {}
        self._facts = facts_of(self.federation, private=self._private is not None)
        self._record = Record(folder.path)
        self._told = ""  # why the last message was refused

    # -- being asked ---------------------------------------------------------------------------

    def answer(self, content: RecordDict, node: int) -> RecordDict:
        """The reply to any message, whatever is in it; an error is told and not raised."""
        head: Head = {}
        stages: dict[str, Callable[[Head, Parts, int], tuple[Head, Parts]]] = {
            "hello": self._hello,
            "train": self._train,
            "refresh": self._refresh,
            "score": self._score,
            "share": self._share,
            "personal": self._personal,
        }
        try:
            head, parts = unpack(content)
            stage = field(head, "stage", str)
            if stage not in stages:
                raise BadRecord(f"stage: found {stage!r:.40}")
            question = {} if stage == "hello" else self._permit(head, parts)
            reply, results = stages[stage](head, parts, node)
            self._note(head, reply, results, question)
            self._told = ""
        except Exception as error:
            why = told_of(error, self.file.names[self.client], private=self._private is not None)
            if why != self._told:  # the server asks again every few seconds
                log.warning("refused: %s", why)
            self._told = why
            reply, results = {"error": why}, {}
        reply |= {k: v for k, v in head.items() if k in ("stage", "ticket", "round")}
        return pack(reply, **results)

    @contextlib.contextmanager
    def _at_home(self) -> Iterator[None]:
        """What goes wrong with what stays here is not told under privacy: it may be the samples."""
        try:
            yield
        except Exception:
            if self._private is None:
                raise
            log.exception("of this site's own; the server is not told")

    def _hello(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        """Who this is, and how many samples it has."""
        check_agreed(head, self._digest, self._frozen)
        counts: Head = {
            f"n_{name}": int(getattr(self.federation, f"n_{name}")[self.client])
            for name in ("train", "validation", "test")
        }
        if self._private is not None:
            counts = self._private.declared(head.get("ledger"))
        check_consent(self.folder, self.experiment, self.methods, counts["n_train"])
        run, nonce = field(head, "run", str), field(head, "nonce", str)
        accept = head.get("accept") is True
        salt = Seat(self.folder, run).take(self.experiment, self._facts, accept=accept)
        return {
            "client": self.client,
            "signature": sign_claim(self._key, self.client, node, run, nonce),
            **counts,
            **salted(salt, self._facts),
            "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        }, {}

    def _train(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        side, states, round = self._work(head)
        base = field(head, "base", int)
        afresh = base > 0 and states.lost
        if afresh and not self._seat(head).accepted:
            raise Refused(
                "its state of this run is lost: put state/ back from a backup, or have the server "
                "go on with --accept-changes, from the beginning for this site"
            )
        if afresh:
            log.warning("no state of this run is here; beginning afresh in round %d", round)
        began = time.perf_counter()
        base = 0 if afresh else base
        if self._protected(head):
            update, seconds = self._train_privately(head, parts, side, states, base), 0.0
        else:
            update, seconds = self._train_one(side, states, round, base, parts)
            seconds = 0.0 if self._private else seconds
        limit = int(update.get("n", 0)) if self._private else side.trains_on(self.client)
        message = side.opened(parts["message"])
        arriving.check_leaving(side, message, update, limit, self.file.max_step)
        reply: Head = {"seconds": seconds, "afresh": afresh}
        if self._private is not None:
            reply |= self._private.told
        if field(head, "alone", bool):
            reply["alone_seconds"] = 0.0
            with self._at_home():
                alone, own = self._side(BASELINE, side.seed), self._states(head, BASELINE)
                base = 0 if base > 0 and own.lost else base
                _, took = self._train_one(alone, own, round, base, {"message": {}})
                reply["alone_seconds"] = took if self._private is None else 0.0
        took = time.perf_counter() - began
        log.info("%s, seed %d, round %d: %.1f s", head["method"], side.seed, round, took)
        return reply, {"update": update}

    def _protected(self, head: Head) -> bool:
        return self._private is not None and not self._private.exempt(head["method"])

    def _train_privately(
        self, head: Head, parts: Parts, side: ClientSide, states: States, base: int
    ) -> State:
        """The round's one answer: charged in the ledger before it leaves."""
        assert self._private is not None, "asked before"
        if head["round"] <= base:
            raise Refused(f"asked to train round {head['round']} on top of round {base}")
        asked = arriving.question({k: head[k] for k in private.ASKED}, parts)

        def work(protection: private.SiteProtection) -> tuple[State, str]:
            state = self._load(head, states, base)
            states.settle(base)
            own = replace(side, protection=protection)
            new, update, _ = own.call("train", self.client, head["round"], state, parts["message"])
            return update, states.save(head["round"], new)

        return self._private.answer(self._place(head), base, asked, work)

    def _place(self, head: Head, round: int | None = None) -> tuple[str, str, int, int]:
        return head["run"], head["method"], head["seed"], head["round"] if round is None else round

    def _load(self, head: Head, states: States, base: int) -> State | None:
        """The state after round ``base``; under privacy the one that was charged."""
        if not base:
            return None
        if not self._protected(head):
            return states.load(base)
        if head["stage"] == "personal" and base > self.experiment.rounds:
            return self._refreshed(head).load(base)
        assert self._private is not None, "it is protected"
        return states.load(base, self._private.state_of(self._place(head, base)))

    def _train_one(
        self, side: ClientSide, states: States, round: int, base: int, parts: Parts
    ) -> tuple[State, float]:
        if round <= base:
            raise Refused(f"asked to train round {round} on top of round {base}")
        state = states.load(base) if base else None
        states.settle(base)
        new, update, facts = side.call("train", self.client, round, state, parts["message"])
        states.save(round, new)
        return update, facts["seconds"]

    def _refresh(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        """Train once more, after the last round, for this site alone: nothing leaves."""
        side, states, round = self._work(head)
        base = field(head, "base", int)
        if not self.methods[head["method"]].personal.refresh or round <= self.experiment.rounds:
            raise Refused("nothing is trained once more in this experiment, or not yet")
        with self._at_home():
            if self._protected(head):  # beside the states that are charged
                state = self._load(head, states, base)
                (new, *_) = side.call("refresh", self.client, round, state, parts["message"])
                self._refreshed(head).save(round, new)
            else:
                base = 0 if base > 0 and states.lost else base
                self._train_one(side, states, round, base, parts)
        return {}, {"refresh": {}}

    def _refreshed(self, head: Head) -> States:
        """Where a state is kept that was trained exactly, and that nothing sent follows from."""
        return States(seed_folder(self._run_folder(head) / "at-home", head["method"], head["seed"]))

    def _score(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        side, states, round = self._work(head)
        base = field(head, "base", int)
        results = {}
        if field(head, "alone", bool):
            with self._at_home():
                alone, own = self._side(BASELINE, side.seed), self._states(head, BASELINE)
                results["alone"] = self._score_one(alone, own, round, base, {})
                self._alone(head).write(results["alone"])
        if self._private is not None:
            return {}, {"score": self._score_privately(head, parts, side, states, base)}
        results["score"] = self._score_one(side, states, round, base, parts["message"])
        return {}, results

    def _score_privately(
        self, head: Head, parts: Parts, side: ClientSide, states: States, base: int
    ) -> State:
        """What the site lets out of its model's scores: nothing, or noisy ones at the end."""
        assert self._private is not None, "asked before"

        def theta() -> Tensor:
            state = self._load(head, states, base)
            own = self._under(head, side)
            (found,) = own.call("personal", self.client, head["round"], state, parts["message"])
            w: Tensor = found["w"]
            return w

        asked = arriving.question({k: head[k] for k in private.ASKED}, parts)
        scores = self._private.scores(self._place(head), asked, theta, side.task)
        if scores is None:
            raise Refused(private.WITHHELD)
        return scores

    def _score_one(
        self, side: ClientSide, states: States, round: int, base: int, public: State
    ) -> State:
        state = states.load(base) if base else None
        (scores,) = side.call("score", self.client, round, state, public)
        return scores

    def _share(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        """What the method gives once, after the last round, for the global model."""
        side, states, round = self._work(head)
        base = field(head, "base", int)
        state = self._load(head, states, base)
        side = self._under(head, side)
        (share,) = side.call("share", self.client, round, state, parts["message"])
        arriving.check_shared(side, self.client, parts["message"], share)
        return {}, {"share": share}

    def _personal(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        """Write this site's personalized model and what it gained; the model stays here."""
        side, states, round = self._work(head)
        base = field(head, "base", int)
        side, results = self._under(head, side), {}
        with self._at_home():
            state = self._load(head, states, base)
            (result,) = side.call("personal", self.client, round, state, parts["message"])
            covered = self._private is None or self._private.covered(head["method"])
            if field(head, "copy", bool) and self.file.share_model and covered:
                results["personal"] = result  # also if what is kept of it here cannot be
            metrics = self._write_model(head, parts, side, state, result["w"])
            if self._private is None:  # else exact scores stay
                results["metrics"] = metrics
        return {}, results

    def _write_model(
        self, head: Head, parts: Parts, side: ClientSide, state: State | None, theta: Tensor
    ) -> State:
        """Keep the model with what it is worth; of that, what may be told."""
        round, own = head["round"], self._private
        found, numbers = side.call("evidence", self.client, round, state, parts["message"])
        about = {k: head[k] for k in ("run", "method", "seed", "round")}
        facts = None if own is None else own.facts(head["run"], head["method"])
        model = keeping.Model(self.experiment, self.federation, self.client, side, theta, facts)
        place = self._seat(head).models()
        alone = self._alone(head).score, self._alone_evidence(head)
        said = model.write(place, self.folder.path / "report.csv", about, found, numbers, alone)
        names = side.task.objective.names  # other facts, as the largest class's share, stay here
        return {k: v for k, v in numbers.items() if k in names} | said

    def _under(self, head: Head, side: ClientSide) -> ClientSide:
        """As the plan of the run protects it, where it does."""
        if not self._protected(head) or self._private is None:
            return side
        run, method, seed, _ = self._place(head)
        return replace(side, protection=self._private.protection(run, method, seed))

    # -- what may be asked, and what has left --------------------------------------------------

    def _permit(self, head: Head, parts: Parts) -> dict[str, Any]:
        """Only in a run that greeted this site, and within the site's limits; the question."""
        self._seat(head).hold(self._facts)
        kind = head["stage"]
        if kind not in self.file.requests:
            raise Refused(f"this site does not answer {kind!r} (requests in its site.toml)")
        about = {"run": head["run"], "kind": kind}
        about |= {k: field(head, k, t) for k, t in (("method", str), ("seed", int), ("round", int))}
        side, _, _ = self._work(head)
        if set(parts) != {"message"}:
            raise Refused(f"found the parts {sorted(parts)!r:.80}, expected the message alone")
        arriving.check("message", self._opened(head, parts["message"]), side.form, self.file.seats)
        question = arriving.question(head, parts)
        check_questions(self._record.questions(**about) | {question}, head["round"], self.file)
        return {**about, "question": question}

    def _opened(self, head: Head, sent: State) -> State:
        """What has come or leaves as it is meant: in training it may be encoded."""
        if head["stage"] not in ("train", "refresh"):
            return sent
        try:
            return self._work(head)[0].opened(sent)
        except Damaged as damage:
            raise Refused(f"message: {damage}") from None

    def _note(self, head: Head, reply: Head, results: Parts, question: dict[str, Any]) -> None:
        """On record before it leaves; under privacy with what all of the run costs."""
        about = question or {"run": head["run"], "kind": head["stage"]}
        if question and self._private is not None and self._protected(head):
            planned = self._private.facts(head["run"], head["method"])
            about |= {k: planned[k] for k in planned if k == "epsilon"}
        meant = {name: self._opened(head, part) for name, part in results.items()}
        self._record.add(**about, **left(reply, results, meant))

    # -- doing it ------------------------------------------------------------------------------

    def _work(self, head: Head) -> tuple[ClientSide, States, int]:
        """What the request is about; only what this site's own experiment holds."""
        method, seed, round = check_asked(head, self.client, self.experiment, self.methods)
        return self._side(method, seed), self._states(head, method), round

    def _side(self, method: str, seed: int) -> ClientSide:
        if (method, seed) not in self._sides:
            self._sides[method, seed] = make_side(
                self.file, self.experiment, self.methods[method], seed, self.federation
            )
        return self._sides[method, seed]

    def _seat(self, head: Head) -> Seat:
        return Seat(self.folder, field(head, "run", str))

    def _run_folder(self, head: Head) -> Path:
        place: Path = self.folder.states / head["run"]
        return place

    def _states(self, head: Head, method: str) -> States:
        return States(seed_folder(self._run_folder(head), method, head["seed"]))

    def _alone(self, head: Head) -> keeping.Alone:
        return keeping.Alone(self._run_folder(head), head["seed"])

    def _alone_evidence(self, head: Head) -> State | None:
        """What the model trained alone gives for each test sample; it does not leave."""
        states = self._states(head, BASELINE)
        if BASELINE not in self.methods or states.lost:
            return None
        side = self._side(BASELINE, field(head, "seed", int))
        found, _ = side.call("evidence", self.client, head["round"], states.last(), {})
        return found
