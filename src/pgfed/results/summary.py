"""What follows from a run: gains, the rows of clients.csv, the sums of summary.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pgfed.engine.callbacks import Record
from pgfed.model.metrics import Metric
from pgfed.results.folder.history import last_scores
from pgfed.results.folder.layout import methods_of
from pgfed.results.statistics import Floats, mean_std

if TYPE_CHECKING:
    pass
from pgfed.results.runs import TARGET, Clients, MethodInfo, RunData, SeedRun


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
