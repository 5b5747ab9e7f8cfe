"""The server's side of a run: the rounds of all methods and seeds, over the sites that are there.

Rounds, checkpoints and the run folder are those of a simulation. What differs: states and models
stay at the sites, `local` is trained alongside the first method, and everything that must outlast a
crash is on disk before the sites are asked for the next round.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from pgfed.config.tables import FORMAT
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.personal import fitted
from pgfed.engine.rounds import Run
from pgfed.engine.runs import run_method
from pgfed.engine.setup import Setup
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError, is_full
from pgfed.federation.flower.grid import Stopped
from pgfed.federation.flower.records import Grid
from pgfed.federation.folders.folder import RUN_FILE, FederationFolder, digest, load_experiment
from pgfed.federation.folders.models import frozen_digests, make_model, model_of
from pgfed.federation.server.backend import Flower, QuorumError, Replay
from pgfed.federation.server.notes import Pins, note, noted
from pgfed.federation.server.seats import Seats
from pgfed.federation.server.status import Status
from pgfed.methods.registry import BASELINE
from pgfed.results.folder import layout
from pgfed.results.folder.files import write_json
from pgfed.results.folder.layout import csv_text
from pgfed.results.folder.writer import RunWriter
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.manifest import NAME
from pgfed.results.kept.models import GLOBAL
from pgfed.results.kept.writing import manifest, model_files, write_frozen, write_model
from pgfed.results.runs import TOLD, Evidence, Told
from pgfed.results.statistics import Floats

KEPT = 5  # checkpoints, for `rollback`; sites keep as many states
WRITTEN = "written.json"  # in a models folder: the sites that have written theirs, with metrics


@dataclass(frozen=True)
class Options:
    """How `federation run` was called."""

    resume: bool = False
    round_timeout: float = 600.0  # seconds a site has for its answer
    min_replies: int = 1  # a round with fewer is asked for again
    keep_personal_models: bool = False  # of the sites whose site.toml allows it
    accept_changes: bool = False  # of a site's data or versions since the run began


def conduct(grid: Grid, folder: FederationFolder, options: Options) -> None:
    """Run the federation's experiment, or go on with it."""
    folder.check_run(resume=options.resume)
    experiment, methods = load_experiment(folder.experiment_file, None)
    agreed = digest(folder.agreement, experiment)
    by_name = experiment.data.draws == "by-name"
    federation = folder.agreement.without_data(by_name=by_name)
    task = make_model(folder.agreement, experiment, experiment.seeds[0], federation)
    methods, experiment = fitted(methods, experiment, task)
    model, head = model_of(folder.agreement, experiment), experiment.model.head
    table = replace(experiment.task, metric=task.objective.metric)
    written = replace(experiment, format=FORMAT, task=table)
    setup = Setup(
        written, federation, methods, model, task.layout, task.objective, task.frozen_digest
    )

    folder.run.mkdir(exist_ok=True)
    run = _identify(folder.run, agreed)
    note(folder.run, options=asdict(options))
    pins = Pins(folder.run, accept=options.accept_changes)
    status = Status(folder.run, folder.agreement.names, task.objective.primary)
    with FederationRun(folder.run, setup, resume=options.resume, warn=status.tell) as keeper:
        try:
            frozen = frozen_digests(folder.agreement, experiment, federation)
            seats = Seats(grid, folder, federation, run, agreed, frozen, status, pins)
            backend = Flower(
                grid,
                seats,
                model,
                head=head,
                objective=task.objective,
                run=run,
                methods=methods,
                round_timeout=options.round_timeout,
                min_replies=options.min_replies,
                copy=options.keep_personal_models,
                status=status,
                settled=keeper.settled,
            )
            keeper.use(backend, seats, status)
            _wait(seats, options, status)
            for seed in experiment.seeds:
                for method in backend.asks:
                    keeper.run_unless_done(method, seed)
            keeper.close_up()
        except BaseException as error:
            expected = isinstance(error, UserError | QuorumError | Stopped)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            goes_on = is_full(error) or isinstance(error, Stopped)
            state = "interrupted" if goes_on else "failed"
            status.write(state=state, error=reason)
            raise
        note(folder.run, finished=True)
        status.write(state="finished")


def unfinished(folder: FederationFolder) -> Options | None:
    """How to go on with the run in the federation's folder, if there is one that is not over."""
    if not (folder.run / RUN_FILE).is_file():
        return None
    known = noted(folder.run)
    if known.get("finished"):
        return None
    return replace(Options(**known.get("options", {})), resume=True)


def _identify(folder: Path, agreed: str) -> str:
    """The id of the run in this folder, new if it has none."""
    path = folder / RUN_FILE
    if not path.is_file():
        begun = {"run": secrets.token_hex(16), "digest": agreed}
        write_atomic(path, json.dumps(begun) + "\n")
    content = noted(folder)
    if content["digest"] != agreed:
        raise UserError(
            f"{folder} was begun with another federation.toml or experiment.toml; "
            "put that back, or move the folder away"
        )
    return str(content["run"])


def _wait(seats: Seats, options: Options, status: Status) -> None:
    """For all sites, but not longer than for a round; then begin with those who are there."""
    if not seats.taken:
        raise QuorumError("no site has joined yet; `pgfed federation invite` lets one in")
    status.tell("waiting for the sites")
    seats.wait(seats.taken, options.round_timeout)
    here = len(seats.present())
    if here < options.min_replies:
        raise QuorumError(
            f"{here} of {len(seats)} sites are here, --min-replies is {options.min_replies}; "
            f"missing: {seats.missing()}"
        )


class FederationRun(RunWriter):
    """A run folder whose clients are sites: their models stay with them."""

    def use(self, backend: Flower, seats: Seats, status: Status) -> None:
        self._backend, self._seats, self._status = backend, seats, status
        self._checkpoints: Checkpoints | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._describe(command="pgfed federation run")  # this process is the server's
        return self

    def _describe(self, **more: Any) -> None:
        self._about = {**self._about, **more}
        write_json(self.path / layout.ENVIRONMENT, self._about)

    # -- running -------------------------------------------------------------------------------

    def run_unless_done(self, method: str, seed: int) -> None:
        if self.finished(method, seed) is None:
            sites = _Sites(self._backend, self._status, self._setup.experiment.rounds)
            run_method(self._setup, self._backend, method, seed, [sites, self], self)
        elif method == self._backend.carrier:
            alone = super().finished(BASELINE, seed)
            assert alone is not None, "it is written before the method it was trained beside"

    def close_up(self) -> None:
        """What is written at the very end."""
        known = self._about.get("sites", {})
        facts = {str(i): f for i, f in self._seats.facts.items()}
        self._describe(sites={**known, **facts}, changes=self._seats.pins.changes)
        self.finish()

    def finished(self, method: str, seed: int) -> list[Record] | None:
        """A run is over when every site has its model."""
        written = self.folder(method, seed) / layout.MODELS / WRITTEN
        keeps = self._setup.keeps_models(seed)
        if keeps and not self._seats.taken <= set(_read(written)):
            return None
        return super().finished(method, seed)

    def checkpoints(self, method: str, seed: int) -> Checkpoints | None:
        if method not in self._backend.asks:
            return None  # it is replayed from another method's history
        folder = self.folder(method, seed) / layout.CHECKPOINT
        self._checkpoints = Checkpoints(folder, kept=KEPT, warn=self._warn)
        return self._checkpoints

    def settled(self) -> None:
        """Until the last round is on disk: the next request tells the sites that it counts."""
        if self._checkpoints is not None:
            self._checkpoints.wait()

    # -- what stays ----------------------------------------------------------------------------

    def end(self, method: str, run: Run) -> None:
        if method == self._backend.carrier:
            replay = Replay(self._backend, run.history)
            run_method(self._setup, replay, BASELINE, run.seed, [_Alone(run.history), self], self)
        if method in self._backend.asks:
            folder = self.folder(method, run.seed)
            write_atomic(folder / "sites.csv", csv_text(_site_rows(run, self._names)))
        super().end(method, run)

    def _evidence(self, folder: Path, run: Run) -> tuple[Evidence | None, dict[str, Floats]]:
        """It stays with the sites, each of which writes its model now; their metrics come here."""
        asked_for = (self._setup.methods[name] for name in self._backend.asks)
        if run.algorithm not in asked_for or not self._setup.keeps_models(run.seed):
            return None, {}
        models = folder / layout.MODELS
        models.mkdir(exist_ok=True)
        done = self._done = _read(models / WRITTEN)
        asked = sorted(self._seats.taken - set(done))
        names, self._files = model_files(self._setup.federation), _read_files(models)
        for i, theta in run.personal_models(asked):
            self._files[i] = write_model(models / names[i], run.task.named(theta))
        done |= {i: self._backend.metrics.get(i, {}) for i in asked if i not in self._missed}
        return None, {
            name: np.array([done.get(i, {}).get(name, np.nan) for i in range(len(self._seats))])
            for name in run.task.objective.names
        }

    def _told(self, run: Run) -> Told | None:
        """What the sites said of their gains with this method."""
        asked_for = (self._setup.methods[name] for name in self._backend.asks)
        if run.algorithm not in asked_for or not self._setup.keeps_models(run.seed):
            return None
        said = [self._done.get(i, {}) for i in range(len(self._seats))]
        if not any("gain_p" in one for one in said):
            return None
        return Told(*(np.array([one.get(key, np.nan) for one in said]) for key in TOLD))

    @property
    def _missed(self) -> dict[int, str]:
        """The sites that have not written their model, and why."""
        return self._backend.missed["personal"]

    def _keep_models(self, folder: Path, run: Run, method: str, rows: list[dict[str, Any]]) -> None:
        """The sites have written their models; the global one is kept here."""
        if method not in self._backend.asks:
            return
        models = folder / layout.MODELS
        for i, reason in self._missed.items():
            self._warn(
                f"{method}, seed {run.seed}: {self._status.name(i)} has not written its model "
                f"({reason}); --resume asks it again"
            )
        content = manifest(
            self._setup.experiment,
            self._setup.federation,
            method,
            run.algorithm,
            run.task,
            round=run.round,
            seed=run.seed,
            shared=write_model(models / GLOBAL, run.task.named(run.global_model())),
            frozen=write_frozen(models, run.task),
            clients=[
                {"client": row["client"], "id": i, **row, **self._files.get(i, {})}
                for i, row in enumerate(rows)
            ],
            class_shares=run.class_shares(),
        )
        manifests.write(models, content)
        write_atomic(models / WRITTEN, json.dumps(self._done) + "\n")

    def _forget(self, folder: Path) -> None:
        written = folder / layout.MODELS / WRITTEN
        if not written.is_file() or self._seats.taken <= set(_read(written)):
            super()._forget(folder)


def _site_rows(run: Run, names: Sequence[str]) -> list[dict[str, Any]]:
    """One line per site: how often it took part, what that took, and what failed last."""
    rows = []
    for i, name in enumerate(names):
        facts = [r["sites"].get(i, {}) for r in run.history if i in r["cohort"]]
        counted = [f for f in facts if f.get("counted")]
        drops = [d["reason"] for r in run.history for d in r["dropped"] if d["client"] == i]
        row: dict[str, Any] = {
            "client": name,
            "asked": len(facts),
            "counted": len(counted),
            "missed": len(facts) - len(counted),
        }
        for key in ("seconds", "work_seconds", "bytes_down", "bytes_up"):
            row[key] = sum(f.get(key, 0) for f in facts)
        rows.append({**row, "last_failure": drops[-1] if drops else None})
    return rows


def _read(path: Path) -> dict[int, dict[str, float]]:
    """The sites that have written their models, and the metrics of these."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    if isinstance(content, list):  # as 0.1 wrote it
        content = {i: {} for i in content}
    return {int(i): metrics for i, metrics in content.items()}


def _read_files(models: Path) -> dict[int, dict[str, str]]:
    """The copies that are here already."""
    path = models / NAME
    rows = json.loads(path.read_text())["clients"] if path.is_file() else []
    return {r["id"]: {k: r[k] for k in ("file", "sha256")} for r in rows if "file" in r}


class _Sites(Observer):
    """Per site its time, bytes and score, and why it missed the round."""

    def __init__(self, backend: Flower, status: Status, rounds: int) -> None:
        self._backend, self._status, self._rounds = backend, status, rounds

    def begin(self, method: str, run: Run) -> None:
        seed, rounds, done = run.seed, self._rounds, run.round
        if done:
            self._status.tell(f"{method}, seed {seed}: going on after round {done}")
        self._status.write(state="running", method=method, seed=seed, round=done, rounds=rounds)

    def round(self, method: str, run: Run, record: Record) -> None:
        missed = self._backend.missed["train"]
        for dropped in record["dropped"]:
            if dropped["reason"] == "no reply":
                dropped["reason"] = missed.get(dropped["client"], "no reply")
            name = self._status.name(dropped["client"])
            self._status.tell(f"round {record['round']}, {name}: {dropped['reason']}")
        sites = {i: facts.record() for i, facts in self._backend.facts.items()}
        for i, reason in self._backend.missed.get("score", {}).items():
            sites.setdefault(i, {})["not_scored"] = reason
        record["sites"] = sites
        self._status.round(record)


class _Alone(Observer):
    """`local` was trained beside another method: what went wrong there went wrong here."""

    def __init__(self, history: list[Record]) -> None:
        self._beside = {record["round"]: record for record in history}

    def round(self, method: str, run: Run, record: Record) -> None:
        beside = self._beside[record["round"]]
        reasons = {d["client"]: d["reason"] for d in beside["dropped"]}
        for dropped in record["dropped"]:
            dropped["reason"] = reasons.get(dropped["client"], dropped["reason"])
        # Sites work side by side: the round took as long as the slowest.
        took = max(record["client_seconds"].values(), default=beside["train_seconds"])
        record |= {"train_seconds": took, "seconds": took}
