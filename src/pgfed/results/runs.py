"""One data model of a run: its experiment, its clients, and what came out per method and seed.

It is data. What follows from it are functions: the rows and sums of a run here, gains and
comparisons in `comparison`, the words in `verdict`. The writer writes it, the reader reads it, and
whoever shows something of a run shows it from here. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pgfed.config.tables import BASE, Experiment
from pgfed.engine.callbacks import Record
from pgfed.methods.roles import Course, Role
from pgfed.model.metrics import Metric
from pgfed.results.history import History, history_of, last_scores
from pgfed.results.layout import methods_of
from pgfed.results.statistics import Floats, Ints, Pairs, mean_std

if TYPE_CHECKING:
    from pgfed.data.federation import Federation
    from pgfed.engine.rounds import Run
    from pgfed.methods.contract import Algorithm

NO_ATTACK = "none"
TARGET = 0.7  # `rounds_to_target` in a summary, of metrics up to 1
SCORES = ("best", "final", "mean")  # per client: in the best round, at the end, of the last rounds


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
        return experiment.rounds if self.course == "rounds" else 1


@dataclass(frozen=True)
class Evidence:
    """What the kept models gave for each test sample, client after client."""

    offsets: Ints  # clients + 1: where each client's samples begin
    outcome: NDArray[np.float32]  # per sample: 1 is right, 0 is wrong; an error
    outputs: NDArray[np.float32] | None  # samples x outputs; None for masks and where not read
    target: NDArray[Any] | None = None  # what would have been right; likewise

    def scores(self) -> Floats:
        """Per client the mean outcome; NaN without test data."""
        n = np.diff(self.offsets)
        owner = np.repeat(np.arange(len(n)), n)
        total = np.bincount(owner, self.outcome, minlength=len(n))
        scores: Floats = np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)
        return scores


@dataclass(frozen=True)
class SeedRun:
    """One method under one seed, finished."""

    method: str
    seed: int
    history: History
    scores: dict[str, Floats]  # of SCORES, per client; attackers too
    matrix: dict[str, Any] | None = None  # the arrays of alpha.npz
    attackers: frozenset[int] = frozenset()  # clients that simulated an attack
    evidence: Evidence | None = None
    metrics: dict[str, Floats] = field(default_factory=dict)  # of the kept models, per client

    # NaN for attackers, whose own models nobody asks about:

    @cached_property
    def last10(self) -> Floats:
        """Per client, the mean of the last ten rounds."""
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
        return {
            "rounds": e.rounds,
            "cohort": e.cohort,
            **{f"model.{k}": v for k, v in asdict(e.model).items() if v is not None},
            **asdict(e.train),
            **({} if e.task.class_weights == "none" else {"class_weights": e.task.class_weights}),
            **{k: v for k, v in e.method.get(method, {}).items() if k != BASE},
            "aggregation": e.engine.aggregation,
            "attack": self.attack,
        }

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
        control=None if method.control is None else dict(method.control),
        control_twin=method.control_twin if isinstance(method, type) else method.twin(),
        new_client_start=method.new_client_start,
        scored_last=method.scored_last,
        role=method.role,
        course=method.course,
    )


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
    )
    return evidence, {
        name: np.array([found[i][1].get(name, np.nan) for i in range(n)]) for name in names
    }


def seed_run_of(
    method: str, run: Run, evidence: Evidence | None, metrics: dict[str, Floats]
) -> SeedRun:
    """What came out of a run that the engine has finished."""
    scores = {
        "best": run.best_score_per_client.copy(),
        "final": run.score.copy(),
        "mean": run.last_scores.mean(axis=0),
    }
    return SeedRun(
        method=method,
        seed=run.seed,
        history=history_of(run.history),
        scores=scores,
        matrix=run.alpha(),
        attackers=run.attackers,
        evidence=evidence,
        metrics=metrics,
    )


# -- what follows ------------------------------------------------------------------------------


def gain_over(run: SeedRun, alone: SeedRun | None, metric: Metric) -> Floats | None:
    """Each client's gain over training alone under the same seed, where that was run.

    Above zero is better, whichever way the metric goes.
    """
    if alone is None:
        return None
    # Rounded: equal scores must not differ by what the mean of ten floats leaves over.
    gain: Floats = np.round(metric.sign * (run.scores["mean"] - alone.scores["mean"]), 9)
    return gain


def client_rows(
    run: SeedRun, alone: SeedRun | None, clients: Clients, metric: Metric
) -> list[dict[str, Any]]:
    """One row per client, as in clients.csv."""
    took_part = np.zeros(len(clients), dtype=np.int64)
    for record in run.history.records:
        took_part[record["cohort"]] += 1
    gain = gain_over(run, alone, metric)
    return [
        {
            "client": clients.names[i],
            "domain": None if clients.domains is None else clients.domains[i],
            "n_train": int(clients.n_train[i]),
            "n_test": int(clients.n_test[i]),
            "best": number(run.scores["best"][i]),
            "final": number(run.scores["final"][i]),
            "gain": None if gain is None else number(gain[i]),
            "mean": number(run.scores["mean"][i]),
            "rounds": int(took_part[i]),
            **({"attacker": "yes" if i in run.attackers else "no"} if run.attackers else {}),
            **{name: number(values[i]) for name, values in run.metrics.items()},
        }
        for i in range(len(clients))
    ]


def summary(
    run: SeedRun, alone: SeedRun | None, info: MethodInfo, clients: Clients, metric: Metric
) -> dict[str, Any]:
    """One object of summary.json."""
    history, records = run.history, run.history.records
    attackers = [clients.names[i] for i in sorted(run.attackers)]
    scored = [r for r in records if r["mean_score"] is not None]
    best = _best(scored, info, metric)
    last = last_scores(records)
    target = TARGET if metric.bounded and metric.more_is_better else None
    reached = (r["round"] for r in scored if target is not None and r["mean_score"] >= target)
    gain = gain_over(run, alone, metric)
    others = sorted(run.attackers)
    gain = None if gain is None else np.delete(gain, others)
    metrics = {name: mean_std(np.delete(each, others))[0] for name, each in run.metrics.items()}
    seconds = history.train_seconds
    gain_mean, gain_std = mean_std(np.array([]) if gain is None else gain)
    return {
        "method": run.method,
        "seed": run.seed,
        "rounds": len(records),
        "metric": metric.name,
        "best_score": None if best is None else best["mean_score"],
        "best_round": None if best is None else best["round"],
        "final_score": scored[-1]["mean_score"] if scored else None,
        "mean_score": float(np.mean(last)) if last else None,
        "window": len(last),
        "median_score": _median(run.final),
        "clients_undefined": len(undefined(run, clients)),
        "rounds_to_target": next(reached, None),
        "target": target,
        "baseline": None if alone is None else alone.method,
        "gain_mean": number(gain_mean),
        "gain_std": number(gain_std),
        "clients_gained": None if gain is None else int((gain > 0).sum()),
        "clients_harmed": None if gain is None else int((gain < 0).sum()),
        "bytes_down": sum(r["bytes_down"] for r in records),
        "bytes_up": sum(r["bytes_up"] for r in records),
        "samples_per_second": history.samples / seconds if seconds else None,
        "seconds": history.seconds,
        **({"attackers": attackers} if attackers else {}),
        "metrics": {name: number(mean) for name, mean in metrics.items()},
    }


def _best(scored: list[Record], info: MethodInfo, metric: Metric) -> Record | None:
    if not scored:
        return None
    if info.scored_last:
        return scored[-1]
    return max(scored, key=lambda r: metric.sign * r["mean_score"])


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def undefined(run: SeedRun, clients: Clients) -> list[str]:
    """Clients that have test data, on which the metric is undefined all the same."""
    missing = np.isnan(run.final) & (clients.n_test > 0)
    missing[sorted(run.attackers)] = False
    return [clients.names[i] for i in np.flatnonzero(missing)]


def baseline_of(data: RunData) -> str | None:
    """The method that gains are over: of the baselines the one with the better mean."""
    found = [
        (data.metric.sign * float(np.mean(means)), name)
        for name, runs in data.runs.items()
        if data.methods[name].role == "baseline"
        and (means := [np.nanmean(run.last10) for run in runs.values() if _scored(run)])
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _scored(run: SeedRun) -> bool:
    return bool(np.isfinite(run.last10).any())


def alone_of(data: RunData, seed: int) -> SeedRun | None:
    """The baseline under the same seed: what clients reach without the others."""
    name = baseline_of(data)
    return None if name is None else data.runs[name].get(seed)


def summaries(data: RunData) -> list[dict[str, Any]]:
    """As summary.json: one dictionary per method and seed that has finished."""
    return [
        summary(run, alone_of(data, run.seed), data.methods[run.method], data.clients, data.metric)
        for run in each_run(data)
    ]


def each_run(data: RunData) -> Iterator[SeedRun]:
    """By method, then by seed, in the order of the experiment."""
    for method in methods_of(data.experiment):
        for seed in data.experiment.seeds:
            if seed in data.runs.get(method, {}):
                yield data.runs[method][seed]


def number(value: float) -> float | None:
    """A float for JSON, where there is no NaN."""
    return None if np.isnan(value) else float(value)
