"""A run in words: did federating help, whom, and what did a method itself add to its control?

One verdict, for the terminal, the page and Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pgfed.model.metrics import ACCURACY, Metric
from pgfed.results.comparison import Group, Method, different_settings
from pgfed.results.formats import between, count, difference, gain, meaning, points, score, sentence
from pgfed.results.statistics import Comparison, Gain
from pgfed.results.summary import undefined

NAMED = 8  # clients that a line names
FEW = 10  # clients, below which a bootstrap over them is crude


@dataclass(frozen=True)
class Verdict:
    headline: str
    sentences: list[str]
    caveats: list[str]

    @property
    def lines(self) -> list[str]:
        """All of it, in the order in which it is read."""
        return [self.headline, *self.sentences, *self.caveats]


def judge(group: Group) -> Verdict:
    """Everything the numbers allow to be said in a few sentences."""
    if not group.ranked:
        return Verdict(
            "No client has test data on which the models could be judged.", [], caveats(group)
        )
    if len(group.clients) == 1:
        return Verdict("One client: there is nothing to federate.", [], caveats(group))
    sound = [method for method in group.ranked if method.sound]
    if not sound or any(_baseline(m) and m not in sound for m in group.ranked):
        headline = "Training failed, so it cannot be said whether federating helps."
        return Verdict(headline, [], caveats(group))
    if blind := _blind(group, sound):
        return Verdict(blind[0], blind[1:], caveats(group))
    headline, sentences = _help(group, sound)
    return Verdict(
        headline,
        [*sentences, *_ties(group, sound), *_bound(group, sound), *_explicit(group, sound)],
        caveats(group),
    )


def _baseline(method: Method) -> bool:
    return method.about.role == "baseline"


def _blind(group: Group, ranked: list[Method]) -> list[str]:
    """Where every model calls everything by one class: accuracy then only counts that class."""
    if group.metric.name != ACCURACY.name:
        return []
    runs = [run for method in ranked for run in method.runs.values()]
    if not runs or not all("predicted" in run.metrics for run in runs):
        return []
    known = [run.metrics["predicted"] for run in runs]
    if any((values[~np.isnan(values)] > 1).any() for values in known):
        return []
    largest = float(np.nanmean([run.metrics["majority"] for run in runs]))
    if largest == 1:  # there is but one class to predict
        return []
    return [
        "Nothing was learned that accuracy can see: every model calls every sample by one class.",
        f"That class alone is {score(largest, group.metric)} of a client's test data, so these "
        'accuracies say nothing of the others. Judge by task.metric = "balanced-accuracy" or '
        '"auc" (task.kind = "binary" for two classes); task.class_weights = "balanced" makes '
        "rare classes count in training.",
    ]


def _bound(group: Group, ranked: list[Method]) -> list[str]:
    """How far from sharing the data."""
    bounds = [m for m in group.methods if m.about.role == "bound" and m.means("last10")]
    on_trial = [method for method in ranked if not _baseline(method)]
    if not bounds or not on_trial:
        return []
    sign, metric = group.metric.sign, group.metric
    best = max(bounds, key=lambda m: sign * _last10(m))
    found = group.compare(on_trial[0], best)
    if found is None:
        return []
    return [
        f"With all data in one place ({best.label}, which nobody here could choose) it would be "
        f"{score(_last10(best), metric)}; {on_trial[0].label} is {difference(found, metric)}"
        f"{points(metric)} from that ({between(found, metric)})."
    ]


def _help(group: Group, ranked: list[Method]) -> tuple[str, list[str]]:
    leader = ranked[0]
    reached = score(_last10(leader), group.metric)
    if _baseline(leader):
        others = [method for method in ranked if not _baseline(method)]
        if not others:
            return f"Training alone ({leader.label}) reaches {reached}; nothing else was run.", []
        headline = (
            f"Federating did not help: nothing beats training alone ({leader.label}, {reached})."
        )
        standing = _standing(group, others[0])
        return headline, [sentence(standing.said)] if standing else []
    standing = _standing(group, leader)
    if standing is None:
        verb = "scores highest" if len(ranked) > 1 else "was run alone"
        return f"{leader.label} {verb} ({reached}).", [
            "There is no baseline under the same seeds, so it cannot be said who gained: add alone "
            "or local to the methods."
        ]
    sure = next(
        (
            found
            for method in ranked
            if (found := _standing(group, method)) is not None and found.compared.low > 0
        ),
        None,
    )
    if sure is not None:
        headline = f"Federating helped {sure.gain.gained:,} of {sure.clients:,} clients."
        also = [] if sure.method is leader else [f"Highest, but less surely: {standing.said}"]
        return headline, [sentence(sure.said), *sure.harm, *also]
    headline = "Federating made no clear difference on average."
    if standing.compared.high < 0:
        headline = f"Federating harmed {standing.gain.harmed:,} of {standing.clients:,} clients."
    return headline, [sentence(standing.said), *standing.harm]


@dataclass(frozen=True)
class _Standing:
    """A method against training alone."""

    method: Method
    said: str
    harm: list[str]
    gain: Gain
    compared: Comparison

    @property
    def clients(self) -> int:
        return self.gain.gained + self.gain.harmed + self.gain.unchanged


def _standing(group: Group, method: Method) -> _Standing | None:
    gained, local, metric = group.gain(method), group.baseline(method), group.metric
    compared = None if local is None else group.compare(method, local)
    if gained is None or local is None or compared is None:
        return None
    alone, together = (score(_last10(one), metric) for one in (local, method))
    said = (
        f"with {method.label}, {_named(metric)}{alone} alone ({local.label}) becomes {together}: "
        f"{difference(compared, metric)}{points(metric)} on average over the clients "
        f"({between(compared, metric)}); {count(gained.gained, 'client')} gained, "
        f"{gained.harmed:,} lost, {gained.unchanged:,} unchanged."
    )
    harm = []
    if gained.harmed:
        worst = int(np.nanargmin(gained.per_client))
        harm.append(
            f"Client {group.clients.names[worst]} lost most, "
            f"{gain(gained.per_client[worst], metric)}{points(metric)}; the worst-off tenth of the "
            f"clients is at {gain(gained.worst_decile, metric)}."
        )
    return _Standing(method, said, harm, gained, compared)


def _named(metric: Metric) -> str:
    """Accuracy is what a percentage is taken for; any other metric says its name."""
    if metric.name == ACCURACY.name:
        return ""
    return f"{metric.title} " if metric.more_is_better else f"{metric.title} (less is better) "


def _ties(group: Group, ranked: list[Method]) -> list[str]:
    """Who cannot be told apart from the leader: a ranking without this is a rumour."""
    leader, *others = ranked
    tied = [
        method.label
        for method in others
        if (found := group.compare(leader, method)) is not None and not found.clear
    ]
    if not tied:
        return []
    names = ", ".join(tied[:-1]) + (" and " if len(tied) > 1 else "") + tied[-1]
    return [f"{leader.label} leads, but {names} cannot be told apart from it here."]


def _explicit(group: Group, ranked: list[Method]) -> list[str]:
    """A method with a control never stands alone: what of its gain is its own?"""
    able = [m for m in ranked if m.has_control]
    if not able:
        return []
    # The first in the tables; a variant only where its base was not run.
    method = min(able, key=lambda m: (m.name != m.base, group.methods.index(m)))
    without = ", ".join(f"{k} = {_shown(v)}" for k, v in (method.about.control or {}).items())
    control = group.control(method)
    if control is not None and control not in ranked:
        return []  # it failed, and the caveats say so
    found = None if control is None else group.compare(method, control)
    if control is None or found is None:
        name = method.about.control_twin or f"{method.base} with {without}"
        return [
            f"The run lacks {name}, the control of {method.label} ({without}), so it cannot be "
            f"said what {method.label}'s own objective contributes: add {name} to the methods."
        ]
    return [
        f"What {method.label}'s own objective adds: {method.label} minus its control "
        f"{control.label} ({without}) is {difference(found, group.metric)}{points(group.metric)} "
        f"({between(found, group.metric)}): {meaning(found, group.metric)}."
    ]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def one_per_round(cohort: int, clients: int) -> list[str]:
    """What few clients and the default cohort come to."""
    if cohort > 1 or clients == 1:
        return []
    return [
        f"One of {clients} clients took part in each round, so nothing was averaged; "
        "--set cohort=1.0 lets all of them."
    ]


def caveats(group: Group) -> list[str]:
    """What a careful reader would ask."""
    lines = [line for method in group.methods for line in method.troubles()]
    seeds = {len(method.runs) for method in group.methods}
    compared = len(group.clients) > 1 and len(group.methods) > 1  # else there are no intervals
    if compared and seeds == {1}:
        lines.append("One seed: intervals speak about other clients, not about other seeds.")
    if compared and len(group.clients) < FEW:
        lines.append(f"Only {count(len(group.clients), 'client')}: take the intervals as rough.")
    clients = len(group.clients)
    lines += one_per_round(group.folders[0].experiment.cohort_size(clients), clients)
    rounds = {method.settings["rounds"] for method in group.methods}
    if len(rounds) > 1:
        lines.append(f"Methods ran for different numbers of rounds ({_list(rounds)}).")
    for method in group.methods:
        control = group.control(method)
        if control is None:
            continue
        meant = method.about.control or {}
        if keys := [key for key in different_settings(method, control) if key not in meant]:
            lines.append(
                f"{method.label} and its control {control.label} also differ in {', '.join(keys)}."
            )
    without = int((group.clients.n_test == 0).sum())
    if without:
        lines.append(f"{count(without, 'client')} without test data left out of every mean.")
    lines += _undefined(group)
    for folder in group.folders:
        lines += [
            f"{method}, seed {seed}, has not finished ({count(done, 'round')} of "
            f"{folder.methods[method].rounds(folder.experiment)} done) and is left out."
            for method, seed, done in folder.unfinished
        ]
    return lines


def _undefined(group: Group) -> list[str]:
    """Clients on whose test data the metric says nothing."""
    # Of one that diverged nothing is defined, which is said elsewhere.
    runs = [run for method in group.methods if method.sound for run in method.runs.values()]
    names = list(dict.fromkeys(name for run in runs for name in undefined(run, group.clients)))
    if not names:
        return []
    listed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return [
        f"{sentence(group.metric.title)} is undefined on the test data of "
        f"{count(len(names), 'client')} ({listed}), left out of every mean."
    ]


def _last10(method: Method) -> float:
    return float(np.mean(method.means("last10")))


def _list(values: set[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
