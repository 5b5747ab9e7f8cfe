"""Write the run folder, while a run goes on and at its end.

Every file but the growing history.jsonl is written under a temporary name, synced and renamed, so
that a file that is there is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

from pgfed.config.experiment import of_run
from pgfed.config.reference import commented
from pgfed.config.tables import FORMAT, Experiment
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.environment import environment
from pgfed.engine.rounds import Run
from pgfed.engine.runs import Past
from pgfed.engine.setup import Setup
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.durable import FolderLock, write_atomic
from pgfed.engine.storage.start import Start
from pgfed.errors import Unwritable, UserError
from pgfed.methods import registry as algorithms
from pgfed.results.folder import layout
from pgfed.results.folder.evidence import read_evidence, read_metrics
from pgfed.results.folder.files import (
    data_text,
    write_beginning,
    write_end,
    write_evidence,
    write_summary,
)
from pgfed.results.folder.history import line_of, write_history
from pgfed.results.folder.layout import seed_folder
from pgfed.results.folder.reader import read_finished, read_records
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.starts import Earlier
from pgfed.results.kept.writing import write_models
from pgfed.results.runs import (
    Evidence,
    MethodInfo,
    RunData,
    SeedRun,
    Told,
    client_names,
    clients_of,
    evidence_of,
    method_info,
    seed_run_of,
)
from pgfed.results.statistics import Floats
from pgfed.results.summary import client_rows, gain_of_run, summary

# Keys that never change the result.
PLACE = {
    *("engine.backend", "engine.workers", "engine.workers_per_device", "engine.address"),
    *("engine.device", "engine.checkpoint_every", "engine.state_memory", "output.callbacks"),
}
SAME_BITS = ("pgfed", "torch", "numpy")  # versions that decide the last bits
HEADER = "# Complete: `pgfed run` with this file repeats the run.\n\n"


def check_same(experiment: Experiment, path: Path, option: str = "--resume") -> None:
    """Refuse to go on with another experiment. Where it is run may differ: the result does not."""
    asked, held = (flattened(e.document()) for e in (experiment, of_run(path)))
    for key in sorted((asked.keys() | held.keys()) - PLACE):
        if asked.get(key) != held.get(key):
            raise UserError(
                f"{option}: {path} was started with {key} = {held.get(key)!r}, found "
                f"{asked.get(key)!r}; `pgfed resume {path}` goes on as it was started"
            )


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys to values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def data_of(
    setup: Setup, path: Path, about: dict[str, Any], runs: Mapping[tuple[str, int], SeedRun]
) -> RunData:
    """The data model of what has been run so far."""
    by_method: dict[str, dict[int, SeedRun]] = {}
    for method in setup.methods:
        for seed in setup.experiment.seeds:
            if (method, seed) in runs:
                by_method.setdefault(method, {})[seed] = runs[method, seed]
    return RunData(
        path=path,
        experiment=setup.experiment,
        environment=about,
        clients=clients_of(setup.federation),
        metric=setup.objective.primary,
        methods=_methods(setup),
        runs=by_method,
        text=HEADER + commented(setup.experiment.document(), _classes(setup)),
    )


def _classes(setup: Setup) -> dict[str, type[Any]]:
    return {folder: type(method) for folder, method in setup.methods.items()}


def _methods(setup: Setup) -> dict[str, MethodInfo]:
    found = {}
    for name in setup.experiment.methods:
        folder, base = algorithms.folder(name), setup.experiment.base(name)
        found[folder] = method_info(base, setup.methods[folder], algorithms.summary(base))
    return found


def earlier(setup: Setup, names: Sequence[str]) -> Earlier | None:
    """The run that this one starts from."""
    folder = setup.experiment.start_from
    classes = setup.federation.class_names
    return None if folder is None else Earlier(Path(folder), names, classes)


class RunWriter(Observer, Past):
    """Writes the folder while the run goes on, and at the end of each method.

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
        self.runs: dict[tuple[str, int], SeedRun] = {}  # that have come to their end
        self._setup = setup
        self._names = client_names(setup.federation)
        self._about: dict[str, Any] = {}  # environment.json
        self._resume = resume
        self._warn = warn
        self._history: IO[str] | None = None
        self._open = ExitStack()
        self._lock = FolderLock(path)
        self._earlier = earlier(setup, self._names)

    def __enter__(self) -> Self:
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                layout.check_no_jobs(self.path)
                self._begin()
            except BaseException:
                self._lock.release()
                raise
        return self

    def _begin(self) -> None:
        # Found out now rather than after the first round.
        with tempfile.TemporaryFile(dir=self.path):
            pass
        if self._resume and layout.is_run(self.path) and of_run(self.path).format < FORMAT:
            raise UserError(
                f"{self.path}: was written by pgfed 0.1, which this version reads but does not go "
                f"on with; `pgfed run {self.path / layout.EXPERIMENT} --out DIR` repeats it"
            )
        self._about = environment(self._setup.federation, self._setup.about_model())
        if self._setup.privacy is not None:
            self._about["privacy"] = self._setup.privacy.record(self._setup.methods)
        if self._earlier is not None:
            methods, seeds = list(self._setup.methods), self._setup.experiment.seeds
            self._about["start_from"] = self._earlier.digests(methods, seeds)
        if self._resume and (self.path / layout.ENVIRONMENT).is_file():
            self._check_environment()
            self._go_on_longer()
            return
        write_beginning(self.data, data_text(self._setup.federation))

    def __exit__(self, *_: object) -> None:
        try:
            with _writing(self.path):
                self._open.close()
        finally:
            self._lock.release()

    def _check_environment(self) -> None:
        """The data must be the same; another torch or CPU may give other last bits."""
        now, file = self._about, self.path / layout.ENVIRONMENT
        try:
            then = json.loads(file.read_text(encoding="utf-8"))
            changed = [k for k in SAME_BITS if then["packages"][k] != now["packages"][k]]
            fingerprint = then["data"]["fingerprint"]
            frozen = then.get("model", {}).get("frozen_sha256")
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{file}: is damaged ({error!r})") from None
        if fingerprint != now["data"]["fingerprint"]:
            raise UserError(
                f"{self.path}: the data is not what the run was started with (its fingerprint "
                "differs); put the data back, or start a new run"
            )
        if then.get("start_from") != now.get("start_from"):
            raise UserError(
                f"{self.path}: the run it was started from has changed since; start a new one"
            )
        if frozen != now["model"]["frozen_sha256"]:
            raise UserError(
                f"{self.path}: the model's frozen values are not those that the run was started "
                "with (their SHA-256 differs); put them back, or start a new run"
            )
        if changed:
            self._warn(
                f"{', '.join(changed)}: not the version the run was started with; its rounds from "
                "here on may differ in their last bits"
            )
        self._about = then

    def _go_on_longer(self) -> None:
        """More rounds than before: what had come to its end goes on from its state."""
        held, wanted = of_run(self.path), self._setup.experiment
        if wanted.rounds <= held.rounds:
            return
        longer = [
            self.folder(name, seed)
            for name, method in self._setup.methods.items()
            for seed in wanted.seeds
            if method.course == "rounds"
        ]
        over = [folder for folder in longer if (folder / layout.CLIENTS).is_file()]
        if over and any(method.personal.refresh for method in self._setup.methods.values()):
            raise UserError(
                "--rounds: personal.refresh changed the clients' states after the last round; "
                "`pgfed run --start-from` begins a new run with its models"
            )
        for folder in over:
            if not any((folder / layout.CHECKPOINT).glob("round-*.json")):
                raise UserError(
                    f"--rounds: {folder} kept no state to go on from (output.keep_state was "
                    "false); `pgfed run --start-from` begins a new run with its models"
                )
        # In this order: cut short in between, all is as in a run that has not come to its end.
        for folder in over:
            (folder / layout.CLIENTS).unlink()
        write_atomic(self.path / layout.EXPERIMENT, self.data.text)

    @property
    def data(self) -> RunData:
        """All that has come to its end so far."""
        return data_of(self._setup, self.path, self._about, self.runs)

    def folder(self, method: str, seed: int) -> Path:
        return seed_folder(self.path, method, seed)

    # -- going on --------------------------------------------------------------------------------

    def checkpoints(self, method: str, seed: int) -> Checkpoints | None:
        every = self._setup.experiment.engine.checkpoint_every
        at = self.folder(method, seed) / layout.CHECKPOINT
        return Checkpoints(at, every=every, waits=False, warn=self._warn)

    def start(self, method: str, seed: int) -> Start | None:
        return None if self._earlier is None else self._earlier.start(method, seed)

    def history(self, method: str, seed: int) -> list[Record]:
        experiment = self._setup.experiment
        return read_records(self.path, experiment, method, seed, self._names, strict=False)

    def finished(self, method: str, seed: int) -> list[Record] | None:
        folder = self.folder(method, seed)
        try:
            experiment = self._setup.experiment
            rounds = self._setup.rounds(method)
            run = read_finished(self.path, experiment, method, seed, self._names, rounds)
            if run is None:
                return None
            self.runs[method, seed] = run
            self._check_sums(run)
        except (UserError, ValueError) as error:
            raise UserError(
                f"{folder}: its clients.csv or history.jsonl is damaged ({error}); remove "
                "clients.csv to run it again"
            ) from None
        self._forget(folder)
        return run.history.records

    def _check_sums(self, run: SeedRun) -> None:
        """What cannot be summed up shows itself now."""
        data = self.data
        json.dumps(summary(data, run, gain_of_run(data, run, surely=False)), allow_nan=False)

    # -- a run -----------------------------------------------------------------------------------

    def begin(self, method: str, run: Run) -> None:
        folder = self.folder(method, run.seed)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_history(folder / layout.HISTORY, run.history, self._names)
            self._history = self._open.enter_context(
                (folder / layout.HISTORY).open("a", encoding="utf-8")
            )

    def round(self, method: str, run: Run, record: Record) -> None:
        assert self._history is not None, "begin() comes before round()"
        with _writing(self.path):
            self._history.write(line_of(record, self._names))
            self._history.flush()
            os.fsync(self._history.fileno())

    def best(self, method: str, run: Run) -> None:
        """The models of the best round so far; those of the one before it go."""
        folder = self.folder(method, run.seed)
        with _writing(folder):
            evidence, metrics = evidence_of(run)
            write_evidence(folder / layout.EVIDENCE, evidence, metrics)
            if not self._setup.keeps_models(run.seed):
                return
            new = folder / f"models-round-{run.round:06}"
            if new.exists():  # a run that was cut short after this round, and goes on
                shutil.rmtree(new)
            write_models(new, self._setup, run, method, [{"client": n} for n in self._names])
            for old in folder.glob("models-round-*"):
                if old != new:
                    shutil.rmtree(old)

    def end(self, method: str, run: Run) -> None:
        """What is written once, after a run's last round."""
        folder = self.folder(method, run.seed)
        with _writing(folder):
            self._open.close()
            finished = seed_run_of(method, run, *self._evidence(folder, run), self._told(run))
            self.runs[method, run.seed] = finished
            data = self.data
            if self._setup.keeps_models(run.seed):
                gain = gain_of_run(data, finished, surely=False)
                rows = client_rows(finished, gain, data.clients)
                self._keep_models(folder, run, method, rows)
            write_end(data, finished)
        self.runs[method, run.seed] = _as_read(finished, folder / layout.EVIDENCE)
        self._forget(folder)

    def _forget(self, folder: Path) -> None:
        """Remove what only a run that is going on needs, unless it may go on for longer."""
        if not self._setup.experiment.output.keep_state:
            shutil.rmtree(folder / layout.CHECKPOINT, ignore_errors=True)

    def _evidence(self, folder: Path, run: Run) -> tuple[Evidence | None, dict[str, Floats]]:
        """Of the models that are kept: those of the best round, if there was one."""
        best = self._setup.experiment.output.keep == "best" and not run.algorithm.scored_last
        kept = read_evidence(folder / layout.EVIDENCE, run.info.clients, outputs=True)
        if best and kept is not None:
            return kept, read_metrics(folder / layout.EVIDENCE, run.info.clients)
        return evidence_of(run)

    def _told(self, run: Run) -> Told | None:
        """What sites said of their gains; here the evidence itself is at hand."""
        return None

    def _keep_models(self, folder: Path, run: Run, method: str, rows: list[dict[str, Any]]) -> None:
        models = folder / layout.MODELS
        best = max(folder.glob("models-round-*/manifest.json"), default=None)
        if best is not None:
            manifests.complete(best.parent, rows)
            shutil.rmtree(models, ignore_errors=True)
            best.parent.rename(models)
        elif (
            self._setup.experiment.output.keep == "last" or not (models / "manifest.json").is_file()
        ):
            shutil.rmtree(models, ignore_errors=True)  # of a run that was cut short right here
            write_models(models, self._setup, run, method, rows)

    def finish(self) -> None:
        """After the last of all runs, which may have changed what gains are over."""
        with _writing(self.path):
            write_summary(self.data)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full or read-only disk is the user's to mend: one line."""
    try:
        yield
    except OSError as error:
        raise Unwritable(error.filename or path, error) from None


def _as_read(run: SeedRun, file: Path) -> SeedRun:
    """Without the models' outputs, which may be large and are on disk now."""
    if run.evidence is None:
        return run
    small = dataclasses.replace(run.evidence, outputs=None, target=None, file=file)
    return dataclasses.replace(run, evidence=small)
