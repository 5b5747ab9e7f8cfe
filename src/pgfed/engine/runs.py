"""From an experiment to its runs: all seeds and methods, on one set of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pgfed.config.tables import Server
from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Backend
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.exchange.compression import make_compression
from pgfed.engine.exchange.robust import make_mean
from pgfed.engine.rounds import Run
from pgfed.engine.setup import Setup
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.start import Start
from pgfed.engine.storage.store import ClientStore
from pgfed.errors import Unwritable
from pgfed.methods.averaging import ServerOptimizer
from pgfed.methods.randomness import answers


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


def execute(
    setup: Setup,
    observers: Sequence[Observer],
    past: Past = NOTHING,
    only: tuple[str, int] | None = None,
) -> None:
    """Run all seeds and methods, or one of each; what came out is told to the observers."""
    with setup.backend() as backend:
        for seed in setup.experiment.seeds:
            for method in _baseline_first(setup):
                if only not in (None, (method, seed)):
                    continue
                history = past.finished(method, seed)
                if history is None:
                    run_method(setup, backend, method, seed, observers, past)
                else:
                    for observer in observers:
                        observer.skip(method, seed, history)


def _baseline_first(setup: Setup) -> Iterator[str]:
    """It is what the others' clients are compared with."""
    yield from sorted(setup.methods, key=lambda name: setup.methods[name].role != "baseline")


def run_method(
    setup: Setup,
    backend: Backend,
    method: str,
    seed: int,
    observers: Sequence[Observer],
    past: Past = NOTHING,
) -> None:
    """All rounds of one method under one seed, from the last one on record."""
    experiment = setup.experiment
    checkpoints = past.checkpoints(method, seed)
    run = _make_run(setup, backend, method, seed, checkpoints, past.start(method, seed))
    try:
        if checkpoints is not None:
            checkpoints.restore(run, past.history(method, seed))
        for observer in observers:
            observer.begin(method, run)
        while not run.finished:
            record = run.step()
            if experiment.output.keep == "best" and _is_best(run):
                for observer in observers:
                    observer.best(method, run)
            for observer in observers:
                observer.round(method, run, record)
            if checkpoints is not None:
                checkpoints.save(run)
        if checkpoints is not None:
            checkpoints.wait()
        for observer in observers:
            observer.end(method, run)
    except OSError as error:
        where = error.filename or (checkpoints and checkpoints.folder)
        raise Unwritable(where, error) from error
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
        optimizer=_optimizer(experiment.server),
        away=_absences(setup.federation, seed, engine.availability)
        if algorithm.course == "rounds"
        else _nobody,
        attack=setup.attack,
        store=ClientStore(
            None if checkpoints is None else checkpoints.clients, memory=engine.memory
        ),
        start=start,
        protection=setup.protection(method, seed),
        compression=make_compression(engine.compression, engine.top_k),
    )


def _optimizer(server: Server) -> ServerOptimizer | None:
    if server.optimizer == "none":
        return None
    lr = server.lr or {"momentum": 1.0, "adam": 0.01}[server.optimizer]
    return ServerOptimizer(server.optimizer, lr, server.beta, server.beta_2, server.tau)


def _nobody(round: int, client: int) -> bool:
    return False


def _absences(federation: Federation, seed: int, availability: float) -> Callable[[int, int], bool]:
    """Who of the clients drawn in a round is away."""
    return lambda round, i: not answers(seed, round, federation.key(i), availability)


def _is_best(run: Run) -> bool:
    """Whether the last round beats all before it on validation data.

    Never for a method that has one result, at the end.
    """
    *before, last = [record.get("mean_validation_score") for record in run.history]
    if run.algorithm.scored_last or last is None:
        return False
    better = run.task.objective.primary.better
    return all(better(last, score) for score in before if score is not None)
