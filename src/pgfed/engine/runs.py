"""From an experiment to its outcomes: all seeds and methods, on one set of clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pgfed.config.experiment import DEFAULT_CLIENTS, IN_MEMORY, Data, Experiment, make_methods
from pgfed.data import datasets
from pgfed.data.datasets import Dataset
from pgfed.data.federation import Federation, build
from pgfed.engine.attacks import Attack
from pgfed.engine.backends.base import Backend, Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.checkpoints import Checkpoints
from pgfed.engine.robust import make_mean
from pgfed.engine.rounds import Run
from pgfed.engine.store import ClientStore
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm
from pgfed.model.layout import Layout
from pgfed.model.networks import Factory, default_model, make_task
from pgfed.results.statistics import mean_std

LAST = 10  # rounds whose mean accuracy leads every table
DEVICES = ("cpu", "cuda", "mps", "xpu")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setup:
    """An experiment that is ready to run: whatever can be wrong with it has been checked."""

    experiment: Experiment  # resolved: running it again repeats the run
    federation: Federation
    methods: dict[str, Algorithm]  # by the name of their folder
    model: str | Factory
    layout: Layout

    @property
    def cohort(self) -> int:
        """M, the number of clients drawn per round."""
        return self.experiment.cohort_size(len(self.federation))

    def backend(self) -> Backend:
        engine, head = self.experiment.engine, self.experiment.model.head
        if engine.backend == "serial":
            return Serial(self.federation, self.model, device=engine.device, head=head)
        if engine.backend == "ray":
            from pgfed.engine.backends.ray import Ray

            return Ray(
                self.federation,
                self.model,
                workers=engine.workers,
                address=engine.address,
                device=engine.device,
                head=head,
            )
        return Process(
            self.federation, self.model, workers=engine.workers, device=engine.device, head=head
        )

    @property
    def attack(self) -> Attack | None:
        """The attack that some clients simulate."""
        table = self.experiment.attack
        return None if table.kind == "none" else Attack(table.kind, table.share, table.strength)

    def keeps_models(self, seed: int) -> bool:
        """Whether the models of this seed are kept."""
        kept = self.experiment.output.models
        return kept == "all" or (kept == "last" and seed == self.experiment.seeds[-1])


def prepare(
    experiment: Experiment,
    data_root: Path,
    *,
    federation: Federation | None = None,
    model: Factory | None = None,
) -> Setup:
    """Check the methods, the device, the data and the model, and fill in what depends on them."""
    methods, experiment = make_methods(experiment)
    _check_device(experiment.engine.device)
    data = experiment.data
    if federation is None:
        federation, data = load_federation(data, data_root)
    if experiment.output.keep == "best" and not federation.n_validation.any():
        raise UserError(
            "output.keep: found 'best', which is chosen on validation data, and there is none; "
            "set data.validation_share above 0, or keep = 'last'"
        )
    name = experiment.model.name or default_model(federation.input_shape)
    task = make_task(
        model or name,
        federation.input_shape,
        len(federation.class_names),
        seed=experiment.seeds[0],
        head=experiment.model.head,
    )
    for algorithm in methods.values():
        algorithm.check_model(task)
    resolved = experiment.model_copy(
        update={"data": data, "model": experiment.model.model_copy(update={"name": name})}
    )
    return Setup(resolved, federation, methods, model or name, task.layout)


def load_federation(data: Data, root: Path) -> tuple[Federation, Data]:
    """The clients' data, and the table that names it completely."""
    if data.dataset == IN_MEMORY:
        raise UserError(
            "data.dataset: 'memory' was a run on arrays passed from Python, which a file cannot "
            "repeat; save them with numpy.savez and use npz:PATH"
        )
    dataset = datasets.load(data.dataset, root, image_size=data.image_size)
    federation, resolved = divide(dataset, data)
    return federation, resolved.model_copy(update={"dataset": _absolute(data.dataset, root)})


def divide(dataset: Dataset, data: Data) -> tuple[Federation, Data]:
    """Divide a data set among clients as the table says; the table with what it left open."""
    kind = data.partition or ("dirichlet" if dataset.client is None else "given")
    federation = build(
        dataset,
        partition=kind,
        clients=data.clients or DEFAULT_CLIENTS,
        alpha=data.alpha,
        test_share=data.test_share,
        validation_share=data.validation_share,
        min_samples=data.min_samples,
        seed=data.seed,
        classes_per_client=data.classes_per_client,
    )
    clients = len(federation)
    if data.clients not in (None, clients):
        raise UserError(
            f"data.clients: found {data.clients}, but {dataset.name} names {clients} clients; "
            f"allowed with partition 'given': {clients}, or leave it out"
        )
    taking_part = data.first_new(clients)
    if not taking_part:
        raise UserError(
            f"data.new_clients: {data.new_clients} of {clients} clients leaves none to train"
        )
    resolved = data.model_copy(update={"clients": clients, "partition": kind})
    return federation.between(0, taking_part) if data.new_clients else federation, resolved


def _absolute(dataset: str, root: Path) -> str:
    """Own data by its full path, so that the experiment can be repeated from any folder."""
    kind, colon, path = dataset.partition(":")
    if not colon:
        return dataset
    place = Path(path).expanduser()
    if not place.exists():
        place = root / place
    return f"{kind}:{place.absolute()}"


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
        if kind in DEVICES:
            torch.empty(0, device=name)
            return
        reason = f"allowed: {', '.join(DEVICES)}"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
    raise UserError(f"engine.device: found {name!r}; {reason}")


# -- running -----------------------------------------------------------------------------------


class Watcher(Protocol):
    """Somebody who is told how a run goes on."""

    def begin(self, method: str, seed: int, run: Run) -> None:
        """A run starts, or goes on after the rounds of its history."""

    def skip(self, outcome: Outcome) -> None:
        """A run had come to its end before."""

    def round(self, record: dict[str, Any]) -> None: ...

    def end(self, outcome: Outcome) -> None: ...


@dataclass
class Outcome:
    """What came out of one method under one seed."""

    method: str
    seed: int
    history: list[dict[str, Any]]
    n_clients: int
    best: Floats  # per client, in the round whose mean was best on test data
    final: Floats  # per client, after the last round
    last10: Floats  # per client, mean of the last ten rounds
    best_score: float | None  # mean over the clients
    best_round: int | None
    alpha: dict[str, Any] | None
    gain: Floats | None = None  # per client: last10 over Local's under the same seed
    attackers: frozenset[int] = frozenset()  # who simulated an attack: means are over the others

    @classmethod
    def from_rows(
        cls,
        algorithm: Algorithm,
        method: str,
        seed: int,
        history: list[dict[str, Any]],
        rows: list[dict[str, Any]],
        alpha: dict[str, Any] | None,
    ) -> Outcome:
        """What a finished run wrote to history.jsonl, clients.csv and alpha.npz."""
        best, final, last10 = (
            np.array([float(row[key] or "nan") for row in rows])
            for key in ("best", "final", "last10")
        )
        scored = [r for r in history if r["mean_score"] is not None]
        top = None
        if scored:
            first_best = max(scored, key=lambda r: r["mean_score"])
            top = scored[-1] if algorithm.scored_last else first_best
        return cls(
            method=method,
            seed=seed,
            history=history,
            n_clients=len(rows),
            best=best,
            final=final,
            last10=last10,
            best_score=None if top is None else top["mean_score"],
            best_round=None if top is None else top["round"],
            alpha=alpha,
            attackers=frozenset(i for i, row in enumerate(rows) if row.get("attacker") == "yes"),
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """One object of summary.json."""
        rounds, scored = self.history, self._scored()
        last = [r["mean_score"] for r in scored if r["round"] > len(rounds) - LAST]
        reached = (r["round"] for r in scored if r["mean_score"] >= 0.7)
        train_seconds = sum(r["train_seconds"] for r in rounds)
        gain = self.honest_gain
        gain_mean, gain_std = mean_std(np.array([]) if gain is None else gain)
        return {
            "method": self.method,
            "seed": self.seed,
            "rounds": len(rounds),
            "best_score": self.best_score,
            "best_round": self.best_round,
            "final_score": scored[-1]["mean_score"] if scored else None,
            "mean_score": float(np.mean(last)) if last else None,
            "rounds_to_70": next(reached, None),
            "gain_mean": number(gain_mean),
            "gain_std": number(gain_std),
            "clients_harmed": None if gain is None else int((gain < 0).sum()),
            "bytes_down": sum(r["bytes_down"] for r in rounds),
            "bytes_up": sum(r["bytes_up"] for r in rounds),
            "samples_per_second": sum(r["samples"] for r in rounds) / train_seconds,
            "seconds": sum(r["seconds"] for r in rounds),
            **({"attackers": sorted(self.attackers)} if self.attackers else {}),
        }

    @property
    def honest_gain(self) -> Floats | None:
        """The gains of the clients that did not attack."""
        return None if self.gain is None else np.delete(self.gain, sorted(self.attackers))

    def clients(self, federation: Federation) -> list[dict[str, Any]]:
        """One row per client, as in clients.csv."""
        took_part = np.zeros(self.n_clients, dtype=np.int64)
        for record in self.history:
            took_part[record["cohort"]] += 1
        domains, labels = federation.domains, federation.client_labels
        n_train, n_test = federation.n_train, federation.n_test
        return [
            {
                "client": i,
                "domain": None if domains is None else str(domains[i]),
                "n_train": int(n_train[i]),
                "n_test": int(n_test[i]),
                "best": number(self.best[i]),
                "final": number(self.final[i]),
                "gain_over_local": None if self.gain is None else number(self.gain[i]),
                "last10": number(self.last10[i]),
                "rounds": int(took_part[i]),
                "label": None if labels is None else str(labels[i]),
                **({"attacker": "yes" if i in self.attackers else "no"} if self.attackers else {}),
            }
            for i in range(self.n_clients)
        ]

    def _scored(self) -> list[dict[str, Any]]:
        return [r for r in self.history if r["mean_score"] is not None]


def number(value: float) -> float | None:
    """A float for JSON, where there is no NaN."""
    return None if np.isnan(value) else float(value)


class Keeper:
    """Somebody who keeps what a run leaves behind. This one keeps nothing."""

    def checkpoints(self, method: str, seed: int) -> Checkpoints | None:
        """Where the run's checkpoints go."""
        return None

    def history(self, method: str, seed: int) -> list[dict[str, Any]]:
        """The records of the rounds before the run was cut short."""
        return []

    def finished(self, method: str, seed: int) -> Outcome | None:
        """The outcome, if this run has come to its end before."""
        return None

    def best(self, method: str, run: Run) -> None:
        """The round just run is the best so far on validation data (output.keep = "best")."""

    def keep(self, run: Run, outcome: Outcome) -> None:
        """The last round has been run."""


def execute(setup: Setup, watchers: list[Watcher], keeper: Keeper) -> list[Outcome]:
    """Run all seeds and methods; the outcomes are by method, then by seed."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    with setup.backend() as backend:
        for seed in setup.experiment.seeds:
            for method in _local_first(setup):
                alone = outcomes.get(("local", seed))
                outcome = keeper.finished(method, seed)
                if outcome is None:
                    outcome = run_method(setup, backend, method, seed, alone, watchers, keeper)
                else:
                    compare(outcome, alone)
                    for watcher in watchers:
                        watcher.skip(outcome)
                outcomes[method, seed] = outcome
    return [outcomes[method, seed] for method in setup.methods for seed in setup.experiment.seeds]


def compare(outcome: Outcome, alone: Outcome | None) -> None:
    """Each client's gain over training alone, where that was run."""
    if outcome.method == "local":
        alone = outcome
    if alone is not None:
        # Rounded: equal accuracies must not differ by what the mean of ten floats leaves over.
        outcome.gain = np.round(outcome.last10 - alone.last10, 9)


def _is_best(run: Run) -> bool:
    """Whether the last round beats all before it on validation data.

    Never for a method that has one result, at the end.
    """
    *before, last = [record.get("mean_validation_score", -1.0) for record in run.history]
    return not run.algorithm.scored_last and last > max(before, default=-1.0)


def _local_first(setup: Setup) -> Iterator[str]:
    """Local is what the others' clients are compared with."""
    yield from sorted(setup.methods, key=lambda method: method != "local")


def run_method(
    setup: Setup,
    backend: Backend,
    method: str,
    seed: int,
    alone: Outcome | None,
    watchers: list[Watcher],
    keeper: Keeper,
) -> Outcome:
    """All rounds of one method under one seed, from the last one on record."""
    experiment = setup.experiment
    checkpoints = keeper.checkpoints(method, seed)
    run = Run(
        setup.methods[method],
        setup.federation,
        backend,
        seed=seed,
        rounds=experiment.rounds,
        cohort=setup.cohort,
        evaluate_every=experiment.evaluate_every,
        mean=make_mean(
            experiment.engine.aggregation,
            setup.methods[method].leaves,
            experiment.engine.attackers,
        ),
        max_update_norm=experiment.engine.max_update_norm,
        attack=setup.attack,
        store=ClientStore(
            None if checkpoints is None else checkpoints.clients,
            memory=experiment.engine.memory,
        ),
    )
    try:
        if checkpoints is not None:
            checkpoints.restore(run, keeper.history(method, seed))
        for watcher in watchers:
            watcher.begin(method, seed, run)
        while not run.finished:
            record = run.step()
            if experiment.output.keep == "best" and _is_best(run):
                keeper.best(method, run)
            for watcher in watchers:
                watcher.round(record)
            if checkpoints is not None:
                checkpoints.save(run)
        outcome = Outcome(
            method=method,
            seed=seed,
            history=run.history,
            n_clients=len(setup.federation),
            best=run.best_score_per_client,
            final=run.score,
            last10=run.last_scores.mean(axis=0),
            best_score=run.best_score if run.best_round else None,
            best_round=run.best_round or None,
            alpha=run.alpha(),
            attackers=run.attackers,
        )
        compare(outcome, alone)
        if checkpoints is not None:
            checkpoints.wait()
        keeper.keep(run, outcome)
    except OSError as error:
        where = error.filename or (checkpoints and checkpoints.folder)
        raise UserError(f"{where}: cannot be written ({error.strerror or error})") from error
    finally:
        if checkpoints is not None:
            checkpoints.settle()  # an interrupted run finishes the checkpoint that it is writing
        run.store.close()
    for watcher in watchers:
        watcher.end(outcome)
    return outcome
