"""Try settings side by side, and pick by validation data, never by test data.

Validation data is a share held out of each client's *training* data. A try that has finished is a
small file named by a hash of everything it depends on, so the same sweep goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from pgfed.config.experiment import make_methods, toml_value
from pgfed.config.schema import shown
from pgfed.config.tables import BASE, Experiment
from pgfed.data.federation import Federation
from pgfed.engine.backends.process import available_cores
from pgfed.engine.callbacks import Observer, Record
from pgfed.engine.parallel import jobs_for, side_by_side
from pgfed.engine.rounds import Run
from pgfed.engine.runs import execute
from pgfed.engine.setup import Setup, load_federation, prepare, with_cohort
from pgfed.engine.storage.durable import sha256, write_atomic
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.model.metrics import Metric
from pgfed.results.folder.history import last_scores, window_of
from pgfed.results.folder.layout import csv_text
from pgfed.results.statistics import Floats, mean_over_seeds
from pgfed.tuning.choice import Choice, Tried
from pgfed.tuning.cost import estimate

Grid = dict[str, list[Any]]  # key of [method.NAME] -> values

VALIDATION_SHARE = 0.1  # where the experiment has none

# What the paper tunes for every method; what else it tunes stands with each of them (`grid`).
RATES = [0.1, 0.01, 0.001, 0.0001]


@dataclass(frozen=True)
class Try:
    """One method with one choice of settings."""

    method: str
    settings: dict[str, Any]
    experiment: Experiment  # this method alone, complete

    def key(self, federation: Federation) -> str:
        """The same for the same result: where and how fast it is computed does not count."""
        apart = ("format", "name", "engine", "output")
        document = {k: v for k, v in self.experiment.values().items() if k not in apart}
        text = json.dumps([document, federation.fingerprint], sort_keys=True)
        return sha256(text.encode())[:16]


# -- what is tried -----------------------------------------------------------------------------


def grids(experiment: Experiment, options: Sequence[str] = ()) -> dict[str, Grid]:
    """method -> its grid: the options' (KEY=V1,V2,...) over [sweep]'s, or else the paper's.

    ``train.KEY`` is tried for each method by itself. A variant follows its base unless its own
    key is named, so that the two go on differing in one thing only.
    """
    given = dict(_flat(experiment.sweep))
    for option in options:
        key, equals, text = option.partition("=")
        values = [toml_value(part.strip()) for part in text.split(",") if part.strip()]
        if not equals or not values:
            raise UserError(f"--grid: found {shown(option)}; allowed: KEY=V1,V2,...")
        given[key.strip()] = values
    folders = [algorithms.folder(name) for name in experiment.methods]
    own = [f for f in folders if BASE not in experiment.method.get(f, {})]
    if not given:
        names = dict(zip(folders, experiment.methods, strict=True))
        return {folder: {"lr": RATES, **algorithms.get(names[folder]).grid} for folder in own}
    found: dict[str, Grid] = {folder: {} for folder in folders}
    # Those of one method last: they count more.
    for key, values in sorted(given.items(), key=lambda item: item[0].startswith("method.")):
        _check_values(key, values)
        table, _, rest = key.partition(".")
        name, _, leaf = rest.rpartition(".")
        if table == "train" and rest and not name:
            for folder in own:
                found[folder][rest] = values
        elif table == "method" and name in found:
            found[name][leaf] = values
        else:
            allowed = ["train.KEY", *(f"method.{folder}.KEY" for folder in folders)]
            raise unknown("sweep", key, allowed)
    return {folder: grid for folder, grid in found.items() if grid}


def _flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _check_values(key: str, values: Any) -> None:
    if not isinstance(values, list) or not values:
        raise UserError(f"sweep.{key}: found {shown(values)}; allowed: a list of values")
    for k, value in enumerate(values):
        if value in values[:k]:
            raise UserError(f"sweep.{key}: found {shown(value)} twice; allowed: each value once")


def plan(experiment: Experiment, of: Mapping[str, Grid]) -> list[Try]:
    """All tries; whatever is wrong with a value is said now, not after the first hours.

    One seed: three of them would cost three times as much and rarely choose otherwise.
    """
    names = {algorithms.folder(name): name for name in experiment.methods}
    tries = []
    for folder, grid in of.items():
        for values in itertools.product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            table = {**experiment.method.get(folder, {}), **settings}
            alone = replace(
                experiment,
                methods=[names[folder]],
                method={**experiment.method, folder: table},
                seeds=experiment.seeds[:1],
                evaluate_every=experiment.rounds,
                output=replace(experiment.output, models="none", keep="last"),
                sweep={},
            )
            tries.append(Try(folder, settings, make_methods(alone)[1]))
    return tries


# -- trying ------------------------------------------------------------------------------------


class _Rounds(Observer):
    """What a try needs of its one run."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._clients: list[Floats] = []

    def round(self, method: str, run: Run, record: Record) -> None:
        self.records.append(record)
        self._clients.append(run.validation_score.copy())

    def clients(self, window: int) -> list[float | None]:
        """Each client's score, the mean of the last rounds."""
        mean = mean_over_seeds(np.stack(self._clients[-window:]))
        return [None if np.isnan(v) else float(v) for v in mean]


class Sweep:
    """The tries of an experiment, and the folder that remembers them."""

    def __init__(self, experiment: Experiment, of: Mapping[str, Grid], folder: Path, root: Path):
        self.folder = folder
        self._root = root
        share = experiment.data.validation_share or VALIDATION_SHARE
        data = replace(experiment.data, validation_share=share)
        self.federation, self._data = load_federation(replace(experiment, data=data), root)
        self.experiment = experiment = with_cohort(experiment, self.federation)
        if not self.federation.n_validation.any():
            raise UserError(
                "data.validation_share: no client has enough samples to hold one out; "
                "allowed: a larger share"
            )
        tries = plan(replace(experiment, data=self._data), of)
        self.tries = {one.key(self.federation): one for one in tries}

    def estimate(self) -> dict[str, float]:
        """method -> seconds that one of its tries takes on the whole machine."""
        return {
            one.method: estimate(self._setup(one.experiment))[0].seconds
            for one in {one.method: one for one in self.tries.values()}.values()
        }

    def open(self) -> None:
        """Make the folder, or go on in it."""
        known = self.folder / "tries"
        try:
            if self.folder.is_dir() and any(self.folder.iterdir()) and not known.is_dir():
                raise UserError(f"--out: {self.folder} is not empty and holds no sweep")
            known.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = error.filename or self.folder
            raise UserError(f"{where}: cannot be written ({error.strerror})") from None

    def finished(self) -> dict[str, Tried]:
        """The tries of this sweep that the folder has."""
        found = {}
        for key, t in self.tries.items():
            try:
                content = json.loads((self.folder / "tries" / f"{key}.json").read_text("utf-8"))
                score, seconds = content["validation_score"], content["seconds"]
                clients = content.get("clients")
                found[key] = Tried(t.method, t.settings, float(score), float(seconds), key, clients)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # not there, or not whole: it is tried again
        return found

    def run(self, jobs: int | None = None) -> Iterator[Tried]:
        """Do what is left to do, ``jobs`` at a time (by default as many as there are cores)."""
        done = self.finished()
        todo = [key for key in self.tries if key not in done]
        engine = self.experiment.engine
        if jobs is None and engine.backend != "process":
            jobs = 1
        jobs = jobs_for(len(todo), jobs or engine.workers, engine.device)
        if jobs > 1:  # cores that are left over go to the clients within a try
            each = max(1, (engine.workers or available_cores()) // jobs)
            engine = replace(engine, backend="process" if each > 1 else "serial", workers=each)

        def work(key: str) -> dict[str, Any]:
            began = time.perf_counter()
            score, clients = self._score(replace(self.tries[key].experiment, engine=engine))
            seconds = time.perf_counter() - began
            return {"validation_score": score, "seconds": seconds, "clients": clients}

        for position, result in side_by_side(work, todo, jobs):
            key = todo[position]
            t = self.tries[key]
            content = {"method": t.method, "settings": t.settings, **result}
            write_atomic(self.folder / "tries" / f"{key}.json", json.dumps(content, indent=2))
            yield Tried(t.method, t.settings, **result, key=key)

    def _score(self, experiment: Experiment) -> tuple[float, list[float | None]]:
        rounds = _Rounds()
        execute(self._setup(experiment), [rounds])
        window = window_of(len(rounds.records))
        scores = last_scores(rounds.records, window, "mean_validation_score")
        if not scores:
            raise UserError(
                f"{self.metric.name}: undefined on every client's validation data; allowed: a "
                "larger data.validation_share, or another task.metric"
            )
        return float(np.mean(scores)), rounds.clients(window)

    def _setup(self, experiment: Experiment) -> Setup:
        return prepare(experiment, self._root, federation=self.federation)

    # -- what came out -------------------------------------------------------------------------

    def write(self) -> tuple[list[Tried], dict[str, Tried]]:
        """sweep.csv and best.toml; all tries in the order of the grid, and the best per method."""
        finished = self.finished()
        tried = [finished[key] for key in self.tries]
        chosen = best(tried, self.metric)
        write_atomic(self.folder / "sweep.csv", _csv(tried, chosen))
        header = (
            f"# The best of {len(tried)} tries by {self.metric.title} on validation data, from "
            "`pgfed sweep`.\n# Test data had no say in it.\n"
            + "".join(f"# {line}\n" for line in self.reasons(chosen))
            + "\n"
        )
        document = self._best(chosen).document()
        write_atomic(self.folder / "best.toml", header + tomli_w.dumps(document))
        return tried, chosen

    def choice(self, chosen: Mapping[str, Tried]) -> Choice:
        """The methods at their best, against each other."""
        names = {algorithms.folder(name): name for name in self.experiment.methods}
        roles = {m: algorithms.get(self.experiment.base(names[m])).role for m in chosen}
        return Choice(chosen, roles, self.metric)

    def reasons(self, chosen: Mapping[str, Tried]) -> list[str]:
        """Which method was chosen, and why."""
        folders = [algorithms.folder(name) for name in self.experiment.methods]
        return self.choice(chosen).lines([f for f in folders if f not in chosen])

    @cached_property
    def metric(self) -> Metric:
        """What decides."""
        return self._setup(next(iter(self.tries.values())).experiment).objective.primary

    def _best(self, chosen: Mapping[str, Tried]) -> Experiment:
        """The experiment with the chosen settings, and all its data to train on."""
        share = self.experiment.data.validation_share
        tables = dict(self.experiment.method)
        for folder, tried in chosen.items():
            tables[folder] = {**tables.get(folder, {}), **tried.settings}
        return replace(
            self.experiment,
            name=f"{self.experiment.name[:90]}-best",
            method=tables,
            data=replace(self._data, validation_share=share),
        )


def best(tried: Iterable[Tried], metric: Metric) -> dict[str, Tried]:
    """Per method the best on validation data; the first in the grid where several are."""
    chosen: dict[str, Tried] = {}
    for one in tried:
        held = chosen.get(one.method)
        if held is None or metric.better(one.validation_score, held.validation_score):
            chosen[one.method] = one
    return chosen


def at_the_end(of: Mapping[str, Grid], chosen: Mapping[str, Tried]) -> list[str]:
    """Where the best value is the smallest or largest one tried: a wider grid may do better."""
    told = []
    for folder, tried in chosen.items():
        for key, value in tried.settings.items():
            values = of[folder][key]
            number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            if number and len(values) > 1 and value in (min(values), max(values)):
                told.append(f"{folder}: {key} = {value:g} is at the end of its grid")
    return told


def _csv(tried: Sequence[Tried], chosen: Mapping[str, Tried]) -> str:
    keys = list(dict.fromkeys(key for one in tried for key in one.settings))
    rows = [
        {
            "method": one.method,
            **{key: one.settings.get(key, "") for key in keys},
            "validation_score": one.validation_score,
            "best": "yes" if one is chosen[one.method] else "",
            "seconds": round(one.seconds, 1),
            "try": one.key,
        }
        for one in tried
    ]
    return csv_text(rows)
