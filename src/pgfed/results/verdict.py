"""A run in words: did federating help, whom, and what did a method itself add to its control?

One verdict, for the terminal, the page and Python. What is said of single clients is what their
test samples carry (`pgfed.results.gains`); what is said of the average has an interval over the
clients, and where these are few, over their test samples, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pgfed.model.metrics import ACCURACY, Metric
from pgfed.results.caveats import (
    FEW,
    attacked,
    blind,
    called,
    caveats,
    listed,
    majority,
    still_rising,
    together,
    too_few_rounds,
    too_short,
)
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import (
    between,
    difference,
    gain,
    meaning,
    points,
    score,
    sentence,
    settings,
)
from pgfed.results.gains.clients import Gain, Statement
from pgfed.results.statistics import LEVEL, Comparison

Outcome = Literal["helped", "harmed", "no-clear-difference", "cannot-be-told"]

ABOUT = (
    "Clear is what test samples show of these models (false discoveries held at 5 % over the "
    "clients); training again may give others."
)
MOST = 3  # methods of which it is told what they add to their controls; the page has all
TENTH = 30  # clients, from which on a tenth of them is more than a few
NO_EVIDENCE = (
    "What the models gave for each sample is not known here, so nobody is counted: the sign of a "
    "difference is no evidence."
)


@dataclass(frozen=True)
class Verdict:
    """What a run allows to be said, in words and for programs."""

    headline: str
    sentences: list[str]
    caveats: list[str]
    outcome: Outcome = "cannot-be-told"  # over the clients on average, or of those that are clear
    method: str | None = None  # that it is about
    baseline: str | None = None  # that its clients would have had otherwise
    gained: int | None = None  # clients, clearly; None where it cannot be counted
    lost: int | None = None
    untold: int | None = None
    comparable: bool = True  # whether methods may be held against each other, too

    @property
    def judged(self) -> bool:
        """Whether it says if federating helped; if not, nothing is shown as if it had."""
        return self.outcome != "cannot-be-told"

    @property
    def lines(self) -> list[str]:
        """All of it, in the order in which it is read."""
        return [self.headline, *self.sentences, *self.caveats]

    def __str__(self) -> str:
        return self.headline


def judge(group: Group) -> Verdict:
    """Everything the numbers allow to be said in a few sentences."""
    if group.running:
        so_far = "What has finished so far stands below; the rest has curves only."
        headline = "No verdict yet: the run has not come to its end."
        return Verdict(headline, [so_far] if group.methods else [], [], comparable=False)
    first = attacked(group)
    sound = [method for method in group.ranked if method.sound]
    nothing = ""
    if not group.ranked:
        nothing = "No client has test data on which the models could be judged."
    elif len(group.clients) == 1:
        nothing = "One client: there is nothing to federate."
    elif not sound or any(_baseline(m) and m not in sound for m in group.ranked):
        nothing = "Training failed, so it cannot be said whether federating helps."
    if nothing:
        return Verdict(first + nothing, [], caveats(group), comparable=False)
    if words := blind(group, sound):
        return Verdict(first + words[0], words[1:], caveats(group), comparable=False)
    found = _help(group, sound)
    more = [*found.sentences, *_majority(group)]
    if found.comparable:
        trials = _trials(group, sound)
        more += [*_ties(group), *_bound(group, sound)]
        more += [_adds(group, *trial, first=not k) for k, trial in enumerate(trials)]
        if found.outcome == "helped":
            more += _common(group, trials)
    asked = [*found.caveats, *caveats(group)]
    return replace(found, headline=first + found.headline, sentences=more, caveats=asked)


def gains(group: Group) -> dict[str, Gain]:
    """By a method's label, what clients gained over training alone, as it may be shown.

    A run that gives no verdict counts nobody: its gains are numbers, not evidence.
    """
    found = {m.label: gain for m in group.methods if (gain := group.gain(m)) is not None}
    if not found or judge(group).judged:
        return found
    return {label: replace(gain, judged=False) for label, gain in found.items()}


def _baseline(method: Method) -> bool:
    return method.about.role == "baseline"


# -- did it help? --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Standing:
    """A method against training alone."""

    group: Group
    method: Method
    alone: Method
    gain: Gain
    compared: Comparison
    strict: Comparison  # with an interval that allows for how many methods were tried

    @property
    def side(self) -> int:
        """1: clearly better on average; -1: clearly worse; 0: neither."""
        low, high = self.strict.low, self.strict.high
        if self.gain.known and self.gain.clients < FEW:  # too few to be drawn from by themselves
            half = _half_width(self.gain, self.group.metric)
            low, high = min(low, self.compared.mean - half), max(high, self.compared.mean + half)
        return int(low > 0) - int(high < 0)

    @property
    def said(self) -> str:
        metric = self.group.metric
        alone, together = (score(m.mean(), metric) for m in (self.alone, self.method))
        return (
            f"with {self.method.label}, {_named(metric)} goes from {alone} without the others "
            f"({self.alone.label}) to {together}: {difference(self.compared, metric)}"
            f"{points(metric)} on average over the clients ({between(self.compared, metric)})."
        )


def _half_width(gain: Gain, metric: Metric) -> float:
    """Of the mean gain's interval, by the test samples of each client."""
    known = ~np.isnan(gain.per_client)
    half = ((gain.high - gain.low) / 2)[known]
    half[np.isnan(half)] = metric.high - metric.low
    return float(np.sqrt(np.square(half).sum()) / len(half))


def _standing(group: Group, method: Method, tried: int) -> _Standing | None:
    gained, alone = group.gain(method), group.baseline(method)
    if gained is None or alone is None:
        return None
    compared = group.compare(method, alone)
    strict = group.compare(method, alone, 1 - (1 - LEVEL) / tried)
    if compared is None or strict is None:
        return None
    return _Standing(group, method, alone, gained, compared, strict)


def _help(group: Group, ranked: list[Method]) -> Verdict:
    on_trial = [method for method in ranked if not _baseline(method)]
    if not on_trial:
        reached = score(ranked[0].mean(), group.metric)
        headline = f"Training alone ({ranked[0].label}) reaches {reached}; nothing else was run."
        return Verdict(headline, [], [])
    each = [s for m in on_trial if (s := _standing(group, m, len(on_trial))) is not None]
    if not each:
        leader = on_trial[0]
        reached = f"{_named(group.metric)} {score(leader.mean(), group.metric)}"
        missing = "There is no baseline under the same seeds: add alone or local to the methods."
        if short := too_few_rounds(group, leader):
            return _short([*short, missing], leader)
        if len(ranked) > 1:
            headline = f"{leader.label} scores highest ({reached}); who gained cannot be said."
        else:
            headline = f"{leader.label} reaches {reached}; who gained cannot be said."
        return Verdict(headline, [missing], [], method=leader.label)
    chosen = next((s for s in each if s.side > 0), each[0])
    if short := too_short(group, chosen.method, chosen.alone, chosen.compared):
        return _short(short, chosen.method, chosen.alone)
    return _judged(group, chosen, each[0])


def _short(why: list[str], method: Method, alone: Method | None = None) -> Verdict:
    headline = "Too short to judge: it cannot be said yet whether federating helps."
    over = None if alone is None else alone.label
    return Verdict(headline, why, [], method=method.label, baseline=over, comparable=False)


def _judged(group: Group, chosen: _Standing, highest: _Standing) -> Verdict:
    outcome, headline = _headline(chosen)
    sentences = [sentence(chosen.said), *_who(chosen)]
    if chosen is not highest:
        sentences.append(f"Highest, but less surely: {highest.said}")
    return Verdict(
        headline,
        sentences,
        [
            ABOUT if chosen.gain.known else NO_EVIDENCE,
            *still_rising(group, (chosen.method, chosen.alone)),
        ],
        outcome=outcome,
        method=chosen.method.label,
        baseline=chosen.alone.label,
        gained=chosen.gain.gained,
        lost=chosen.gain.lost,
        untold=chosen.gain.untold,
    )


def _headline(of: _Standing) -> tuple[Outcome, str]:
    """By the average first; where that is not clear, by the clients that are."""
    gained, lost, n = of.gain.gained or 0, of.gain.lost or 0, of.gain.clients
    counts = counted(of.gain)
    if of.side:
        verb: Outcome = "helped" if of.side > 0 else "harmed"
        if gained or lost:
            return verb, f"Federating {verb}: {counts}."
        alone = "; for no single client can it be told" if of.gain.known else ""
        return verb, f"Federating {verb} on average{alone}."
    if gained and not lost and of.compared.mean > 0:
        return "helped", f"Federating helped {gained:,} of {n:,} clients clearly{_others(of)}."
    if lost and not gained and of.compared.mean < 0:
        return "harmed", f"Federating harmed {lost:,} of {n:,} clients clearly{_others(of)}."
    if gained or lost:
        return "no-clear-difference", f"No clear difference on average: {counts}."
    return "no-clear-difference", (
        "No clear difference: the evidence shows neither that federating helped nor that it harmed."
    )


def _others(of: _Standing) -> str:
    return "; for the others, and for the average, it cannot be told"


def counted(gain: Gain) -> str:
    """How many clients clearly gained, clearly lost, or neither; nothing without evidence."""
    if gain.gained is None or gain.lost is None or gain.untold is None:
        return ""
    lost = "none" if not gain.lost else f"{gain.lost:,}"
    rest = f"; for {gain.untold:,} it cannot be told" if gain.untold else ""
    return f"{gain.gained:,} of {gain.clients:,} clients clearly gained, {lost} clearly lost{rest}"


def own_gain(of: Gain, metric: Metric) -> str:
    """What a site is told of its own gain; alone, nothing need be allowed for other clients."""
    value, (low, high) = of.per_client[0], (of.low[0], of.high[0])
    said = f"your gain over training alone: {gain(value, metric)}{points(metric)}"
    if np.isnan(low):
        return f"{said} (too few test samples to say how surely)"
    clear = (of.statements[0] or "cannot be told").replace("cannot", "by itself it cannot")
    clear = clear if of.judged else "too short to judge"
    interval = f"95 % interval {gain(low, metric)} to {gain(high, metric)}"
    return f"{said} ({interval}; {of.behind(0)}): {clear}"


def _who(of: _Standing) -> list[str]:
    """Who gained and who lost, by name, with what stands behind it."""
    group, lines = of.group, []
    wanted: tuple[Statement, ...] = ("clearly gained", "clearly lost")
    for statement in wanted:
        found = [i for i, said in enumerate(of.gain.statements) if said == statement]
        found.sort(key=lambda i: -abs(of.gain.per_client[i]))
        if found:
            names = listed(_told(of, i) for i in found)
            lines.append(f"{sentence(statement)}: {names}.")
    worst = int(np.nanargmin(of.gain.per_client))
    if of.gain.per_client[worst] < 0 and not of.gain.lost:
        chance = ", which may be chance" if of.gain.known else ""
        tenth = ""
        if of.gain.clients >= TENTH:
            mean = f"{gain(of.gain.worst_decile, group.metric)}{points(group.metric)}"
            tenth = f"; the tenth of the clients that gained least is at {mean} on average"
        lines.append(f"Worst off: {_told(of, worst)}{chance}{tenth}.")
    return lines


def _told(of: _Standing, client: int) -> str:
    metric = of.group.metric
    value = f"{gain(of.gain.per_client[client], metric)}{points(metric)}"
    return f"{called(of.group.clients.names[client])} ({value}, {of.gain.behind(client)})"


def _named(metric: Metric) -> str:
    return metric.title if metric.more_is_better else f"{metric.title} (less is better)"


# -- beside what ---------------------------------------------------------------------------------


def last_rounds(group: Group) -> str:
    """What the mean over the last rounds is called: by its real window."""
    windows = sorted({m.window for m in group.methods if m.about.course == "rounds"} or {1})
    if windows == [1]:
        return "Last round"
    return f"Last {' to '.join(str(w) for w in dict.fromkeys((windows[0], windows[-1])))} rounds"


def _majority(group: Group) -> list[str]:
    share = majority(group)
    if share is None:
        return []
    return [f"Always naming each client's largest class would give {score(share, ACCURACY)}."]


def _bound(group: Group, ranked: list[Method]) -> list[str]:
    """How far from sharing the data."""
    bounds = [m for m in group.methods if m.about.role == "bound" and m.means("kept")]
    on_trial = [method for method in ranked if not _baseline(method)]
    if not bounds or not on_trial:
        return []
    sign, metric = group.metric.sign, group.metric
    best = max(bounds, key=lambda m: sign * m.mean())
    found = group.compare(on_trial[0], best)
    if found is None:
        return []
    return [
        f"With all data in one place ({best.label}, which nobody here could choose) it would be "
        f"{score(best.mean(), metric)}; {on_trial[0].label} is {difference(found, metric)}"
        f"{points(metric)} from that ({between(found, metric)})."
    ]


def leaders(group: Group) -> list[Method]:
    """The method that scores highest, and after it those that cannot be told apart from it."""
    sound = [method for method in group.ranked if method.sound]
    return [
        method
        for method in sound
        if method is sound[0]
        or ((found := group.compare(sound[0], method)) is not None and not found.clear)
    ]


def _ties(group: Group) -> list[str]:
    """A ranking without this is a rumour."""
    leader, *tied = leaders(group)
    if not tied:
        return []
    names = together(method.label for method in tied)
    return [f"{leader.label} leads, but {names} cannot be told apart from it here."]


def _trials(group: Group, ranked: list[Method]) -> list[tuple[Method, Method | None]]:
    """A method with a control never stands alone: what of its gain is its own?

    Where several have one control with the same settings (PGFed and its kin: mu = 0), the first in
    the tables, a variant only where its base was not run; MOST of them, the best first. The page
    has a table of all.
    """
    asked: dict[tuple[str | None, str], list[Method]] = {}
    for method in filter(lambda m: m.has_control, ranked):
        key = method.about.control_twin, settings(method.without)
        asked.setdefault(key, []).append(method)
    chosen = [
        min(methods, key=lambda m: (m.name != m.base, group.methods.index(m)))
        for methods in asked.values()
    ]
    tried = [(method, group.control(method)) for method in chosen[:MOST]]
    # Of a control that failed the caveats speak.
    return [(m, control) for m, control in tried if control is None or control in ranked]


def _adds(group: Group, method: Method, control: Method | None, *, first: bool) -> str:
    """``first``: it also says what a control is."""
    without = settings(method.without)
    found = None if control is None else group.compare(method, control)
    if control is None or found is None:
        name = method.about.control_twin or f"{method.base} with {without}"
        return (
            f"The run lacks {name}, the control of {method.label} ({without}), so it cannot be "
            f"said what {method.label} itself contributes: add {name} to the methods."
        )
    named = f"its control {control.label}{', the same without what it claims,' if first else ''}"
    if found.same:
        return f"{method.label} scores exactly as {named} at every client: here it adds nothing."
    return (
        f"Against {named if first else f'{named},'} {method.label} itself adds "
        f"{difference(found, group.metric)}{points(group.metric)} ({between(found, group.metric)}):"
        f" {meaning(found, group.metric)}."
    )


def _common(group: Group, trials: list[tuple[Method, Method | None]]) -> list[str]:
    """What helped, where it is not what the methods add to the one control that they have."""
    controls = [control for _, control in trials if control is not None]
    if len(controls) < len(trials) or len({c.label for c in controls}) != 1:
        return []
    found = [group.compare(method, controls[0]) for method, _ in trials]
    standing = _standing(group, controls[0], 1)
    if standing is None or standing.side <= 0 or any(f is None or f.clear for f in found):
        return []
    of, metric = standing.compared, group.metric
    does = controls[0].about.summary.removeprefix("control: ").partition(" (")[0]
    return [
        f"So what helped is what {controls[0].label} does, too{f' ({does})' if does else ''}: "
        f"{difference(of, metric)}{points(metric)} over {standing.alone.label} "
        f"({between(of, metric)})."
    ]
