"""The server app: the rounds of all methods and seeds, over the sites that are there.

Everything that must outlast a crash is on disk before the sites are asked for the next round, so
that `federation run --resume` goes on with the same bits.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from flwr.serverapp import Grid
from safetensors.torch import save
from torch import Tensor

from pgfed.engine import Backend, Run
from pgfed.engine.checkpoint import Checkpoints
from pgfed.engine.client import one_thread
from pgfed.engine.store import ClientStore
from pgfed.environment import environment
from pgfed.errors import UserError
from pgfed.experiment import Experiment
from pgfed.files import sha256, write_atomic
from pgfed.flower.backend import Flower, QuorumError, Replay
from pgfed.flower.folder import FederationFolder, digest, load_experiment
from pgfed.flower.seats import Seats
from pgfed.flower.status import Status
from pgfed.modelfiles import FORMAT, GLOBAL, hyperparameters, normalisation
from pgfed.output import read_history, write_history
from pgfed.runner import LAST, Outcome, number

RUN_FILE = "federation.json"  # the run's own id, which the sites' states are stamped with
DOING = {
    "train": "training",
    "score": "scoring",
    "share": "sharing",
    "personal": "writing its model",
}


@dataclass(frozen=True)
class Options:
    """How `federation run` was called."""

    resume: bool = False
    round_timeout: float = 600.0  # seconds a site has for its answer
    min_replies: int = 1  # a round with fewer is asked for again
    keep_personal_models: bool = False  # of the sites whose site.toml allows it

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Options:
        known = {name: name.replace("_", "-") for name in cls.__dataclass_fields__}
        return cls(**{k: config[v] for k, v in known.items() if v in config})


def conduct(grid: Grid, folder: FederationFolder, options: Options) -> None:
    """Run the federation's experiment, or go on with it."""
    folder.run.mkdir(exist_ok=True)
    with _alone_in(folder.run), one_thread():
        status = Status(folder.run, folder.agreement.seats)
        _conduct(grid, folder, options, status)


def _conduct(grid: Grid, folder: FederationFolder, options: Options, status: Status) -> None:
    try:
        Conductor(grid, folder, options, status).run()
    except BaseException as error:
        status.write(state="failed", error=f"{type(error).__name__}: {error}")
        if isinstance(error, UserError | QuorumError):
            status.write(error=str(error))
        raise
    status.write(state="finished")


class Conductor:
    """One run of a federation."""

    def __init__(
        self, grid: Grid, folder: FederationFolder, options: Options, status: Status
    ) -> None:
        self.folder, self.options, self.status = folder, options, status
        self.experiment, self.methods = load_experiment(folder.experiment_file)
        agreed = digest(folder.agreement, self.experiment)
        self.id = _identify(folder.run, agreed, resume=options.resume)
        self.seats = Seats(grid, folder, self.id, agreed, status.tell)
        others = [name for name in self.methods if name != "local"]
        self.asked = others or ["local"]
        self.carrier = others[0] if others and "local" in self.methods else None
        model = self.experiment.model
        assert model.name is not None, "init fills in the model"
        self.backend = Flower(
            grid,
            self.seats,
            model.name,
            head=model.head,
            run=self.id,
            methods=self.methods,
            carrier=self.carrier,
            round_timeout=options.round_timeout,
            min_replies=options.min_replies,
            copy=options.keep_personal_models,
            watch=self._watch,
        )

    def run(self) -> None:
        self.status.tell("waiting for the sites")
        self.seats.wait(range(len(self.seats)), self.options.round_timeout)
        here = self.seats.present()
        if len(here) < self.options.min_replies:
            raise QuorumError(
                f"{len(here)} of {len(self.seats)} sites are here, --min-replies is "
                f"{self.options.min_replies}"
            )
        write_atomic(self.folder.run / "experiment.toml", tomli_w.dumps(self.experiment.document()))
        outcomes: dict[tuple[str, int], Outcome] = {}
        for seed in self.experiment.seeds:
            for method in self.asked:
                run = self._rounds(method, seed)
                if method == self.carrier:
                    alone = self._replay(seed, run.history)
                    outcomes["local", seed] = self._keep(alone, "local", None)
                outcomes[method, seed] = self._keep(run, method, outcomes.get(("local", seed)))
        facts = {**environment(self.seats.federation), "command": "pgfed federation run"}
        facts["sites"] = self.seats.facts
        self._json(self.folder.run / "environment.json", facts)
        ordered = [outcomes[m, s] for m in self.methods for s in self.experiment.seeds]
        self._json(self.folder.run / "summary.json", [outcome.summary for outcome in ordered])

    # -- rounds --------------------------------------------------------------------------------

    def _rounds(self, method: str, seed: int) -> Run:
        """All rounds of one method, from the last one on record."""
        folder = self._seed_folder(method, seed)
        checkpoints = Checkpoints(folder / "checkpoint", warn=self.status.tell)
        run = self._new(method, seed, self.backend, ClientStore(checkpoints.clients))
        if checkpoints.restore(run, read_history(folder / "history.jsonl")):
            self.status.tell(f"{method}, seed {seed}: going on after round {run.round}")
        write_history(folder / "history.jsonl", run.history)
        self.status.write(
            state="running",
            method=method,
            seed=seed,
            round=run.round,
            rounds=run.rounds,
        )
        while not run.finished:
            record = run.step()
            self._enrich(run, record)
            _append(folder / "history.jsonl", record)
            checkpoints.save(run)
            checkpoints.wait()  # the next request tells the sites that this round counts
            self._show(record)
        return run

    def _new(
        self, method: str, seed: int, backend: Backend, store: ClientStore | None = None
    ) -> Run:
        experiment: Experiment = self.experiment
        return Run(
            self.methods[method],
            self.seats.federation,
            backend,
            seed=seed,
            rounds=experiment.rounds,
            cohort=experiment.cohort_size(len(self.seats)),
            evaluate_every=experiment.evaluate_every,
            store=store,
        )

    def _enrich(self, run: Run, record: dict[str, Any]) -> None:
        """What only a real federation has: per site its time, bytes, score, and why it missed."""
        missed = self.backend.missed["train"]
        for dropped in record["dropped"]:
            dropped["reason"] = missed.get(dropped["client"], dropped["reason"])
        sites: dict[str, dict[str, Any]] = {}
        for i in range(len(self.seats)):
            facts = self.backend.facts.get(i)
            sites[str(i)] = {"accuracy": number(run.accuracy[i])}
            if facts is not None:
                sites[str(i)] |= {
                    "seconds": facts.seconds,
                    "work_seconds": facts.work_seconds,
                    "bytes_down": facts.bytes_down,
                    "bytes_up": facts.bytes_up,
                    **facts.more,
                }
        record["sites"] = sites

    def _replay(self, seed: int, history: list[dict[str, Any]]) -> Run:
        """`local`, from what the sites told while they trained it alongside."""
        folder = self._seed_folder("local", seed)
        run = self._new("local", seed, Replay(self.backend, history))
        (folder / "history.jsonl").unlink(missing_ok=True)
        for told in history:
            record = run.step()
            reasons = {d["client"]: d["reason"] for d in told["dropped"]}
            for dropped in record["dropped"]:
                dropped["reason"] = reasons.get(dropped["client"], dropped["reason"])
            # Sites work side by side: the round took as long as the slowest.
            took = max(record["client_seconds"].values(), default=0.0)
            record |= {"train_seconds": took, "seconds": took}
            record["sites"] = {str(i): {"accuracy": number(a)} for i, a in enumerate(run.accuracy)}
            _append(folder / "history.jsonl", record)
        return run

    # -- what stays ----------------------------------------------------------------------------

    def _keep(self, run: Run, method: str, alone: Outcome | None) -> Outcome:
        """Everything that is written once, after the last round."""
        folder = self._seed_folder(method, run.seed)
        outcome = _outcome(run, method)
        if method == "local":
            alone = outcome
        if alone is not None:
            outcome.gain = np.round(outcome.last10 - alone.last10, 9)
        rows = outcome.clients(self.seats.federation)
        if outcome.alpha is not None:
            arrays = io.BytesIO()
            np.savez_compressed(arrays, **outcome.alpha)
            write_atomic(folder / "alpha.npz", arrays.getvalue())
        if method in self.asked:
            self._finish(run, method, rows)
        write_atomic(folder / "clients.csv", _csv(rows))
        return outcome

    def _finish(self, run: Run, method: str, rows: list[dict[str, Any]]) -> None:
        """Each site writes its personalized model at the site; the global one is kept here."""
        folder = self._seed_folder(method, run.seed) / "models"
        folder.mkdir(exist_ok=True)
        written = folder / "written.json"  # the sites that have theirs
        done: set[int] = set(json.loads(written.read_text())) if written.is_file() else set()
        open_ = [i for i in range(len(self.seats)) if i not in done]
        copies = dict(run.personal_models(open_))
        missed = self.backend.missed.get("personal", {})
        done |= set(open_) - set(missed)
        for i in range(len(self.seats)):
            self.status.site(i)["model"] = "written" if i in done else "missing"
        for i, reason in missed.items():
            self.status.tell(
                f"{method}, seed {run.seed}: client {i} has not written its model ({reason}); "
                "--resume asks it again"
            )
        files = {
            i: _write_model(folder / f"client-{i:04}.safetensors", run, w)
            for i, w in copies.items()
        }
        old = folder / "manifest.json"
        if old.is_file():
            known = {r["client"]: r for r in json.loads(old.read_text())["clients"] if "file" in r}
            files = {i: {k: r[k] for k in ("file", "sha256")} for i, r in known.items()} | files
        manifest = {
            "format": FORMAT,
            "method": method,
            "hyperparameters": hyperparameters(run),
            "round": run.round,
            "seed": run.seed,
            "model": self.experiment.model.name,
            "head": run.task.head_name,
            "input_shape": self.folder.agreement.input_shape,
            "classes": self.folder.agreement.classes,
            "normalisation": normalisation(self.seats.federation),
            "data_fingerprint": None,  # the data is not here
            "global": _write_model(folder / GLOBAL, run, run.global_model()),
            "clients": [{**row, **files.get(row["client"], {})} for row in rows],
        }
        self._json(old, manifest)
        self._json(written, sorted(done))

    def _seed_folder(self, method: str, seed: int) -> Path:
        folder = self.folder.run / method / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _json(self, path: Path, content: Any) -> None:
        write_atomic(path, json.dumps(content, indent=2, allow_nan=False) + "\n")

    # -- telling -------------------------------------------------------------------------------

    def _watch(self, stage: str, client: int, what: str) -> None:
        if client < 0:
            self.status.tell(what)
            return
        doing = {"asked": DOING[stage], "answered": ""}.get(what, what)
        self.status.site(client)["doing"] = doing
        self._places()
        self.status.write()

    def _places(self) -> None:
        here = set(self.seats.present())
        for i in range(len(self.seats)):
            site = self.status.site(i)
            site["here"] = i in here
            site["n_train"] = int(self.seats.federation.n_train[i])

    def _show(self, record: dict[str, Any]) -> None:
        dropped = {d["client"]: d["reason"] for d in record["dropped"]}
        for i in record["cohort"]:
            site, facts = self.status.site(i), record["sites"][str(i)]
            if i in dropped:
                site["missed"] += 1
                self.status.tell(f"round {record['round']}: client {i} missed it: {dropped[i]}")
            else:
                site["rounds"] += 1
                site["seconds"] = facts["seconds"]
                site["bytes_down"] += facts["bytes_down"]
                site["bytes_up"] += facts["bytes_up"]
        for i in range(len(self.seats)):
            self.status.site(i)["accuracy"] = record["sites"][str(i)]["accuracy"]
        self._places()
        self.status.write(round=record["round"], accuracy=record["mean_accuracy"])


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two server apps must not write one run. The lock goes with the process that holds it."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: another run is going on in it") from None
        yield


def _identify(folder: Path, agreed: str, *, resume: bool) -> str:
    """The id of the run in this folder; a new run needs an empty place."""
    path = folder / RUN_FILE
    if path.is_file():
        content = json.loads(path.read_text())
        if not resume:
            raise UserError(f"{folder} holds a run; go on with --resume, or move that folder away")
        if content["digest"] != agreed:
            raise UserError(
                f"{folder} was begun with another federation.toml or experiment.toml; "
                "put that back, or move the folder away"
            )
        run: str = content["run"]
        return run
    if resume:
        raise UserError(f"{folder} holds no run to go on with; leave out --resume")
    run = secrets.token_hex(16)
    write_atomic(path, json.dumps({"run": run, "digest": agreed}) + "\n")
    return run


def _outcome(run: Run, method: str) -> Outcome:
    scores = [[s["accuracy"] for s in r["sites"].values()] for r in run.history[-LAST:]]
    last = np.array(scores, dtype=np.float64)
    clients = run.info.clients
    return Outcome(
        method=method,
        seed=run.seed,
        history=run.history,
        n_clients=clients,
        best=run.best_accuracy_per_client,
        final=run.accuracy,
        last10=np.mean(last, axis=0),
        best_accuracy=run.best_accuracy if run.best_round else None,
        best_round=run.best_round or None,
        alpha=run.alpha(),
    )


def _append(path: Path, record: dict[str, Any]) -> None:
    """One line more, on disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_model(path: Path, run: Run, theta: Tensor) -> dict[str, str]:
    data = save({k: v.cpu().contiguous() for k, v in run.task.named(theta).items()})
    write_atomic(path, data)
    return {"file": path.name, "sha256": sha256(data)}


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
