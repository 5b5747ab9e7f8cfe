"""The end of a run for people: one table, one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pgfed.results.formats import count, percent, points, size
from pgfed.results.statistics import Comparison, Floats, Paired, mean_over_seeds

if TYPE_CHECKING:
    from pgfed.engine.runs import Outcome

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


@dataclass(frozen=True)
class Health:
    """Whether a run came to anything: replies that did not count, models that diverged."""

    asked: int
    refused: tuple[str, ...]  # why, for each reply that did not count
    diverged: int  # clients whose model holds NaN in the end

    @property
    def sound(self) -> bool:
        """Whether accuracies are those of trained models."""
        return not self.diverged and (not self.asked or len(self.refused) < self.asked)

    def troubles(self, label: str) -> list[str]:
        told = []
        if self.refused:
            ((reason, _),) = Counter(self.refused).most_common(1)
            told.append(
                f"{label}: {len(self.refused):,} of {self.asked:,} replies did not count ({reason})"
                f"{'; lower train.lr' if 'NaN' in reason else ''}."
            )
        if self.diverged:
            told.append(
                f"{label}: training diverged to NaN for {count(self.diverged, 'client')}; "
                "lower train.lr."
            )
        return told


def health(records: Sequence[Mapping[str, Any]]) -> Health:
    """From the lines of a history.jsonl."""
    scored = [record for record in records if record["mean_score"] is not None]
    return Health(
        asked=sum(len(record["cohort"]) for record in records),
        refused=tuple(
            str(drop["reason"])
            for record in records
            for drop in record["dropped"]
            if drop["client"] in record["cohort"] and not drop["reason"].startswith("score:")
        ),
        diverged=int(scored[-1].get("diverged", 0)) if scored else 0,
    )


def together(each: Sequence[Health]) -> Health:
    """What there is to say of all seeds of a method."""
    return Health(
        asked=sum(one.asked for one in each),
        refused=tuple(reason for one in each for reason in one.refused),
        diverged=max(one.diverged for one in each),
    )


def troubles(outcomes: Sequence[Outcome]) -> list[str]:
    """What went wrong, a line each; nothing on a good day."""
    told = [
        line
        for method, runs in _by_method(outcomes).items()
        for line in together([health(run.history) for run in runs]).troubles(method)
    ]
    return [*told, *one_per_round(len(outcomes[0].history[0]["cohort"]), outcomes[0].n_clients)]


def one_per_round(cohort: int, clients: int) -> list[str]:
    """What few clients and the default cohort come to."""
    if cohort > 1 or clients == 1:
        return []
    return [
        f"One of {clients} clients took part in each round, so nothing was averaged; "
        "--set cohort=1.0 lets all of them."
    ]


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """One row per method, means over its seeds; clients gain by their mean over the seeds."""
    table = []
    for method, runs in _by_method(outcomes).items():
        gain = _gains(runs)
        values = (
            method,
            percent(mean(runs, "mean_score")),
            percent(mean(runs, "best_score")),
            "" if method == "local" else points(mean(runs, "gain_mean")),
            "" if method == "local" else "–" if gain is None else f"{(gain > 0).sum():,}",
            "" if method == "local" else "–" if gain is None else f"{(gain < 0).sum():,}",
            size(np.mean([run.summary["bytes_down"] + run.summary["bytes_up"] for run in runs])),
            f"{np.mean([run.summary['samples_per_second'] for run in runs]):,.0f}",
        )
        table.append(dict(zip(COLUMNS, values, strict=True)))
    return table


def sentence(outcomes: Sequence[Outcome]) -> str:
    """Did federating help, whom, and what did PGFed's own objective add?"""
    runs = _by_method(outcomes)
    scores = {method: mean(of, "mean_score") for method, of in runs.items()}
    known = {method: score for method, score in scores.items() if score is not None}
    if not known:
        return "No client has test data, so nothing can be said about accuracy."
    if outcomes[0].n_clients == 1:
        return "There is one client only, so there is nothing to federate."
    failed = [m for m in known if not all(health(run.history).sound for run in runs[m])]
    if "local" in failed or failed == list(known):
        return "Training failed (see above), so it cannot be said whether federating helps."
    known = {method: score for method, score in known.items() if method not in failed}
    best = max(known, key=lambda method: known[method])
    if "local" not in known:
        return f"{best} scored best ({percent(known[best])}); add 'local' to see who gained."
    if best == "local":
        others = [method for method in known if method != "local"]
        if not others:
            return f"Clients that train alone reach {percent(known['local'])}; nothing to compare."
        text = f"Federating did not help here: no method beats Local's {percent(known['local'])}"
    else:
        # As in the report: the best of those whose gain is beyond doubt, or else the best.
        gains = _over_local(runs, sorted(known, key=lambda method: -known[method]))
        chosen = next((m for m, found in gains.items() if found.low > 0), best)
        found = gains[chosen]
        text = ("Federating helped" if found.low > 0 else "Federating made no clear difference") + (
            f": with {chosen} {found.better:,} of {found.better + found.worse + found.equal:,} "
            f"clients do better than alone, {found.worse:,} worse; on average "
            f"{percent(known['local'])} becomes {percent(known[chosen])}"
        )
        if found.low <= 0:
            text += f" (95 % interval {points(found.low)} to {points(found.high)} points)"
    if "pgfed" in known and CONTROL in known:
        text += (
            f"; PGFed's own objective adds {points(known['pgfed'] - known[CONTROL])} points "
            f"to its control {CONTROL}"
        )
    return text + "."


def mean(runs: Sequence[Outcome], key: str) -> float | None:
    values = [run.summary[key] for run in runs if run.summary[key] is not None]
    return float(np.mean(values)) if values else None


def _gains(runs: Sequence[Outcome]) -> Floats | None:
    """Each honest client's gain over Local, its mean over the seeds; NaN where there is none."""
    known = [_honest(run, run.gain) for run in runs if run.gain is not None]
    return mean_over_seeds(np.array(known)) if known else None


def _over_local(
    runs: Mapping[str, Sequence[Outcome]], ranked: Sequence[str]
) -> dict[str, Comparison]:
    """Each method's gain over Local with its interval; all have run under the same seeds."""
    scores = {m: {run.seed: _honest(run, run.last10) for run in runs[m]} for m in ranked}
    seeds = sorted(scores["local"])
    pairs = Paired({m: np.array([of[seed] for seed in seeds]) for m, of in scores.items()})
    return {m: pairs.difference(m, "local") for m in ranked if m != "local"}


def _honest(run: Outcome, values: Floats) -> Floats:
    """Without those who attacked: nobody asks about their own models."""
    values = values.copy()
    values[sorted(run.attackers)] = np.nan
    return values


def _by_method(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.method, []).append(outcome)
    return grouped
