"""Tables with a row per method: the first screen, the control, the speed, all federations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgfed.model.metrics import Metric
from pgfed.report import roles
from pgfed.report.tables.cells import (
    NOT_JUDGED,
    Cell,
    Column,
    Table,
    beside,
    difference,
    fill,
    integer,
    score,
    seeds,
    word,
)
from pgfed.results import statistics as stats
from pgfed.results.comparison import Curve, Group, Method
from pgfed.results.formats import NONE, axis, meaning, sentence, settings, size
from pgfed.results.gains.clients import Gain
from pgfed.results.statistics import Comparison
from pgfed.results.verdict import gains as gains_of
from pgfed.results.verdict import judge, last_rounds

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class _Standing:
    """A method among the others."""

    method: Method
    gain: Gain | None
    over_local: Comparison | None
    yardstick: Method | None
    note: str

    @property
    def sent(self) -> Cell:
        base = self.yardstick.sent() if self.yardstick else None
        return beside(size(self.method.sent()), self.method.sent(), base)


def results(group: Group) -> Table:
    """The table of the first screen."""
    with_std = any(len(method.runs) > 1 for method in group.methods)
    yardstick, gains = roles.yardstick(group), gains_of(group)
    relative = " (× FedAvg)" if yardstick else ""

    def standing(method: Method) -> _Standing:
        gain, local = gains.get(method.label), group.baseline(method)
        over = None if local is None or gain is None else group.compare(method, local)
        note = "control" if group.is_control(method) else _NOTES.get(method.about.role, "")
        return _Standing(method, gain, over, yardstick, note)

    return fill(
        "results",
        f"{sentence(axis(group.metric))} is the mean over all clients of each client's own model "
        "on its own test data"
        + (", ± the standard deviation over seeds" if with_std else "")
        + (". Attackers are left out" if group.attacked else "")
        + ("" if group.metric.more_is_better else ". Less is better; a gain above zero is good")
        + f". Gains are in {_counted(group.metric)}, with a paired 95 % interval. "
        "Sent are bytes in both directions, of all clients in one run"
        + ("; in brackets, how many times FedAvg's." if yardstick else "."),
        _standing_columns(relative, group),
        [(method.label, standing(method)) for method in group.methods],
    )


_NOTES = {"baseline": "baseline", "bound": "bound, not a choice"}


def pace(group: Group) -> list[str]:
    """How fast the machine was: no comparison, as others may have used it too."""
    found = [rate for m in group.methods if (rate := m.images_per_second()) is not None]
    if not found:
        return []
    low, high = (f"{float(f'{value:.2g}'):,.0f}" for value in (min(found), max(found)))
    said = low if low == high else f"{low} to {high}"
    return [
        f"Clients trained at {said} samples per second here, a note on the machine; pgfed bench "
        "compares speeds."
    ]


def _unit(metric: Metric) -> str:
    return ", %" if metric.unit == "share" else ""


def _counted(metric: Metric) -> str:
    return "percentage points" if metric.unit == "share" else "the metric's own unit"


def _standing_columns(relative: str, group: Group) -> list[Column[_Standing]]:
    metric = group.metric
    median: list[Column[_Standing]] = []
    if not metric.bounded:  # one client can own the mean
        median = [
            Column("median", "Median", "Over the clients, of the kept models",
                   lambda s: seeds(s.method.medians("kept"), metric)),
        ]  # fmt: skip
    several = len(group.folders) > 1
    run: list[Column[_Standing]] = [
        Column("run", "Run", "The folder of the run",
               lambda s: word(group.folders[s.method.folder - 1].path.name)),
    ]  # fmt: skip
    # What is read first stands first: a narrow screen shows no more.
    return [
        Column("method", "Method", "A control is another method without what that one claims",
               lambda s: Cell(s.method.label, note=s.note)),
        Column("kept", f"{sentence(metric.title)} of kept models{_unit(metric)}",
               "Of the models that the clients take home",
               lambda s: score(s.method, "kept", metric), better=metric.sign),
        Column("gain", f"Gain over {group.over}",
               f"Mean over clients of what the kept models gain over {group.over}'s",
               lambda s: difference(s.over_local, metric), better=1),
        Column("gained", "Clearly gained", "Clients whose test samples say so",
               lambda s: integer(s.gain.gained if s.gain else None)),
        Column("lost", "Clearly lost", "Clients whose test samples say so",
               lambda s: integer(s.gain.lost if s.gain else None)),
        *median,
        *(run if several else []),
        Column("sent", f"Sent{relative}", "Bytes in both directions, all clients, one run",
               lambda s: s.sent),
        Column("last", last_rounds(group), "Mean over so many rounds at the end",
               lambda s: score(s.method, "last", metric), muted=True),
        Column("best", "Best on test", "Best round, chosen on test data as the paper does: "
               "nobody who has to choose could", lambda s: score(s.method, "best", metric),
               muted=True),
    ]  # fmt: skip


# -- the control -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trial:
    """A method and what it is compared with to learn what it adds."""

    method: Method
    control: Method | None
    found: Comparison | None  # None: they cannot be compared
    gain: Gain | None  # client by client


def control(group: Group) -> Table:
    """What a method itself contributes."""

    comparable = judge(group).comparable

    def trial(method: Method) -> _Trial:
        other = group.control(method)
        found = None if other is None else group.compare(method, other)
        if other is None or found is None:
            return _Trial(method, None, None, None)
        gain = group.gain(method, other)
        return _Trial(method, other, found, gain and replace(gain, judged=comparable))

    return fill(
        "control",
        f"A control is trained and scored alike, without what the method claims{_switched(group)}. "
        "The difference is what the method itself contributes.",
        _trial_columns(group.metric, comparable),
        [(method.label, trial(method)) for method in group.methods if method.has_control],
    )


def _switched(group: Group) -> str:
    """In brackets: the settings of the controls, and whose they are."""
    whose: dict[str, list[str]] = {}
    for method in group.methods:
        if method.has_control:
            whose.setdefault(settings(method.without), []).append(method.label)
    said = [f"{without} of {', '.join(labels)}" for without, labels in whose.items()]
    return f" ({'; '.join(said)})" if said else ""


def _trial_columns(metric: Metric, comparable: bool) -> list[Column[_Trial]]:
    def reading(trial: _Trial) -> Cell:
        if trial.found is None:
            return Cell("not in the run: add it")
        return Cell(meaning(trial.found, metric) if comparable else NOT_JUDGED)

    return [
        Column("method", "Method", "A method that has a control", lambda t: Cell(t.method.label)),
        Column("control", "Control", "The same without what the method claims",
               lambda t: Cell(t.control.label if t.control else NONE)),
        Column("difference", "Difference", "Mean over clients and seeds, 95 % interval",
               lambda t: difference(t.found, metric)),
        Column("meaning", "Reading", "Whether the interval leaves out zero", reading),
        Column("better", "Clearly better", "Clients, than with the control: their samples say so",
               lambda t: integer(t.gain.gained if t.gain else None)),
        Column("worse", "Clearly worse", "Clients, than with the control: their samples say so",
               lambda t: integer(t.gain.lost if t.gain else None)),
        Column("untold", "Cannot be told", "Clients with too little evidence for either",
               lambda t: integer(t.gain.untold if t.gain else None)),
    ]  # fmt: skip


# -- speed -------------------------------------------------------------------------------------


def speed(group: Group) -> Table:
    """Rounds until the seed-mean curve reaches a score (the paper's second table)."""
    metric = group.metric
    best = max((max(m.mean_curve.score, default=0.0) for m in group.methods), default=0.0)
    targets = [target for target in TARGETS if target <= best]
    if not (metric.bounded and metric.more_is_better):
        targets = []
    columns = [Column[Method]("method", "Method", "", lambda m: Cell(m.label))]
    columns += [_rounds_to(target, metric) for target in targets]
    return fill(
        "rounds-table",
        f"First round in which the mean over seeds reaches this {metric.title}; single seeds in "
        "brackets.",
        columns,
        [(m.label, m) for m in group.methods if targets and m.about.course == "rounds"],
    )


def _rounds_to(target: float, metric: Metric) -> Column[Method]:
    def first(curve: Curve) -> int | None:
        return stats.rounds_to(curve.rounds, curve.score, target)

    def cell(method: Method) -> Cell:
        reached = integer(first(method.mean_curve))
        if len(method.runs) == 1:
            return reached
        each = ", ".join(integer(first(method.curve(seed))).text for seed in method.seeds)
        return Cell(f"{reached.text} ({each})", reached.value)

    shown = f"{100 * target:.0f} %" if metric.unit == "share" else f"{target:g}"
    return Column(f"to_{100 * target:.0f}", shown, f"Rounds to this {metric.title}", cell)


# -- bytes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """One entry of a method's messages or updates: bytes of one run, the mean over seeds."""

    method: Method
    key: str
    down: float
    up: float


def travelled(group: Group) -> Table:
    """What went to and fro, entry by entry, as it travelled."""
    columns = [
        Column[_Entry]("method", "Method", "", lambda e: Cell(e.method.label)),
        Column[_Entry]("key", "Entry", "Its name in the method's file", lambda e: word(e.key)),
        Column[_Entry]("down", "Down", "To the clients", lambda e: Cell(size(e.down), e.down)),
        Column[_Entry]("up", "Up", "From the clients", lambda e: Cell(size(e.up), e.up)),
    ]
    return fill(
        "bytes-table",
        "Bytes of one run in training, by what they were: after compression, the mean over seeds.",
        columns,
        [(method.label, entry) for method in group.methods for entry in _entries(method)],
    )


def _entries(method: Method) -> list[_Entry]:
    found: dict[str, Counter[str]] = {"down": Counter(), "up": Counter()}
    for run in method.runs.values():
        for record in run.history.records:
            for way, sizes in record.get("bytes_by_key", {}).items():
                for key, sent in sizes.items():  # another client's model each: one entry
                    found[way][re.sub(r"_\d+$", "_*", key)] += sent
    n, down, up = len(method.runs), found["down"], found["up"]
    keys = sorted({*down, *up}, key=lambda key: -down[key] - up[key])
    return [_Entry(method, key, down[key] / n, up[key] / n) for key in keys]


# -- several federations -----------------------------------------------------------------------


def overview(groups: Sequence[Group]) -> Table:
    """All federations side by side (the paper's main table)."""
    labels = list(dict.fromkeys(m.label for group in groups for m in group.methods))
    return fill(
        "overview",
        "Mean of the kept models on each federation; best on test in brackets.",
        [Column[str]("method", "Method", "", Cell), *map(_on, groups)],
        [(label, label) for label in labels],
    )


def _on(group: Group) -> Column[str]:
    def cell(label: str) -> Cell:
        method = next((m for m in group.methods if m.label == label), None)
        if method is None:
            return Cell(NONE)
        last, best = (score(method, which, group.metric) for which in ("kept", "best"))
        return Cell(f"{last.text} ({best.text})", last.value)

    return Column(group.title, group.title, "Kept models (best on test)", cell)
