"""One data model of a run: its experiment, its clients, and what came out per method and seed.

It is data. What follows from it are functions: the rows and sums of a run in `summary`, gains and
comparisons in `comparison`, the words in `verdict`. The writer writes it, the reader reads it, and
whoever shows something of a run shows it from here. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pgfed.config.experiment import LAST
from pgfed.config.tables import BASE, Experiment
from pgfed.methods.roles import Course, Role, rounds_of
from pgfed.model.metrics import Metric
from pgfed.results.folder.history import History, history_of, window_of
from pgfed.results.statistics import Floats, Ints, Pairs

if TYPE_CHECKING:
    from pgfed.data.federation import Federation
    from pgfed.engine.rounds import Run
    from pgfed.methods.contract import Algorithm

NO_ATTACK = "none"
SCORES = ("best", "final", "mean")  # per client: in the best round, at the end, of the last rounds
KEPT = "kept"  # likewise, of the models that are kept: those of the end, or the best on validation


@dataclass(frozen=True)
class Clients:
    """The clients and their data, as far as it is known."""

    n_train: Ints
    n_test: Ints
    names: list[str]  # as the data calls them, otherwise their number
    domains: list[str] | None
    counts: Ints | None  # clients x classes
    class_names: list[str]

    def __len__(self) -> int:
        return len(self.n_train)


@dataclass(frozen=True)
class MethodInfo:
    """What only the method can say of itself: a line of methods.json."""

    base: str  # as in the registry: of a variant the method it varies
    summary: str = ""
    control: dict[str, Any] | None = None  # the settings that make it its own control
    control_twin: str | None = None  # a method that is the same as with these settings
    new_client_start: str | None = None  # in words: what a new client starts from
    scored_last: bool = False  # its one result is that of the last round
    role: Role = "method"  # in a comparison
    course: Course = "rounds"

    def rounds(self, experiment: Experiment) -> int:
        """How many it takes."""
        return rounds_of(self.course, experiment.rounds)


@dataclass(frozen=True)
class Evidence:
    """What the kept models gave for each test sample, client after client."""

    offsets: Ints  # clients + 1: where each client's samples begin
    outcome: NDArray[np.float32]  # per sample: 1 is right, 0 is wrong; an error
    outputs: NDArray[np.float32] | None  # samples x outputs; None for masks and where not read
    target: NDArray[Any] | None = None  # what would have been right; likewise
    group: Ints | None = None  # samples of one patient have one number; None: each by itself
    file: Path | None = None  # where outputs and targets are, if they were not read

    def scores(self) -> Floats:
        """Per client the mean outcome; NaN without test data."""
        n = np.diff(self.offsets)
        owner = np.repeat(np.arange(len(n)), n)
        total = np.bincount(owner, self.outcome, minlength=len(n))
        scores: Floats = np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)
        return scores


# What a site says of its gain, and what these are called in clients.csv, in the order of `Told`.
TOLD = ("gain", "gain_low", "gain_high", "gain_p", "samples_better", "samples_worse")


@dataclass(frozen=True)
class Told:
    """What sites found of their own gains, from evidence that stays with them: a number each."""

    gain: Floats  # above zero is better
    low: Floats
    high: Floats
    p: Floats
    better: Floats  # test samples; NaN where samples are not right or wrong
    worse: Floats


@dataclass(frozen=True)
class SeedRun:
    """One method under one seed, finished."""

    method: str
    seed: int
    history: History
    scores: dict[str, Floats]  # of SCORES and KEPT, per client; attackers too
    matrix: dict[str, Any] | None = None  # the arrays of alpha.npz
    exported: dict[str, Any] | None = None  # of method.npz: what other methods keep
    attackers: frozenset[int] = frozenset()  # clients that simulated an attack
    evidence: Evidence | None = None
    metrics: dict[str, Floats] = field(default_factory=dict)  # of the kept models, per client
    window: int = LAST  # rounds that "mean" is over
    told: Told | None = None  # of a federation: what the sites said of their gains

    # NaN for attackers, whose own models nobody asks about:

    @cached_property
    def kept(self) -> Floats:
        """Per client, of the models that are kept: what a client takes home."""
        return self._honest(KEPT if KEPT in self.scores else "final")

    @cached_property
    def last(self) -> Floats:
        """Per client, the mean of the last `window` rounds."""
        return self._honest("mean")

    @cached_property
    def best(self) -> Floats:
        """Per client, in the round whose mean was best on test data."""
        return self._honest("best")

    @cached_property
    def final(self) -> Floats:
        return self._honest("final")

    def _honest(self, which: str) -> Floats:
        values = self.scores[which].copy()
        values[sorted(self.attackers)] = np.nan
        return values

    @cached_property
    def alpha(self) -> Pairs | None:
        """The matrix A of the PGFed family."""
        return None if self.matrix is None else Pairs.read(self.matrix)


@dataclass(frozen=True)
class Arm:
    """One arm of the study of explicit against implicit objectives: a mu and a step length."""

    mu: float  # 0: implicit
    lr: float
    chosen: bool  # the best step length for this mu
    accuracy: list[float]  # after 0, 1, ... steps
    gains: list[float]  # per client, where it has test data

    @property
    def gain(self) -> float:
        return float(np.mean(self.gains)) if self.gains else float("nan")


@dataclass(frozen=True)
class RunData:
    """A run: what is in its folder, or would be."""

    path: Path  # its folder; of a run in memory the name of its experiment
    experiment: Experiment
    environment: dict[str, Any]
    clients: Clients
    metric: Metric  # that it is judged by
    methods: dict[str, MethodInfo]  # by the names of their folders
    runs: dict[str, dict[int, SeedRun]]  # method -> seed -> run
    unfinished: list[tuple[str, int, int]] = field(default_factory=list)  # and rounds done
    text: str = ""  # of experiment.toml
    new_clients: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by method
    explicit: list[Arm] = field(default_factory=list)

    @property
    def fingerprint(self) -> str | None:
        found = self.environment.get("data", {}).get("fingerprint")
        return found if isinstance(found, str) else None

    def settings(self, method: str) -> dict[str, Any]:
        """Everything that can change what this method gives on these clients, as flat keys."""
        e = self.experiment
        own = e.method.get(method, {})
        personal = {**asdict(e.personal), **own.get("personal", {})}
        return {
            "rounds": e.rounds,
            "cohort": e.cohort,
            **{f"model.{k}": v for k, v in asdict(e.model).items() if v is not None},
            **asdict(e.train),
            **({} if e.task.class_weights == "none" else {"class_weights": e.task.class_weights}),
            **{k: v for k, v in own.items() if k not in (BASE, "personal")},
            **{f"personal.{k}": v for k, v in personal.items()},
            "aggregation": e.engine.aggregation,
            **self._circumstances,
            "attack": self.attack,
            "privacy": self._privacy(method),
        }

    @property
    def _circumstances(self) -> dict[str, Any]:
        """What else reaches all methods, where it is not as usual."""
        engine, server = self.experiment.engine, self.experiment.server
        found: dict[str, Any] = {}
        if engine.availability != 1:
            found["availability"] = engine.availability
        if engine.compression != "none":
            sent = f" {engine.top_k:g}" if engine.compression == "top-k" else ""
            found["compression"] = engine.compression + sent
        if server.optimizer != "none":
            found |= {f"server.{k}": v for k, v in asdict(server).items() if v is not None}
        return found

    def _privacy(self, method: str) -> str:
        """What protects the records that a method trains on."""
        if method not in self.environment.get("privacy", {}):
            return "none"
        table = self.experiment.privacy
        if table.noise_multiplier is not None:
            return f"noise {table.noise_multiplier:g}, clip {table.clip:g}"
        return f"epsilon {table.epsilon:g}, clip {table.clip:g}"

    @property
    def attack(self) -> str:
        """What some clients did to the others, in words."""
        attack = self.experiment.attack
        if attack.kind == "none":
            return NO_ATTACK
        strength = "" if attack.kind == "label-flip" else f" x{attack.strength:g}"
        return f"{attack.kind}{strength} by {100 * attack.share:g} %"


def client_title(clients: Clients, client: int) -> str:
    """A client's number, and what the data calls it."""
    name = clients.names[client]
    if name == str(client):
        name = "" if clients.domains is None else clients.domains[client]
    return f"client {client}" + (f" ({name})" if name else "")


# -- from the engine ---------------------------------------------------------------------------


def client_names(federation: Federation) -> list[str]:
    """What the data calls its clients, otherwise their numbers."""
    labels = federation.client_labels
    return names_from(len(federation), [] if labels is None else [str(label) for label in labels])


def names_from(clients: int, labels: Sequence[str]) -> list[str]:
    """The labels, where all clients have one and no two the same; otherwise numbers."""
    if len(labels) == clients and all(labels) and len(set(labels)) == clients:
        return list(labels)
    return [str(i) for i in range(clients)]


def clients_of(federation: Federation) -> Clients:
    """In a federation of real sites, as far as the sites have told."""
    here = len(federation.y) == int((federation.bounds[:, 3] - federation.bounds[:, 0]).sum())
    domains = federation.domains
    return Clients(
        n_train=federation.n_train,
        n_test=federation.n_test,
        names=client_names(federation),
        domains=None if domains is None else [str(domain) for domain in domains],
        counts=federation.counts() if here else None,
        class_names=list(federation.class_names),
    )


def method_info(base: str, method: Algorithm | type[Algorithm], summary: str) -> MethodInfo:
    """What goes into methods.json."""
    return MethodInfo(
        base=base,
        summary=summary,
        control=None if method.control is None else _flat(method.control),
        control_twin=method.control_twin if isinstance(method, type) else method.twin(),
        new_client_start=method.new_client_start,
        scored_last=method.scored_last,
        role=method.role,
        course=method.course,
    )


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Its keys as in `RunData.settings`: those of a table in it behind a dot."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = value if isinstance(value, dict) else None
        found |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items()}
    return found


def evidence_of(run: Run) -> tuple[Evidence, dict[str, Floats]]:
    """Of the clients' models as they are now; and their metrics."""
    n = run.info.clients
    found = {i: (samples, numbers) for i, samples, numbers in run.evidence()}
    sizes = [len(found[i][0]["outcome"]) for i in range(n)]

    def joined(key: str) -> NDArray[Any] | None:
        parts = [samples[key] for samples, _ in map(found.__getitem__, range(n)) if key in samples]
        return np.concatenate([part.cpu().numpy() for part in parts]) if parts else None

    outcome = joined("outcome")
    assert outcome is not None, "every client has outcomes, be it none"
    # In an order that does not hang on who answers first, or for whom a metric is undefined.
    known = dict.fromkeys(name for i in range(n) for name in found[i][1])
    first = [name for name in run.task.objective.names if name in known]
    names = [*first, *(name for name in known if name not in first)]
    evidence = Evidence(
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        outcome=outcome,
        outputs=joined("outputs"),
        target=joined("target"),
        group=_groups(run.federation),
    )
    return evidence, {
        name: np.array([found[i][1].get(name, np.nan) for i in range(n)]) for name in names
    }


def _groups(federation: Federation) -> Ints | None:
    """Of all test samples, client after client."""
    parts = [federation.groups(i, part=2) for i in range(len(federation))]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


def seed_run_of(
    method: str,
    run: Run,
    evidence: Evidence | None,
    metrics: dict[str, Floats],
    told: Told | None = None,
) -> SeedRun:
    """What came out of a run that the engine has finished."""
    window = window_of(run.rounds)
    final = run.score.copy()
    scores = {
        "best": run.best_score_per_client.copy(),
        "final": final,
        "mean": run.last_scores[-window:].mean(axis=0),
        KEPT: kept_scores(metrics.get(run.task.objective.metric), final),
    }
    return SeedRun(
        method=method,
        seed=run.seed,
        history=history_of(run.history),
        scores=scores,
        matrix=run.alpha(),
        exported=exported(run),
        attackers=run.attackers,
        evidence=evidence,
        metrics=metrics,
        window=window,
        told=told,
    )


def kept_scores(metric: Floats | None, final: Floats) -> Floats:
    """Of the kept models where they were scored by themselves, otherwise those of the end."""
    return final.copy() if metric is None else np.where(np.isnan(metric), final, metric)


def exported(run: Run) -> dict[str, Any] | None:
    """What a method without a matrix A keeps: the clients' clusters, say."""
    return None if run.alpha() else run.algorithm.export(run.server) or None


# -- what follows ------------------------------------------------------------------------------
