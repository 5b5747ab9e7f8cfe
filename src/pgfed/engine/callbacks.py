"""What is told of an experiment's runs while they happen.

`Callback` is for users: loggers and the like, TensorBoard among them. `Observer` is for the parts
of pgfed that see the engine itself: the run folder, progress on a terminal. Importing this module
does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pgfed.errors import NOTES, UserError, first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pgfed.config.tables import Experiment
    from pgfed.engine.rounds import Run
    from pgfed.engine.setup import Setup
    from pgfed.model.metrics import Metric

Record = dict[str, Any]  # of a round; clients are numbers in it


@dataclass(frozen=True)
class Running:
    """One method under one seed, as callbacks see it."""

    method: str  # the name of its folder
    seed: int
    rounds: int  # that it will take
    experiment: Experiment  # complete
    folder: Path | None  # the run folder; None where there is none
    clients: list[str]  # their names: records call clients by their place in this list
    n_train: NDArray[np.int64]  # their training samples
    attackers: frozenset[int]  # clients that simulate an attack
    metric: Metric  # what the run is judged by
    history: list[Record]  # the rounds so far
    _run: Run | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the method runs with, as one flat dictionary."""
        e = self.experiment
        table = e.method.get(self.method, {})
        return {
            "method": self.method,
            "seed": self.seed,
            "dataset": e.data.dataset,
            "clients": len(self.clients),
            "model": e.model.name,
            "rounds": self.rounds,
            "cohort": e.cohort,
            **asdict(e.train),
            **table,
        }

    def scores(self) -> NDArray[np.float64] | None:
        """Each client's score as of the last round that was scored; NaN where it has none."""
        return None if self._run is None else self._run.score.copy()

    def matrix(self) -> dict[str, Any] | None:
        """The matrix A of the PGFed family, as alpha.npz holds it."""
        return None if self._run is None else self._run.alpha()


class Callback:
    """Somebody who is told how runs go on. Each method does nothing; override what you need.

    All methods and seeds of an experiment are told one after the other, in the process that runs
    the rounds. An exception is said once, and then the runs go on without the callback; to end
    them, raise `pgfed.UserError`.
    """

    def begin(self, run: Running) -> None:
        """A run starts, or goes on after the rounds of ``run.history``."""

    def round(self, run: Running, record: Record) -> None:
        """A round has been run; ``record`` is its line of history.jsonl."""

    def end(self, run: Running) -> None:
        """The last round has been run."""

    def skip(self, run: Running) -> None:
        """A run had come to its end before (`pgfed resume`); ``run.history`` has all of it."""

    def close(self) -> None:
        """The experiment is over, or was cut short."""


class Observer:
    """Told by the engine, with the engine's own run.

    ``method`` is the name of the method's folder. Observers are called in their order, in the
    process that runs the rounds; one that adds to a record comes before those that keep it.
    """

    def begin(self, method: str, run: Run) -> None:
        """A run starts, or goes on after the rounds of its history."""

    def skip(self, method: str, seed: int, history: list[Record]) -> None:
        """A run had come to its end before, with these rounds."""

    def best(self, method: str, run: Run) -> None:
        """The round just run is the best so far on validation data (output.keep = "best").

        Told before `round`, and never of a method that has one result, at the end.
        """

    def round(self, method: str, run: Run, record: Record) -> None:
        """A round has been run; its checkpoint comes after."""

    def end(self, method: str, run: Run) -> None:
        """The last round has been run; the engine can still be asked for models."""


class Callbacks(Observer):
    """Tells users' callbacks. ``names`` are the clients'."""

    def __init__(
        self, callbacks: Sequence[Callback], setup: Setup, names: list[str], folder: Path | None
    ) -> None:
        self._callbacks = list(callbacks)
        self._setup, self._names, self._folder = setup, names, folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell("close")

    def begin(self, method: str, run: Run) -> None:
        self._tell("begin", self._of(method, run))

    def skip(self, method: str, seed: int, history: list[Record]) -> None:
        attack = self._setup.attack
        attackers = attack.attackers(seed, len(self._names)) if attack else frozenset()
        self._tell("skip", self._running(method, seed, len(history), attackers, history))

    def round(self, method: str, run: Run, record: Record) -> None:
        self._tell("round", self._of(method, run), record)

    def end(self, method: str, run: Run) -> None:
        self._tell("end", self._of(method, run))

    def _of(self, method: str, run: Run) -> Running:
        return self._running(method, run.seed, run.rounds, run.attackers, run.history, run)

    def _running(
        self,
        method: str,
        seed: int,
        rounds: int,
        attackers: frozenset[int],
        history: list[Record],
        run: Run | None = None,
    ) -> Running:
        setup = self._setup
        return Running(
            method=method,
            seed=seed,
            rounds=rounds,
            experiment=setup.experiment,
            folder=self._folder,
            clients=self._names,
            n_train=setup.federation.n_train,
            attackers=attackers,
            metric=setup.objective.primary,
            history=history,
            _run=run,
        )

    def _tell(self, what: str, *about: Any) -> None:
        for callback in list(self._callbacks):
            try:
                getattr(callback, what)(*about)
            except UserError:
                raise
            except Exception as error:  # a logger that fails must not cost hours of training
                self._callbacks.remove(callback)
                NOTES.warning(
                    f"callback {type(callback).__name__}: {what} failed ({type(error).__name__}: "
                    f"{first_line(error)}); the run goes on without it"
                )
