"""From an experiment to its runs: all seeds and methods, on one set of clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgfed.engine.backends.base import Backend
from pgfed.engine.callbacks import Callback, Record
from pgfed.engine.robust import make_mean
from pgfed.engine.rounds import Run, Start
from pgfed.engine.setup import Setup
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.store import ClientStore
from pgfed.errors import UserError

# -- running -----------------------------------------------------------------------------------


class Past:
    """What there is of runs from before, and where their checkpoints go. Here: nothing."""

    def finished(self, method: str, seed: int) -> list[Record] | None:
        """The rounds of a run that has come to its end."""
        return None

    def history(self, method: str, seed: int) -> list[Record]:
        """The rounds before the run was cut short."""
        return []

    def checkpoints(self, method: str, seed: int) -> Checkpoints | None:
        """Where the run's checkpoints go."""
        return None

    def start(self, method: str, seed: int) -> Start | None:
        """The models of an earlier run to begin with."""
        return None


NOTHING = Past()


def execute(setup: Setup, callbacks: Sequence[Callback], past: Past = NOTHING) -> None:
    """Run all seeds and methods; what came out is told to the callbacks."""
    with setup.backend() as backend:
        for seed in setup.experiment.seeds:
            for method in _baseline_first(setup):
                history = past.finished(method, seed)
                if history is None:
                    run_method(setup, backend, method, seed, callbacks, past)
                else:
                    for callback in callbacks:
                        callback.skip(method, seed, history)


def _baseline_first(setup: Setup) -> Iterator[str]:
    """It is what the others' clients are compared with."""
    yield from sorted(setup.methods, key=lambda name: setup.methods[name].role != "baseline")


def run_method(
    setup: Setup,
    backend: Backend,
    method: str,
    seed: int,
    callbacks: Sequence[Callback],
    past: Past = NOTHING,
) -> None:
    """All rounds of one method under one seed, from the last one on record."""
    experiment = setup.experiment
    checkpoints = past.checkpoints(method, seed)
    run = _make_run(setup, backend, method, seed, checkpoints, past.start(method, seed))
    try:
        if checkpoints is not None:
            checkpoints.restore(run, past.history(method, seed))
        for callback in callbacks:
            callback.begin(method, run)
        while not run.finished:
            record = run.step()
            if experiment.output.keep == "best" and _is_best(run):
                for callback in callbacks:
                    callback.best(method, run)
            for callback in callbacks:
                callback.round(method, run, record)
            if checkpoints is not None:
                checkpoints.save(run)
        if checkpoints is not None:
            checkpoints.wait()
        for callback in callbacks:
            callback.end(method, run)
    except OSError as error:
        where = error.filename or (checkpoints and checkpoints.folder)
        raise UserError(f"{where}: cannot be written ({error.strerror or error})") from error
    finally:
        if checkpoints is not None:
            checkpoints.settle()  # an interrupted run finishes the checkpoint that it is writing
        run.store.close()


def _make_run(
    setup: Setup,
    backend: Backend,
    method: str,
    seed: int,
    checkpoints: Checkpoints | None,
    start: Start | None,
) -> Run:
    experiment, algorithm = setup.experiment, setup.methods[method]
    engine = experiment.engine
    return Run(
        algorithm,
        setup.federation,
        backend,
        seed=seed,
        rounds=setup.rounds(method),
        cohort=setup.cohort,
        evaluate_every=experiment.evaluate_every,
        mean=make_mean(engine.aggregation, algorithm.leaves, engine.attackers),
        max_update_norm=engine.max_update_norm,
        attack=setup.attack,
        store=ClientStore(
            None if checkpoints is None else checkpoints.clients, memory=engine.memory
        ),
        start=start,
    )


def _is_best(run: Run) -> bool:
    """Whether the last round beats all before it on validation data.

    Never for a method that has one result, at the end.
    """
    *before, last = [record.get("mean_validation_score") for record in run.history]
    if run.algorithm.scored_last or last is None:
        return False
    better = run.task.objective.primary.better
    return all(better(last, score) for score in before if score is not None)
