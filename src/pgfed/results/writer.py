"""The run folder: what a run leaves behind.

Every file but the growing history.jsonl is written under a temporary name, synced and renamed, so
that a file that is there is whole.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import tomli_w

from pgfed.config.experiment import Experiment, of_run
from pgfed.data.federation import Federation
from pgfed.engine.checkpoints import Checkpoints
from pgfed.engine.durable import FolderLock, write_atomic
from pgfed.engine.rounds import Run
from pgfed.engine.runs import Keeper, Outcome, Setup
from pgfed.errors import Interrupted, UserError
from pgfed.results.environment import environment
from pgfed.results.history import line_of, read_history, write_history
from pgfed.results.models import complete_models, write_models
from pgfed.results.statistics import read_alpha

# Keys of [engine] that never change the result.
PLACE = ("backend", "workers", "address", "device", "checkpoint_every", "state_memory")
SAME_BITS = ("pgfed", "torch", "numpy")  # versions that decide the last bits
# What comes of reading numbers from a text that is not what was written.
_DAMAGE = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, csv.Error)
HEADER = "# Complete: `pgfed run` with this file repeats the run.\n\n"


def choose(out: Path | None, name: str) -> Path:
    """Where the run will go: ``out``, or the first of runs/NAME, runs/NAME-2, ... that is free."""
    if out is None:
        out, number = Path("runs") / name, 1
        while out.exists():
            number += 1
            out = Path("runs") / f"{name}-{number}"
        return out
    with _writing(out):
        if out.exists() and not out.is_dir():
            raise UserError(f"--out: {out} is a file; give a folder that is new or empty")
        if out.is_dir() and any(out.iterdir()):
            hint = f"`pgfed resume {out}` goes on with it, or " if is_run(out) else ""
            raise UserError(
                f"--out: {out} exists and is not empty; {hint}give another folder, or remove it "
                "first"
            )
    return out


def is_run(folder: Path) -> bool:
    """Does this folder hold a run, finished or not?"""
    return (folder / "experiment.toml").is_file()


def interrupted(where: str, folder: Path, more: str = "") -> Interrupted:
    """What to say of Ctrl+C: how to go on, if anything has begun. ``more`` follows that."""
    goes_on = f"; `pgfed resume {folder}` goes on{more}" if is_run(folder) else ""
    return Interrupted(f"interrupted during {where}{goes_on}")


def check_same(experiment: Experiment, folder: Path) -> None:
    """Refuse to go on with another experiment. Where it is run may differ: the result does not."""
    asked, held = (flattened(e.document()) for e in (experiment, of_run(folder)))
    place = {f"engine.{key}" for key in PLACE}
    for key in sorted((asked.keys() | held.keys()) - place):
        if asked.get(key) != held.get(key):
            raise UserError(
                f"--resume: {folder} was started with {key} = {held.get(key)!r}, found "
                f"{asked.get(key)!r}; `pgfed resume {folder}` goes on as it was started"
            )


def flattened(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys to values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


class RunFolder(Keeper):
    """Writes the folder while the run goes on (as a Watcher), and at the end of each method.

    ``resume``: the folder holds a run that was cut short, and is gone on with. A method and seed
    has come to its end when its clients.csv is there, which is written last.
    """

    def __init__(
        self,
        path: Path,
        setup: Setup,
        *,
        resume: bool = False,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path = path
        self._setup = setup
        self._resume = resume
        self._warn = warn
        self._history: IO[str] | None = None
        self._open = ExitStack()
        self._lock = FolderLock(path)

    def __enter__(self) -> Self:
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                self._begin()
            except BaseException:
                self._lock.release()
                raise
        return self

    def _begin(self) -> None:
        # Found out now rather than after the first round.
        with tempfile.TemporaryFile(dir=self.path):
            pass
        if self._resume and (self.path / "environment.json").is_file():
            self._check_environment()
            return
        document = tomli_w.dumps(self._setup.experiment.document())
        write_atomic(self.path / "experiment.toml", HEADER + document)
        write_atomic(self.path / "data.json", data_text(self._setup.federation))
        # Last: a folder that has it has begun.
        self._json("environment.json", environment(self._setup.federation))

    def __exit__(self, *_: object) -> None:
        try:
            with _writing(self.path):
                self._open.close()
        finally:
            self._lock.release()

    def _check_environment(self) -> None:
        """The data must be the same; another torch or CPU may give other last bits."""
        now = environment(self._setup.federation)
        try:
            then = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
            changed = [k for k in SAME_BITS if then["packages"][k] != now["packages"][k]]
            fingerprint = then["data"]["fingerprint"]
        except _DAMAGE as error:
            raise UserError(f"{self.path / 'environment.json'}: is damaged ({error!r})") from None
        if fingerprint != now["data"]["fingerprint"]:
            raise UserError(
                f"{self.path}: the data is not what the run was started with (its fingerprint "
                "differs); put the data back, or start a new run"
            )
        if changed:
            self._warn(
                f"{', '.join(changed)}: not the version the run was started with; its rounds from "
                "here on may differ in their last bits"
            )

    # -- going on --------------------------------------------------------------------------------

    def checkpoints(self, method: str, seed: int) -> Checkpoints | None:
        every = self._setup.experiment.engine.checkpoint_every
        folder = self.seed_folder(method, seed) / "checkpoint"
        return Checkpoints(folder, every=every, warn=self._warn)

    def history(self, method: str, seed: int) -> list[dict[str, Any]]:
        return read_history(self.seed_folder(method, seed) / "history.jsonl")

    def finished(self, method: str, seed: int) -> Outcome | None:
        folder = self.seed_folder(method, seed)
        if not (folder / "clients.csv").is_file():
            return None
        try:
            outcome = self._read_outcome(folder, method, seed)
        except _DAMAGE as error:
            raise UserError(
                f"{folder}: its clients.csv or history.jsonl is damaged ({error}); remove "
                "clients.csv to run it again"
            ) from None
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        return outcome

    def _read_outcome(self, folder: Path, method: str, seed: int) -> Outcome:
        with (folder / "clients.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if [row["client"] for row in rows] != list(map(str, range(len(self._setup.federation)))):
            raise ValueError("not the run's clients")
        history = self.history(method, seed)
        if len(history) != self._setup.experiment.rounds:
            raise ValueError(f"{len(history)} whole rounds")
        matrix = folder / "alpha.npz"
        alpha = read_alpha(matrix) if matrix.is_file() else None
        algorithm = self._setup.methods[method]
        outcome = Outcome.from_rows(algorithm, method, seed, history, rows, alpha)
        trial = replace(outcome)  # a copy: what cannot be summed up shows itself now
        trial.clients(self._setup.federation)
        json.dumps(trial.summary, allow_nan=False)
        return outcome

    def seed_folder(self, method: str, seed: int) -> Path:
        return self.path / method / f"seed-{seed}"

    def begin(self, method: str, seed: int, run: Run) -> None:
        folder = self.seed_folder(method, seed)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_history(folder / "history.jsonl", run.history)
            self._history = self._open.enter_context(
                (folder / "history.jsonl").open("a", encoding="utf-8")
            )

    def round(self, record: dict[str, Any]) -> None:
        assert self._history is not None, "begin() comes before round()"
        with _writing(self.path):
            self._history.write(line_of(record))
            self._history.flush()
            os.fsync(self._history.fileno())

    def skip(self, outcome: Outcome) -> None:
        """It is all there."""

    def end(self, outcome: Outcome) -> None:
        with _writing(self.path):
            self._open.close()

    def best(self, method: str, run: Run) -> None:
        """The models of the best round so far; those of the one before it go."""
        if not self._setup.keeps_models(run.seed):
            return
        folder = self.seed_folder(method, run.seed)
        new = folder / f"models-round-{run.round:06}"
        with _writing(folder):
            if new.exists():  # a run that was cut short after this round, and goes on
                shutil.rmtree(new)
            write_models(
                new, self._setup, run, method, [{"client": i} for i in range(run.info.clients)]
            )
            for old in folder.glob("models-round-*"):
                if old != new:
                    shutil.rmtree(old)

    def keep(self, run: Run, outcome: Outcome) -> None:
        """What is written once, after a run's last round."""
        folder = self.seed_folder(outcome.method, outcome.seed)
        rows = outcome.clients(self._setup.federation)
        with _writing(folder):
            if outcome.alpha is not None:
                arrays = io.BytesIO()
                np.savez_compressed(arrays, **outcome.alpha)
                write_atomic(folder / "alpha.npz", arrays.getvalue())
            if self._setup.keeps_models(outcome.seed):
                self._keep_models(folder, run, outcome.method, rows)
            write_atomic(
                folder / "clients.csv", csv_text(rows)
            )  # this run is finished from here on
        self._forget(folder)

    def _forget(self, folder: Path) -> None:
        """Remove what only a run that is going on needs."""
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)

    def _keep_models(self, folder: Path, run: Run, method: str, rows: list[dict[str, Any]]) -> None:
        models = folder / "models"
        best = max(folder.glob("models-round-*/manifest.json"), default=None)
        if best is not None:
            complete_models(best.parent, rows)
            shutil.rmtree(models, ignore_errors=True)
            best.parent.rename(models)
        elif (
            self._setup.experiment.output.keep == "last" or not (models / "manifest.json").is_file()
        ):
            shutil.rmtree(models, ignore_errors=True)  # of a run that was cut short right here
            write_models(models, self._setup, run, method, rows)

    def finish(self, outcomes: list[Outcome]) -> None:
        with _writing(self.path):
            self._json("summary.json", [outcome.summary for outcome in outcomes])

    def _json(self, name: str, content: Any) -> None:
        write_atomic(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full or read-only disk is the user's to mend: one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(f"{where}: cannot be written ({error.strerror or error})") from None


def data_text(federation: Federation) -> str:
    """Who holds what: the content of data.json, a line per client."""
    names = json.dumps(list(federation.class_names))
    clients = ",\n".join(json.dumps(row, allow_nan=False) for row in federation.table())
    return f'{{"class_names": {names}, "clients": [\n{clients}\n]}}\n'


def csv_text(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
