"""What follows from a run: gains, the rows of clients.csv, the sums of summary.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pgfed.engine.callbacks import Record
from pgfed.model.metrics import Metric
from pgfed.results.folder.history import last_scores
from pgfed.results.folder.layout import methods_of
from pgfed.results.gains.clients import Gain, gain_of, unknown
from pgfed.results.gains.resampling import measure_of
from pgfed.results.runs import TOLD, Clients, MethodInfo, RunData, SeedRun
from pgfed.results.statistics import Floats, mean_over_seeds, mean_std

TARGET = 0.7  # `rounds_to_target`, of metrics up to 1


def gain_of_run(data: RunData, run: SeedRun, *, surely: bool = True) -> Gain | None:
    """Each client's gain over training alone under the same seed, where that was run.

    Not ``surely``: without the evidence, which takes longer.
    """
    alone = alone_of(data, run.seed)
    if alone is None:
        return None
    scores = run.kept[None], alone.kept[None]
    if not surely and run.told is None:
        each = mean_over_seeds(data.metric.sign * (scores[0] - scores[1]))
        return unknown(each, data.clients.n_test)
    seed = run.seed
    return gain_of({seed: run}, {seed: alone}, scores, data.clients.n_test, measure_of(data))


def gains(data: RunData) -> dict[tuple[str, int], Gain | None]:
    """Of each method and seed that has finished."""
    return {(run.method, run.seed): gain_of_run(data, run) for run in each_run(data)}


def client_rows(run: SeedRun, gain: Gain | None, clients: Clients) -> list[dict[str, Any]]:
    """One row per client, as in clients.csv."""
    took_part = np.zeros(len(clients), dtype=np.int64)
    for record in run.history.records:
        took_part[record["cohort"]] += 1
    said = gain_rows(gain, len(clients))
    return [
        {
            "client": clients.names[i],
            "domain": None if clients.domains is None else clients.domains[i],
            "n_train": int(clients.n_train[i]),
            "n_test": int(clients.n_test[i]),
            "best": number(run.scores["best"][i]),
            "final": number(run.scores["final"][i]),
            **said[i],
            "mean": number(run.scores["mean"][i]),
            "rounds": int(took_part[i]),
            **({"attacker": "yes" if i in run.attackers else "no"} if run.attackers else {}),
            **{name: number(values[i]) for name, values in run.metrics.items()},
        }
        for i in range(len(clients))
    ]


def gain_rows(gain: Gain | None, clients: int) -> list[dict[str, Any]]:
    """Each client's gain with its interval, and what it comes to among all clients."""
    if gain is None:
        return [dict.fromkeys((*TOLD, "clearly")) for _ in range(clients)]
    words = {"clearly gained": "gained", "clearly lost": "lost"}
    return [
        {**told_of(gain, i), "clearly": None if said is None else words.get(said, "no")}
        for i, said in enumerate(gain.statements)
    ]


def told_of(gain: Gain, client: int) -> dict[str, float | None]:
    """A client's gain in numbers: what a site says of itself."""
    numbers = (gain.per_client, gain.low, gain.high, gain.p)
    sides = (gain.better, gain.worse)
    each = [number(values[client]) for values in numbers]
    each += [None if side is None else int(side[client]) for side in sides]
    return dict(zip(TOLD, each, strict=True))


def summary(data: RunData, run: SeedRun, gain: Gain | None) -> dict[str, Any]:
    """One object of summary.json."""
    info, clients, metric = data.methods[run.method], data.clients, data.metric
    history, records = run.history, run.history.records
    alone = alone_of(data, run.seed)
    attackers = [clients.names[i] for i in sorted(run.attackers)]
    scored = [r for r in records if r["mean_score"] is not None]
    best = _best(scored, info, metric)
    last = last_scores(records, run.window)
    target = TARGET if metric.bounded and metric.more_is_better else None
    reached = (r["round"] for r in scored if target is not None and r["mean_score"] >= target)
    others = sorted(run.attackers)
    metrics = {name: mean_std(np.delete(each, others))[0] for name, each in run.metrics.items()}
    seconds = history.train_seconds
    gain_mean, gain_std = mean_std(np.array([]) if gain is None else gain.per_client)
    return {
        "method": run.method,
        "seed": run.seed,
        "rounds": len(records),
        "metric": metric.name,
        "best_score": None if best is None else best["mean_score"],
        "best_round": None if best is None else best["round"],
        "kept_score": number(mean_std(run.kept)[0]),
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
        "clients_gained": None if gain is None else gain.gained,
        "clients_harmed": None if gain is None else gain.lost,
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
        and (means := [np.nanmean(run.kept) for run in runs.values() if _scored(run)])
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _scored(run: SeedRun) -> bool:
    return bool(np.isfinite(run.kept).any())


def alone_of(data: RunData, seed: int) -> SeedRun | None:
    """The baseline under the same seed: what clients reach without the others."""
    name = baseline_of(data)
    return None if name is None else data.runs[name].get(seed)


def summaries(data: RunData) -> list[dict[str, Any]]:
    """As summary.json: one dictionary per method and seed that has finished."""
    found = gains(data)
    return [summary(data, run, found[run.method, run.seed]) for run in each_run(data)]


def each_run(data: RunData) -> Iterator[SeedRun]:
    """By method, then by seed, in the order of the experiment."""
    for method in methods_of(data.experiment):
        for seed in data.experiment.seeds:
            if seed in data.runs.get(method, {}):
                yield data.runs[method][seed]


def number(value: float) -> float | None:
    """A float for JSON, where there is no NaN."""
    return None if np.isnan(value) else float(value)
