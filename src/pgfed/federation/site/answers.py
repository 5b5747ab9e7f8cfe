"""What a site does when it is asked. The same code as in simulation does the client's work.

A round is idempotent. Every request to train names the round whose state the work starts from, the
last one that the server has on record; the new state is a file of its own beside it. Asked for the
same round again, the site does the same work again, with the same result. A state is removed when
a later one has been named: by then the server remembers that later round for good.
"""

from __future__ import annotations

import csv
import json
import logging
import platform
import re
import shutil
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from pgfed.engine.client import ClientError, ClientSide
from pgfed.engine.durable import DamagedFile, sha256, state_from_bytes, state_to_bytes, write_atomic
from pgfed.errors import UserError
from pgfed.federation.flower.records import BadRecord, Head, field, pack, unpack
from pgfed.federation.folders.folder import SiteFolder, digest, load_experiment
from pgfed.federation.folders.keys import load_private, sign_claim
from pgfed.federation.folders.models import frozen_digests, make_model
from pgfed.federation.site import data as sitedata
from pgfed.methods.contract import FederationInfo
from pgfed.methods.registry import BASELINE
from pgfed.methods.values import State
from pgfed.results import manifest as manifests
from pgfed.results.layout import EVIDENCE, csv_text, seed_folder
from pgfed.results.models import manifest, write_frozen, write_model
from pgfed.results.runs import Evidence
from pgfed.results.writer import write_evidence

log = logging.getLogger(__name__)

Parts = dict[str, State]


class Refused(Exception):
    """The site will not do what it was asked; the server is told why."""


class States:
    """A client's states under one method and seed of one run: one file per round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _files(self, round: int | None = None) -> list[Path]:
        return sorted(
            self._folder.glob(f"{'*' if round is None else f'{round:06d}'}-*.safetensors")
        )

    def load(self, round: int) -> State:
        """The state after this round. The file's name holds its checksum."""
        for path in self._files(round):
            data = path.read_bytes()
            if path.stem.partition("-")[2] == sha256(data)[:16]:
                return state_from_bytes(data)
        raise DamagedFile(
            f"{self._folder} holds no sound state of round {round}; put it back from a backup, or "
            "remove that folder to begin afresh"
        )

    def save(self, round: int, state: State) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        data = state_to_bytes(state)
        write_atomic(self._folder / f"{round:06d}-{sha256(data)[:16]}.safetensors", data)

    def settle(self, round: int) -> None:
        """Keep this round's state, and the one before it: the server may go back by one."""
        older = [path for path in self._files() if path.name < f"{round:06d}"]
        for path in set(self._files()) - set(self._files(round)) - set(older[-1:]):
            path.unlink(missing_ok=True)

    @property
    def lost(self) -> bool:
        """Whether nothing at all is there."""
        return not self._files()


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
            reply, results = stages[stage](head, parts, node)
        except (UserError, ClientError, BadRecord, Refused, DamagedFile, OSError) as error:
            log.warning("refused: %s", error)
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
        run, nonce = field(head, "run", str), field(head, "nonce", str)
        counts = {
            f"n_{name}": int(getattr(self.federation, f"n_{name}")[self.client])
            for name in ("train", "validation", "test")
        }
        return {
            "client": self.client,
            "signature": sign_claim(self._key, self.client, node, run, nonce),
            **counts,
            "pgfed": version("pgfed"),
            "torch": torch.__version__,
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
        self._write_model(head, side, result["w"], found, numbers)
        names = side.task.objective.names  # other facts, as the largest class's share, stay here
        results: Parts = {"metrics": {k: v for k, v in numbers.items() if k in names}}
        if field(head, "copy", bool) and self.file.share_model:
            results["personal"] = result
        return {}, results

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

    def _run_folder(self, head: Head) -> Path:
        run = field(head, "run", str)
        if not re.fullmatch(r"[0-9a-f]{32}", run):
            raise BadRecord(f"run: found {run!r:.40}")
        place: Path = self.folder.states / run
        return place

    def _states(self, head: Head, method: str) -> States:
        return States(seed_folder(self._run_folder(head), method, head["seed"]))

    def _alone_file(self, head: Head) -> Path:
        folder = self._run_folder(head)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"alone-{head['seed']}.json"

    # -- what stays at the site ----------------------------------------------------------------

    def _write_model(
        self, head: Head, side: ClientSide, theta: Tensor, evidence: State, numbers: State
    ) -> None:
        method, seed = head["method"], side.seed
        test = self.federation.test(self.client)
        accuracy = side.task.score(theta, test).score if len(test) else None
        alone = None
        if self._alone_file(head).is_file():
            scores = json.loads(self._alone_file(head).read_text())
            alone = scores.get("test_score")
        gain = None if accuracy is None or alone is None else round(accuracy - alone, 9)
        row = {
            "client": str(self.client),
            "n_train": int(self.federation.n_train[self.client]),
            "n_test": len(test),
            "final": accuracy,
            "local": alone,
            "gain": gain,
            **numbers,
        }
        folder = seed_folder(self.folder.models, method, seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file = write_model(folder / "model.safetensors", side.task.named(theta))
        write_evidence(folder / EVIDENCE, _evidence(evidence), {})
        content = manifest(
            self.experiment,
            self.federation,
            method,
            side.algorithm,
            side.task,
            round=head["round"],
            seed=seed,
            shared=None,
            frozen=write_frozen(folder, side.task),
            clients=[
                {
                    **row,
                    "id": self.client,
                    "score": accuracy,
                    **manifests.fitted_table(self.federation, self.client),
                    **file,
                }
            ],
        )
        manifests.write(folder, content)
        self._report({k: head[k] for k in ("run", "method", "seed", "round")} | row)
        log.info("%s, seed %d: the personalized model is in %s", method, seed, folder)

    def _report(self, row: dict[str, Any]) -> None:
        """One line per run, method and seed in report.csv."""
        path = self.folder.path / "report.csv"
        key = ("run", "method", "seed")
        rows: list[dict[str, Any]] = []
        if path.is_file():
            rows = list(csv.DictReader(path.read_text().splitlines()))
            # As 0.1 called it.
            rows = [{"gain" if k == "gain_over_local" else k: r[k] for k in r} for r in rows]
        rows = [r for r in rows if [r[k] for k in key] != [str(row[k]) for k in key]]
        rows.append(row)
        # Another task has other metrics.
        columns = list(dict.fromkeys(name for r in rows for name in r))
        write_atomic(path, csv_text(rows, columns))


def _evidence(found: State) -> Evidence:
    """What the site's model gave for its own test samples."""
    outcome = found["outcome"].numpy()
    return Evidence(np.array([0, len(outcome)]), outcome, found["outputs"].numpy())
