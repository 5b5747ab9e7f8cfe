"""Runs on the same clients, put together: what is compared with what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pgfed.errors import UserError
from pgfed.methods import registry as algorithms
from pgfed.model.metrics import Metric
from pgfed.results import statistics as stats
from pgfed.results.folder.history import troubles
from pgfed.results.formats import count
from pgfed.results.gains.clients import Gain, gain_of
from pgfed.results.gains.resampling import measure_of
from pgfed.results.runs import Clients, MethodInfo, RunData, SeedRun
from pgfed.results.statistics import LEVEL, Comparison, Floats, Helpfulness, Paired

LONGEST = 30  # letters of a label that tables and figures have room for

Score = Literal["kept", "last", "best", "final"]


@dataclass(frozen=True)
class Curve:
    """The mean score over the scored rounds."""

    rounds: list[int]
    score: list[float]
    sent: list[float]  # bytes so far


@dataclass(frozen=True, eq=False)  # two methods are the same only if they are one
class Method:
    """A method with its settings, under its seeds."""

    name: str  # of its folder
    label: str  # unique within the group
    about: MethodInfo
    settings: dict[str, Any]
    runs: dict[int, SeedRun]
    # By seed the clients that attacked in some run: left out of every method's means.
    left_out: Mapping[int, frozenset[int]] = field(default_factory=dict)
    folder: int = 1  # of the group's folders the one it is first found in

    @property
    def base(self) -> str:
        """As in the registry: of a variant the method it varies."""
        return self.about.base

    @property
    def seeds(self) -> list[int]:
        return sorted(self.runs)

    @property
    def has_control(self) -> bool:
        """Whether it is to be held against a control, which it is not itself."""
        return bool(self.without)

    @property
    def without(self) -> dict[str, Any]:
        """The settings that switch off what it claims, as far as it has others."""
        switched = (self.about.control or {}).items()
        return {k: v for k, v in switched if self.settings.get(k) != v}

    def run_label(self, run: SeedRun) -> str:
        return f"{self.label}, seed {run.seed}"

    def scores(self, which: Score, seeds: Sequence[int] | None = None) -> Floats:
        """Seeds x clients; NaN for who does not count."""
        chosen = self.seeds if seeds is None else seeds
        found = np.array([getattr(self.runs[seed], which) for seed in chosen])
        for row, seed in zip(found, chosen, strict=True):
            row[sorted(self.left_out.get(seed, ()))] = np.nan
        return found

    @property
    def window(self) -> int:
        """Rounds that its last scores are means over; of several runs the most."""
        return max(run.window for run in self.runs.values())

    def mean(self, which: Score = "kept") -> float:
        """Over the clients, then over the seeds; NaN if none was scored."""
        means = self.means(which)
        return float(np.mean(means)) if means else float("nan")

    def means(self, which: Score) -> list[float]:
        """Over the clients, per seed."""
        return [float(np.nanmean(row)) for row in self.scores(which) if not np.isnan(row).all()]

    def medians(self, which: Score) -> list[float]:
        """Over the clients, per seed."""
        return [float(np.nanmedian(row)) for row in self.scores(which) if not np.isnan(row).all()]

    @property
    def sound(self) -> bool:
        """Whether its scores are those of trained models, under every seed."""
        return all(run.history.health.sound for run in self.runs.values())

    def troubles(self) -> list[str]:
        """What went wrong, a line each."""
        return troubles(self.label, [run.history.health for run in self.runs.values()])

    def sent(self) -> float:
        """Bytes of one run, the mean over seeds."""
        return float(np.mean([run.history.sent[-1] for run in self.runs.values()]))

    def images_per_second(self) -> float | None:
        seconds = sum(run.history.train_seconds for run in self.runs.values())
        samples = sum(run.history.samples for run in self.runs.values())
        return samples / seconds if seconds and samples else None

    def curve(self, seed: int) -> Curve:
        history = self.runs[seed].history
        scored = [k for k, a in enumerate(history.score) if a is not None]
        return Curve(
            rounds=[history.rounds[k] for k in scored],
            score=[a for a in history.score if a is not None],
            sent=[history.sent[k] for k in scored],
        )

    @cached_property
    def mean_curve(self) -> Curve:
        """Over the seeds, at the rounds that were scored under all of them."""
        curves = [self.curve(seed) for seed in self.seeds]
        common = sorted(set.intersection(*(set(curve.rounds) for curve in curves)))
        at = [[curve.rounds.index(t) for t in common] for curve in curves]
        pairs = list(zip(curves, at, strict=True))
        return Curve(
            rounds=common,
            score=np.mean([[c.score[k] for k in ks] for c, ks in pairs], axis=0).tolist(),
            sent=np.mean([[c.sent[k] for k in ks] for c, ks in pairs], axis=0).tolist(),
        )

    def client_curves(self, most: int) -> tuple[list[int], Floats] | None:
        """At most so many of the scored rounds, and rounds x clients, the mean over the seeds."""
        found = [run.history.clients for run in self.runs.values()]
        known = [clients for clients in found if clients is not None]
        if len(known) < len(found) or len({clients.shape for clients in known}) > 1:
            return None
        rounds = self.mean_curve.rounds
        at = np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(np.int64))
        return [rounds[k] for k in at], np.mean([clients[at] for clients in known], axis=0)


@dataclass(frozen=True)
class Group:
    """All runs on one federation."""

    title: str
    folders: list[RunData]
    methods: list[Method]
    running: bool = False  # it goes on: there is more to come, and no verdict yet
    _paired: dict[Any, Paired] = field(default_factory=dict, repr=False)
    _gains: dict[tuple[str, str, bool], Gain] = field(default_factory=dict, repr=False)
    _helpfulness: dict[tuple[str, int], Helpfulness] = field(default_factory=dict, repr=False)

    @property
    def clients(self) -> Clients:
        return self.folders[0].clients

    @property
    def metric(self) -> Metric:
        """What all its runs are judged by."""
        return self.folders[0].metric

    @property
    def attacked(self) -> bool:
        """Whether some clients of some run simulated an attack."""
        return any(run.attackers for method in self.methods for run in method.runs.values())

    def find(self, name: str, like: Method) -> Method | None:
        """The method of this name whose settings are nearest to those of `like`."""
        return _nearest_of(name, self.methods, like)

    def baseline(self, like: Method) -> Method | None:
        """What gains are over: of the baselines the one with the better mean, for all clients."""
        found = [m for m in self.methods if m.about.role == "baseline" and m.means("kept")]
        bases = dict.fromkeys(m.base for m in found)
        nearest = [m for base in bases if (m := _nearest_of(base, found, like)) is not None]
        sign = self.metric.sign
        return max(nearest, key=lambda m: sign * m.mean(), default=None)

    @cached_property
    def over(self) -> str:
        """What gains are over, by its name."""
        found = [m for method in self.ranked if (m := self.baseline(method)) is not None]
        return found[0].base if found else algorithms.BASELINE

    def control(self, method: Method) -> Method | None:
        """The same method without what is its own: with other settings, or its twin."""
        return control_of(method, self.methods)

    def is_control(self, method: Method) -> bool:
        """Whether some method is held against it."""
        return any(self.control(other) is method for other in self.methods)

    def compare(self, a: Method, b: Method, level: float = LEVEL) -> Comparison | None:
        """How much better a's kept models are than b's, over the clients and the seeds that both
        have."""
        seeds = tuple(sorted(a.runs.keys() & b.runs.keys()))
        if not seeds:
            return None
        have = [
            m
            for m in self.methods
            if m.runs.keys() >= set(seeds) and (m.sound or m.label in (a.label, b.label))
        ]
        key = seeds, tuple(m.label for m in have)
        if key not in self._paired:
            sign = self.metric.sign
            self._paired[key] = Paired({m.label: sign * m.scores("kept", seeds) for m in have})
        found = self._paired[key].difference(a.label, b.label, level)
        return None if np.isnan(found.mean) else found

    def gain(self, method: Method, over: Method | None = None) -> Gain | None:
        """Over the baseline, by the kept models, client by client and with the evidence for it.

        None without a baseline, and for a baseline itself. ``over``: over another method; what real
        sites have said is over their baseline only.
        """
        if method.about.role == "baseline" and over is None:
            return None
        local = over or self.baseline(method)
        if local is None or not (seeds := sorted(method.runs.keys() & local.runs.keys())):
            return None
        key = method.label, local.label, over is None
        if key not in self._gains:
            runs = {seed: method.runs[seed] for seed in seeds}
            if over is not None:
                runs = {seed: replace(run, told=None) for seed, run in runs.items()}
            self._gains[key] = gain_of(
                runs,
                {seed: local.runs[seed] for seed in seeds},
                (method.scores("kept", seeds), local.scores("kept", seeds)),
                self.clients.n_test,
                measure_of(self.folders[0]),
            )
        found = self._gains[key]
        return None if np.isnan(found.mean) else found

    def gain_in_best_round(self, method: Method, over: Method) -> Floats | None:
        """As the paper prints it: per client, in the rounds that were best on test data."""
        seeds = sorted(method.runs.keys() & over.runs.keys())
        if method.about.role == "baseline" or not seeds:
            return None
        difference = method.scores("best", seeds) - over.scores("best", seeds)
        each = stats.mean_over_seeds(self.metric.sign * difference)
        return None if np.isnan(each).all() else each

    def helpfulness(self, method: Method, run: SeedRun) -> Helpfulness | None:
        """What the run's matrix A says; None for methods without one."""
        if run.alpha is None:
            return None
        key = method.label, run.seed
        if key not in self._helpfulness:
            n_train, settings = self.clients.n_train, method.settings
            steps = stats.steps_per_round(n_train, settings["epochs"], settings["batch_size"])
            self._helpfulness[key] = stats.helpfulness(run.alpha, n_train, steps)
        return self._helpfulness[key]

    @cached_property
    def ranked(self) -> list[Method]:
        """The methods by their kept models, best first; bounds and those without a score left
        out."""
        scored = [m for m in self.methods if m.means("kept") and m.about.role != "bound"]
        return sorted(scored, key=lambda m: -self.metric.sign * m.mean())


def different_settings(a: Method, b: Method) -> list[str]:
    """The keys both methods have and set differently."""
    return [k for k, v in a.settings.items() if k in b.settings and b.settings[k] != v]


def control_of(method: Method, methods: Sequence[Method]) -> Method | None:
    """What the method is held against: itself with the settings of its control, or a twin of that.

    None where it has no control, where that was not run, and for a control itself.
    """
    if not method.has_control:
        return None
    wanted = {**method.settings, **(method.about.control or {})}
    same = [m for m in methods if m.base == method.base and m.settings == wanted]
    twins = [m for m in methods if m.base == method.about.control_twin]
    return _nearest(same or twins, method)


def _nearest_of(base: str, methods: Sequence[Method], like: Method) -> Method | None:
    return _nearest([method for method in methods if method.base == base], like)


def _nearest(methods: Sequence[Method], like: Method) -> Method | None:
    return min(methods, key=lambda m: len(different_settings(m, like)), default=None)


def group(folders: Sequence[RunData]) -> list[Group]:
    """Folders whose clients hold the same data belong together."""
    paths = [folder.path for folder in folders]
    for path in paths:
        if path is not None and paths.count(path) > 1:
            raise UserError(f"{path}: given twice; allowed: each run folder once")
    by_data: dict[str, list[RunData]] = {}
    for folder in folders:
        # Judged by another number they cannot be compared, though the data be the same.
        key = f"{folder.metric.name} {folder.fingerprint or folder.path}"
        by_data.setdefault(key, []).append(folder)
    titles = [_title(members[0]) for members in by_data.values()]
    groups = []
    for title, members in zip(titles, by_data.values(), strict=True):
        if titles.count(title) > 1:
            title += f" ({members[0].path.name})"
        sizes = {len(folder.clients) for folder in members}
        if len(sizes) > 1:
            raise UserError(
                f"{members[0].path}: same data fingerprint as {members[1].path}, but another "
                "number of clients; one of them is damaged"
            )
        groups.append(Group(title, list(members), _methods(members)))
    return groups


def _title(folder: RunData) -> str:
    name = folder.environment.get("data", {}).get("name") or folder.experiment.data.dataset
    return f"{name}, {count(len(folder.clients), 'client')}"


def _methods(folders: Sequence[RunData]) -> list[Method]:
    """One per method and settings; equal settings with other seeds are the same method."""
    merged: list[Method] = []
    for number, folder in enumerate(folders, start=1):
        for name, runs in folder.runs.items():
            settings = folder.settings(name)
            for method in merged:
                same = method.name == name and _key(method.settings) == _key(settings)
                if same and not method.runs.keys() & runs.keys():
                    method.runs.update(runs)
                    break
            else:
                about = folder.methods[name]
                merged.append(Method(name, name, about, settings, dict(runs), folder=number))
    left_out: dict[int, frozenset[int]] = {}
    for method in merged:
        for seed, run in method.runs.items():
            left_out[seed] = left_out.get(seed, frozenset()) | run.attackers
    return _ordered(
        [replace(method, label=_label(method, merged), left_out=left_out) for method in merged]
    )


def _ordered(methods: list[Method]) -> list[Method]:
    """As in the registry; a control directly before the first method that it is the control of."""
    registered = [algorithms.BASELINE, *algorithms.NAMES]
    registered.insert(1, algorithms.ALONE)
    ordered = sorted(
        methods,
        key=lambda m: registered.index(m.base) if m.base in registered else len(registered),
    )
    for method in list(ordered):
        control = control_of(method, methods)
        if control is not None and not any(
            control_of(other, methods) is control for other in ordered[: ordered.index(method)]
        ):
            ordered.remove(control)
            ordered.insert(ordered.index(method), control)
    return ordered


def _label(method: Method, methods: Sequence[Method]) -> str:
    """The name; of several the one setting in which they differ, else which run it is of."""
    others = [m for m in methods if m.name == method.name and m is not method]
    if not others:
        return method.name
    own = method.settings
    keys = [key for key in own if any(m.settings.get(key) != own[key] for m in others)]
    unique = not any(_key(m.settings) == _key(own) for m in others)
    said = f"{method.name} ({keys[0]}={own[keys[0]]})" if unique and len(keys) == 1 else ""
    return said if 0 < len(said) <= LONGEST else f"{method.name} [{method.folder}]"


def _key(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
