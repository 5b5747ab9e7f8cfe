"""The end of a run for people: one table, one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pgfed.words import percent, points, size

if TYPE_CHECKING:
    from pgfed.runner import Outcome
    from pgfed.stats import Floats

COLUMNS = (
    "method",
    "last 10 rounds",
    "best (on test)",
    "gain over Local",
    "clients gained",
    "clients harmed",
    "sent",
    "images/s",
)
CONTROL = "fedavg-local"  # PGFed with mu = 0


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """One row per method, means over its seeds."""
    table = []
    for method, runs in _by_method(outcomes).items():
        gained = [run.gained for run in runs]
        values = (
            method,
            percent(mean(runs, "last10_accuracy")),
            percent(mean(runs, "best_accuracy")),
            "" if method == "local" else points(mean(runs, "gain_mean")),
            "" if method == "local" else _number(gained),
            "" if method == "local" else _number([run.summary["clients_harmed"] for run in runs]),
            size(np.mean([run.summary["bytes_down"] + run.summary["bytes_up"] for run in runs])),
            f"{np.mean([run.summary['images_per_second'] for run in runs]):,.0f}",
        )
        table.append(dict(zip(COLUMNS, values, strict=True)))
    return table


def sentence(outcomes: Sequence[Outcome]) -> str:
    """Did federating help, whom, and what did PGFed's own objective add?"""
    runs = _by_method(outcomes)
    scores = {method: mean(of, "last10_accuracy") for method, of in runs.items()}
    known = {method: score for method, score in scores.items() if score is not None}
    if not known:
        return "No client has test data, so nothing can be said about accuracy."
    best = max(known, key=lambda method: known[method])
    clients = outcomes[0].n_clients
    if "local" not in known:
        return f"{best} scored best ({percent(known[best])}); add 'local' to see who gained."
    if best == "local":
        others = [method for method in known if method != "local"]
        if not others:
            return f"Clients that train alone reach {percent(known['local'])}; nothing to compare."
        text = f"Federating did not help here: no method beats Local's {percent(known['local'])}"
    else:
        gain = _gains(runs[best])
        text = (
            f"Federating helped: with {best} {(gain > 0).sum()} of {clients} clients do better "
            f"than alone, {(gain < 0).sum()} worse; on average {percent(known['local'])} becomes "
            f"{percent(known[best])}"
        )
    if "pgfed" in known and CONTROL in known:
        text += (
            f"; PGFed's own objective adds {points(known['pgfed'] - known[CONTROL])} points "
            f"to its control {CONTROL}"
        )
    return text + "."


def mean(runs: Sequence[Outcome], key: str) -> float | None:
    values = [run.summary[key] for run in runs if run.summary[key] is not None]
    return float(np.mean(values)) if values else None


def _gains(runs: Sequence[Outcome]) -> Floats:
    """Each honest client's gain over Local, its mean over the seeds, as in the report."""
    known = [run for run in runs if run.gain is not None]
    attacks = [np.isin(np.arange(run.n_clients), sorted(run.attackers)) for run in known]
    gains = np.ma.masked_invalid([run.gain for run in known])
    found: Floats = np.ma.masked_where(attacks, gains).mean(axis=0).compressed()
    return found


def _by_method(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.method, []).append(outcome)
    return grouped


def _number(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3g}" if known else "–"
