"""One method under one seed of an experiment, in a folder that many processes fill.

Each holds the lock of the METHOD/seed-K that it runs. What the folder begins with is written by
the first, and compared by all others; what sums it up is written by the last.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pgfed.engine.storage.durable import FolderLock, in_use
from pgfed.errors import UserError, unknown
from pgfed.results.folder import layout
from pgfed.results.folder.layout import seed_folder
from pgfed.results.folder.writer import RunWriter, check_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgfed.config.tables import Experiment
    from pgfed.engine.setup import Setup

Job = tuple[str, int]  # the folder of a method, and a seed


def job_of(experiment: Experiment, asked: str) -> Job:
    """METHOD/SEED, as it was asked for."""
    method, slash, seed = asked.rpartition("/")
    if not slash or not (seed.isascii() and seed.isdecimal()):
        raise UserError(f"--only: found {asked!r}; allowed: METHOD/SEED, as pgfed/0")
    methods = layout.methods_of(experiment)
    if method not in methods:
        raise unknown("--only", method, methods)
    if int(seed) not in experiment.seeds:
        allowed = ", ".join(map(str, experiment.seeds))
        raise UserError(f"--only: found the seed {seed}; allowed: {allowed}")
    return method, int(seed)


class JobWriter(RunWriter):
    """Writes one method and seed into a folder that others write to at the same time."""

    def __init__(
        self, path: Path, setup: Setup, job: Job, *, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__(path, setup, resume=layout.is_run(path), warn=warn)
        self._mine = FolderLock(seed_folder(path, *job))

    def __enter__(self) -> Self:
        own = self._mine.folder
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{own}: cannot be written ({error.strerror or error})") from None
        self._mine.acquire()
        try:
            with self._alone():
                if in_use(self.path):
                    raise UserError(
                        f"{self.path}: another pgfed runs all of it; --only is for folders that "
                        "are filled by --only"
                    )
                self._resume = layout.is_run(self.path)
                if self._resume:
                    check_same(self._setup.experiment, self.path, "--only")
                self._begin()
        except BaseException:
            self._mine.release()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            super().__exit__(*problem)
        finally:
            self._mine.release()

    def finish(self) -> None:
        """Sum up, if this was the last: what the others left is read for it."""
        with self._alone():
            for method in self._setup.methods:
                for seed in self._setup.experiment.seeds:
                    if (method, seed) not in self.runs:
                        self.finished(method, seed)
            if not self.missing:
                super().finish()

    @property
    def missing(self) -> int:
        """How many runs of the experiment have not come to their end."""
        return len(self._setup.methods) * len(self._setup.experiment.seeds) - len(self.runs)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For the moment that it takes to write what is common to all."""
        lock = FolderLock(self.path, ".common.lock")
        lock.acquire(wait=True)
        try:
            yield
        finally:
            lock.release()
