"""What a site does when it is asked. The same code as in simulation does the client's work.

A round is idempotent. Every request to train names the round whose state the work starts from, the
last one that the server has on record; the new state is a file of its own beside it. Asked for the
same round again, the site does the same work again, with the same result. A state is removed when
a later one has been named: by then the server remembers that later round for good.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from pgfed.engine.client import ClientError, ClientSide
from pgfed.engine.storage.durable import DamagedFile, write_atomic
from pgfed.errors import UserError
from pgfed.federation.flower.records import BadRecord, Head, field, pack, size, unpack
from pgfed.federation.folders.folder import SiteFolder, digest, load_experiment
from pgfed.federation.folders.keys import load_private, sign_claim
from pgfed.federation.folders.models import frozen_digests, make_model
from pgfed.federation.site import data as sitedata
from pgfed.federation.site import keeping
from pgfed.federation.site.house import Refused, Seat, check_consent, facts_of, salted
from pgfed.federation.site.record import Record
from pgfed.federation.site.states import States
from pgfed.methods.contract import FederationInfo
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
        self.federation = sitedata.load(folder, name, self.experiment.data, at)
        self._key = load_private(folder.key)
        self._digest = digest(self.file, self.experiment)
        self._frozen = frozen_digests(self.file, self.experiment, self.federation)
        self._sides: dict[tuple[str, int], ClientSide] = {}
        self._facts = facts_of(self.federation)
        self._record = Record(folder.path)
        self._told = ""  # why the last message was refused

    # -- being asked ---------------------------------------------------------------------------

    def answer(self, content: RecordDict, node: int) -> RecordDict:
        """The reply to any message, whatever is in it; an error is told and not raised."""
        head: Head = {}
        stages: dict[str, Callable[[Head, Parts, int], tuple[Head, Parts]]] = {
            "hello": self._hello,
            "train": self._train,
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
        except (UserError, ClientError, BadRecord, Refused, DamagedFile, OSError) as error:
            if str(error) != self._told:  # the server asks again every few seconds
                log.warning("refused: %s", error)
            self._told = str(error)
            reply, results = {"error": str(error)}, {}
        except Exception as error:
            log.exception("unexpected")
            reply, results = {"error": f"unexpected {type(error).__name__}: {error}"}, {}
        reply |= {k: v for k, v in head.items() if k in ("stage", "ticket", "round")}
        return pack(reply, **results)

    def _hello(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        """Who this is, and how many samples it has."""
        if field(head, "digest", str) != self._digest:
            raise Refused(
                "this site holds another agreement or experiment than the server: compare "
                "site.toml and experiment.toml with the server's federation.toml and "
                "experiment.toml"
            )
        if head.get("frozen", "") != self._frozen:
            raise Refused(
                "the model's frozen values are others here than at the server (their SHA-256 "
                "differs): compare the files that its factory reads, and the versions of torch"
            )
        n_train = int(self.federation.n_train[self.client])
        check_consent(self.folder, self.experiment, self.methods, n_train)
        run, nonce = field(head, "run", str), field(head, "nonce", str)
        accept = head.get("accept") is True
        salt = Seat(self.folder, run).take(self.experiment, self._facts, accept=accept)
        counts = {
            f"n_{name}": int(getattr(self.federation, f"n_{name}")[self.client])
            for name in ("train", "validation", "test")
        }
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
        if afresh:
            log.warning("no state of this run is here; beginning afresh in round %d", round)
        began = time.perf_counter()
        update, seconds = self._train_one(side, states, round, 0 if afresh else base, parts)
        reply: Head = {"seconds": seconds, "afresh": afresh}
        if field(head, "alone", bool):
            alone, own = self._side(BASELINE, side.seed), self._states(head, BASELINE)
            base = 0 if base > 0 and own.lost else base
            _, reply["alone_seconds"] = self._train_one(alone, own, round, base, {"message": {}})
        took = time.perf_counter() - began
        log.info("%s, seed %d, round %d: %.1f s", head["method"], side.seed, round, took)
        return reply, {"update": update}

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

    def _score(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        side, states, round = self._work(head)
        base = field(head, "base", int)
        results = {"score": self._score_one(side, states, round, base, parts["message"])}
        if field(head, "alone", bool):
            alone, own = self._side(BASELINE, side.seed), self._states(head, BASELINE)
            results["alone"] = self._score_one(alone, own, round, base, {})
            write_atomic(self._alone_file(head), json.dumps(results["alone"]))
        return {}, results

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
        state = states.load(base) if base else None
        (share,) = side.call("share", self.client, round, state, parts["message"])
        return {}, {"share": share}

    def _personal(self, head: Head, parts: Parts, node: int) -> tuple[Head, Parts]:
        """Write this site's personalized model and what it gained; the model stays here."""
        side, states, round = self._work(head)
        base = field(head, "base", int)
        state = states.load(base) if base else None
        (result,) = side.call("personal", self.client, round, state, parts["message"])
        found, numbers = side.call("evidence", self.client, round, state, parts["message"])
        about = {k: head[k] for k in ("run", "method", "seed", "round")}
        model = keeping.Model(self.experiment, self.federation, self.client, side, result["w"])
        place = self._seat(head).models()
        model.write(
            place, self.folder.path / "report.csv", about, found, numbers, self._alone(head)
        )
        names = side.task.objective.names  # other facts, as the largest class's share, stay here
        results: Parts = {"metrics": {k: v for k, v in numbers.items() if k in names}}
        if field(head, "copy", bool) and self.file.share_model:
            results["personal"] = result
        return {}, results

    # -- what may be asked, and what has left --------------------------------------------------

    def _permit(self, head: Head, parts: Parts) -> dict[str, Any]:
        """Only in a run that greeted this site, and within the site's limits; the question.

        To ask the same again reveals nothing more. Different questions in one round do.
        """
        self._seat(head).hold(self._facts)
        kind = head["stage"]
        if kind not in self.file.requests:
            raise Refused(f"this site does not answer {kind!r} (requests in its site.toml)")
        about = {"run": head["run"], "kind": kind}
        about |= {k: field(head, k, t) for k, t in (("method", str), ("seed", int), ("round", int))}
        for name, part in parts.items():
            for key, value in part.items():
                if not bool(torch.isfinite(torch.as_tensor(value)).all()):
                    raise Refused(f"{name}.{key}: holds NaN or infinite values")
        question = _digest(head, parts)
        before = self._record.questions(**about)
        if len(before | {question}) > self.file.answers_per_round:
            raise Refused(
                f"round {head['round']}: {len(before)} different questions were answered; "
                "this site allows no more (answers_per_round in its site.toml)"
            )
        return {**about, "question": question}

    def _note(self, head: Head, reply: Head, results: Parts, question: dict[str, Any]) -> None:
        """On record before it leaves."""
        arrays = [v for part in results.values() for v in part.values() if isinstance(v, Tensor)]
        squares = sum(float(torch.linalg.vector_norm(v.double())) ** 2 for v in arrays)
        self._record.add(
            **(question or {"run": head["run"], "kind": head["stage"]}),
            keys=[*reply, *(f"{name}.{key}" for name, part in results.items() for key in part)],
            bytes=size(pack({}, **results)),
            norm=squares**0.5,
        )

    # -- doing it ------------------------------------------------------------------------------

    def _work(self, head: Head) -> tuple[ClientSide, States, int]:
        """What the request is about; only what this site's own experiment holds."""
        method, seed = field(head, "method", str), field(head, "seed", int)
        round = field(head, "round", int)
        if field(head, "client", int) != self.client:
            raise Refused(f"a message for client {head['client']}, this is client {self.client}")
        if method not in self.methods or seed not in self.experiment.seeds:
            raise Refused(f"{method!r:.40}, seed {seed} is not in this site's experiment")
        if not 0 <= round <= self.experiment.rounds:
            raise Refused(f"round {round}; the experiment has {self.experiment.rounds}")
        return self._side(method, seed), self._states(head, method), round

    def _side(self, method: str, seed: int) -> ClientSide:
        if (method, seed) not in self._sides:
            task = make_model(self.file, self.experiment, seed, self.federation)
            cohort = self.experiment.cohort_size(self.file.seats)
            info = FederationInfo(self.file.seats, cohort, task.layout)
            self._sides[method, seed] = ClientSide(
                self.methods[method],
                task,
                self.federation,
                seed,
                task.initial(),
                info,
                self.experiment.rounds,
            )
        return self._sides[method, seed]

    def _seat(self, head: Head) -> Seat:
        return Seat(self.folder, field(head, "run", str))

    def _run_folder(self, head: Head) -> Path:
        place: Path = self.folder.states / head["run"]
        return place

    def _states(self, head: Head, method: str) -> States:
        return States(seed_folder(self._run_folder(head), method, head["seed"]))

    def _alone_file(self, head: Head) -> Path:
        folder = self._run_folder(head)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"alone-{head['seed']}.json"

    def _alone(self, head: Head) -> float | None:
        """What training alone came to, if it was trained beside."""
        if not self._alone_file(head).is_file():
            return None
        score: float | None = json.loads(self._alone_file(head).read_text()).get("test_score")
        return score


def _digest(head: Head, parts: Parts) -> str:
    """By which a question is known again."""
    asked = {k: v for k, v in head.items() if k != "ticket"}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode())
    for name, part in sorted(parts.items()):
        for key, value in sorted(part.items()):
            digest.update(f"{name}.{key};".encode())
            if isinstance(value, Tensor):
                digest.update(f"{value.dtype} {tuple(value.shape)};".encode())
                digest.update(value.contiguous().numpy().tobytes())
            else:
                digest.update(f"{value!r};".encode())
    return digest.hexdigest()[:16]
