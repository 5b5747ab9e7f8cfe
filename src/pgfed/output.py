"""The run folder: what a run leaves behind.

Every file but the growing history.jsonl is written under a temporary name, synced and renamed, so
that a file that is there is whole.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import tomli_w

from pgfed.engine import Run
from pgfed.environment import environment
from pgfed.errors import UserError
from pgfed.files import write_atomic
from pgfed.modelfiles import complete_models, write_models
from pgfed.runner import Outcome, Setup

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
            raise UserError(
                f"--out: {out} exists and is not empty; give another folder, or remove it first"
            )
    return out


class RunFolder:
    """Writes the folder while the run goes on (as a Watcher), and at the end of each method."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self.path = path
        self._setup = setup
        self._history: IO[str] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # Found out now rather than after the first round.
            with tempfile.TemporaryFile(dir=self.path):
                pass
            document = tomli_w.dumps(self._setup.experiment.document())
            write_atomic(self.path / "experiment.toml", HEADER + document)
            self._json("environment.json", environment(self._setup.federation))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def seed_folder(self, method: str, seed: int) -> Path:
        return self.path / method / f"seed-{seed}"

    def begin(self, method: str, seed: int) -> None:
        folder = self.seed_folder(method, seed)
        with _writing(folder):
            folder.mkdir(parents=True)
            self._history = self._open.enter_context(
                (folder / "history.jsonl").open("a", encoding="utf-8")
            )

    def round(self, record: dict[str, Any]) -> None:
        assert self._history is not None, "begin() comes before round()"
        with _writing(self.path):
            self._history.write(json.dumps(record, allow_nan=False) + "\n")
            self._history.flush()

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
            write_atomic(folder / "clients.csv", _csv(rows))
            if outcome.alpha is not None:
                arrays = io.BytesIO()
                np.savez_compressed(arrays, **outcome.alpha)
                write_atomic(folder / "alpha.npz", arrays.getvalue())
            if self._setup.keeps_models(outcome.seed):
                best = max(folder.glob("models-round-*/manifest.json"), default=None)
                if best is None:
                    write_models(folder / "models", self._setup, run, outcome.method, rows)
                else:
                    complete_models(best.parent, rows)
                    best.parent.rename(folder / "models")

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


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
