"""What a careful reader would ask of a run: is it long enough, was it attacked, what is missing?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pgfed.model.metrics import ACCURACY
from pgfed.results.comparison import Group, Method, different_settings
from pgfed.results.formats import count, gain, points, score, sentence
from pgfed.results.runs import RunData
from pgfed.results.statistics import Comparison
from pgfed.results.summary import undefined

NAMED = 8  # clients that a line names
FEW = 10  # clients, below which a bootstrap over them is crude
SHORT = 6  # rounds, below which nothing is judged
PART = 3  # rounds that a client should have taken part in, on average
STEEP = 0.1  # of all that a curve rose: if it rises so much in the last third, it is not at its end
DIVERGED = 1_000  # times what they start with: weights of a matrix that has diverged

WEIGHED = (
    "Weights say whose risk a model weighed in training, not whose data helped it: they follow how "
    "long gradients are and how often two clients met, and nobody was left out to see what changes."
)


# -- too short to judge --------------------------------------------------------------------------


def too_short(group: Group, method: Method, alone: Method, found: Comparison) -> list[str]:
    """Why a method cannot be held against training alone yet, and what to do; nothing if it can.

    Below SHORT rounds, where clients took part in fewer than PART rounds on average, or where the
    lower of the two still rises so fast that it would make up the difference in another third of
    the run.
    """
    if few := too_few_rounds(group, method):
        return few
    lower = method if found.mean < 0 else alone
    rise = _rise(lower, group.metric.sign)
    if rise > abs(found.mean):
        return [
            f"{lower.label} still rose by {_shown(rise, group)} in the last third of its rounds, "
            f"more than what is to be judged ({_shown(abs(found.mean), group)}).",
            "Run for longer: --rounds N (`pgfed resume --rounds N`, where the state was kept).",
        ]
    return []


def too_few_rounds(group: Group, method: Method) -> list[str]:
    """Why a method has hardly been trained, and what to do; nothing if it has."""
    rounds, part = _length(method), _part(method, len(group.clients))
    if rounds < SHORT:
        few = "is too few" if rounds == 1 else "are too few"
        why = f"{count(rounds, 'round')} of {method.label} {few}; {SHORT} are the least."
        return [why, "Run for longer: --rounds N."]
    if part < PART:
        why = f"clients took part in {part:.1f} rounds on average, fewer than {PART}."
        return [sentence(why), "Run for longer (--rounds N), or with a larger cohort."]
    return []


def still_rising(group: Group, methods: Iterable[Method]) -> list[str]:
    """Of methods that can be judged, but would be better still."""
    rises = {m.label: rise for m in methods if (rise := _rise(m, group.metric.sign)) > 0}
    return [
        f"{label} was still rising when the run ended, by {_shown(rise, group)} in its last third."
        for label, rise in rises.items()
    ]


def _shown(value: float, group: Group) -> str:
    return f"{gain(value, group.metric).lstrip('+−')}{points(group.metric)}"


def _length(method: Method) -> int:
    """Rounds; of a method that trains to its end in one, enough."""
    if method.about.course != "rounds":
        return SHORT
    return min(len(run.history.rounds) for run in method.runs.values())


def _part(method: Method, clients: int) -> float:
    """Rounds that a client took part in, on average."""
    if method.about.course != "rounds":
        return float(PART)
    return min(run.history.health.asked for run in method.runs.values()) / clients


def _rise(method: Method, sign: int) -> float:
    """From the second third of the run to the last, if that is steep; otherwise zero."""
    if method.about.course != "rounds":
        return 0.0
    curve = method.mean_curve
    if not curve.rounds:
        return 0.0
    at, scores = np.array(curve.rounds), sign * np.array(curve.score)
    end = at[-1]
    middle, last = scores[(at > end / 3) & (at <= 2 * end / 3)], scores[at > 2 * end / 3]
    if not len(middle) or not len(last):
        return 0.0
    rise = float(last.mean() - middle.mean())
    return rise if rise > STEEP * float(np.ptp(scores)) else 0.0


# -- attacks, imbalance, the matrix --------------------------------------------------------------


def attacked(group: Group) -> str:
    """What comes before everything else that is said of such a run."""
    kinds = list(dict.fromkeys(f.attack for f in group.folders if _has_attackers(f)))
    if not kinds:
        return ""
    some = "This run was" if len(group.folders) == 1 else "Some of these runs were"
    honest = "attackers are left out, the same clients in every row"
    return f"{some} attacked ({'; '.join(kinds)}; {honest}). "


def _has_attackers(folder: RunData) -> bool:
    return any(run.attackers for seeds in folder.runs.values() for run in seeds.values())


def majority(group: Group) -> float | None:
    """The mean share of a client's largest class: what accuracy gives for nothing."""
    if group.metric.name != ACCURACY.name:
        return None
    for method in group.methods:
        for run in method.runs.values():
            if "majority" in run.metrics and not np.isnan(run.metrics["majority"]).all():
                return float(np.nanmean(run.metrics["majority"]))
    return None


def blind(group: Group, ranked: Sequence[Method]) -> list[str]:
    """Where every model calls everything by one class: accuracy then only counts that class."""
    largest = majority(group)
    if largest is None or largest == 1 or not ranked:  # 1: there is but one class to predict
        return []
    runs = [run for method in ranked for run in method.runs.values()]
    if not all("predicted" in run.metrics for run in runs):
        return []
    if any((run.metrics["predicted"] > 1).any() for run in runs):  # NaN is not
        return []
    return [
        "Nothing was learned that accuracy can see: every model calls every sample by one class.",
        f"That class alone is {score(largest, group.metric)} of a client's test data, so these "
        'accuracies say nothing of the others. Judge by task.metric = "balanced-accuracy" or '
        '"auc" (task.kind = "binary" for two classes); task.class_weights = "balanced" makes '
        "rare classes count in training.",
    ]


def one_class_only(group: Group) -> list[str]:
    """Models that call every sample by one class, though there are others."""
    found: dict[tuple[str, ...], list[str]] = {}  # by whose models: which methods'
    for method in group.methods:
        known = [
            r.metrics for r in method.runs.values() if {"predicted", "majority"} <= set(r.metrics)
        ]
        if not known:
            continue
        one = np.all([(m["predicted"] == 1) & (m["majority"] < 1) for m in known], axis=0)
        if one.any():
            names = tuple(group.clients.names[i] for i in np.flatnonzero(one))
            found.setdefault(names, []).append(method.label)
    return [
        f"{', '.join(methods)}: {count(len(names), 'model')} ({listed(map(called, names))}) "
        f"{'calls' if len(names) == 1 else 'call'} every test sample by one class."
        for names, methods in found.items()
    ]


def matrix_diverged(group: Group) -> list[str]:
    """Methods whose learned weights cannot be read."""
    lines = []
    for method in group.methods:
        pairs = [run.alpha for run in method.runs.values() if run.alpha is not None]
        wild = [
            p
            for p in pairs
            if not np.isfinite(p.change).all()
            or float(np.max(np.abs(p.change), initial=0.0)) > DIVERGED * p.start
        ]
        if wild:
            lines.append(f"{method.label}: its matrix of weights has diverged; do not read it.")
    return lines


# -- the rest ------------------------------------------------------------------------------------


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
        lines.append(
            f"Methods ran for different numbers of rounds ({listed(map(str, sorted(rounds)))})."
        )
    lines += _controls(group)
    lines += [*one_class_only(group), *matrix_diverged(group)]
    without = int((group.clients.n_test == 0).sum())
    if without:
        lines.append(f"{count(without, 'client')} without test data left out of every mean.")
    lines += _undefined(group)
    return [*lines, *_unfinished(group)]


def _unfinished(group: Group) -> list[str]:
    each = [
        f"{method}, seed {seed} ({count(done, 'round')} of "
        f"{folder.methods[method].rounds(folder.experiment)})"
        for folder in group.folders
        for method, seed, done in folder.unfinished
    ]
    return [f"Not finished, and left out: {listed(each)}."] if each else []


def _controls(group: Group) -> list[str]:
    lines = []
    for method in group.methods:
        control = group.control(method)
        if control is None:
            continue
        meant = method.about.control or {}  # a table of it, `personal`, is meant as a whole
        different = different_settings(method, control)
        if keys := [key for key in different if not {key, key.partition(".")[0]} & meant.keys()]:
            lines.append(
                f"{method.label} and its control {control.label} also differ in {', '.join(keys)}."
            )
    return lines


def _undefined(group: Group) -> list[str]:
    """Clients on whose test data the metric says nothing."""
    # Of one that diverged nothing is defined, which is said elsewhere.
    runs = [run for method in group.methods if method.sound for run in method.runs.values()]
    names = list(dict.fromkeys(name for run in runs for name in undefined(run, group.clients)))
    if not names:
        return []
    return [
        f"{sentence(group.metric.title)} is undefined on the test data of "
        f"{count(len(names), 'client')} ({listed(names)}), left out of every mean."
    ]


def called(name: str) -> str:
    """A number alone says nothing in a sentence."""
    return f"client {name}" if name.isdecimal() else name


def together(names: Iterable[str]) -> str:
    """All of them, the last after "and"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def listed(names: Iterable[str]) -> str:
    """The first NAMED of them, and how many more there are."""
    each = list(names)
    more = f" and {len(each) - NAMED:,} more" if len(each) > NAMED else ""
    return ", ".join(each[:NAMED]) + more
