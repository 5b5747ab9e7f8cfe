"""What the page tells beside its tables: the setting, each client, how to do it again."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from pgfed.results import statistics as stats
from pgfed.results.caveats import together
from pgfed.results.comparison import Group
from pgfed.results.formats import NONE, axis, count, factor, size, travelling
from pgfed.results.runs import RunData
from pgfed.results.verdict import Verdict, leaders

MAX_PICKED = 1_000  # clients about whom the page knows everything
ENOUGH = 30  # rounds that a longer run is to have at least
SEEDS = 3  # from which on others are not asked for
CURVE_POINTS = 40  # of a single client's curve


def facts(group: Group) -> str:
    """The setting in a line."""
    first = group.folders[0].experiment
    data = first.data
    kind: str = data.partition or "given"
    if kind.startswith("dirichlet"):
        kind += f" {data.alpha:g}"
    seeds = {seed for method in group.methods for seed in method.runs} or first.seeds
    cohort = first.cohort_size(len(group.clients))
    return " · ".join(
        [
            f"partition {kind}",
            f"{count(cohort, 'client')} per round",
            count(first.rounds, "round"),
            count(len(seeds), "seed"),
            f"{count(first.train.epochs, 'local epoch')}, batch {first.train.batch_size or 'all'}, "
            f"learning rate {first.train.lr:g}",
            f"model {first.model.name or '?'}",
        ]
    )


def differing(group: Group) -> list[str]:
    """Of several runs: which is which, and what differs, once."""
    first, *others = group.folders
    if not others:
        return []
    lines = [f"Run 1: {first.path}"]
    for number, folder in enumerate(others, start=2):
        found: dict[str, list[str]] = {}
        common = [name for name in folder.runs if name in first.runs]
        for name in common:
            ours, theirs = folder.settings(name), first.settings(name)
            for key in dict.fromkeys([*ours, *theirs]):
                if ours.get(key) != theirs.get(key):
                    text = f"{key} {ours.get(key, NONE)} instead of {theirs.get(key, NONE)}"
                    found.setdefault(text, []).append(name)
        told = [
            text if len(names) == len(common) else f"{text} ({', '.join(names)})"
            for text, names in found.items()
        ]
        if folder.experiment.seeds != first.experiment.seeds:
            told.append(f"seeds {', '.join(map(str, folder.experiment.seeds))}")
        lines.append(f"Run {number}: {folder.path}" + (f": {'; '.join(told)}" if told else ""))
    return lines


def next_steps(group: Group, verdict: Verdict) -> list[str]:
    """What a reader may do now: who asks of a client, of the methods, and what holds until then."""
    folder = shlex.quote(str(group.folders[0].path))
    seeds = {seed for method in group.methods for seed in method.runs}
    file = shlex.quote(str(group.folders[0].path / "experiment.toml"))
    again = f"pgfed run {file} --out NEW"
    steps = []
    if verdict.method is not None and not verdict.comparable:  # too short
        rounds = max(ENOUGH, 2 * group.folders[0].experiment.rounds)
        return [f"Run it for longer: `{again} --rounds {rounds}{_baselines(group, verdict)}`."]
    if verdict.lost:
        steps.append(
            f"The {count(verdict.lost, 'client')} that clearly lost should keep to "
            f"{verdict.baseline}, or try another method."
        )
    if verdict.untold:
        steps.append(
            f"To know whether one client gained: more test samples there (now "
            f"{_test_samples(group)}). Training again does not help with that."
        )
    if verdict.method is not None and verdict.baseline is None:
        asked = f"{again}{_baselines(group, verdict)}"
        steps.append(f"Give it something to be held against: `{asked}`.")
    elif verdict.outcome == "no-clear-difference" and len(seeds) < SEEDS:
        steps.append(
            f"To know whether federating helps on average: other seeds, `{again} --seeds 0,1,2`."
        )
    elif verdict.outcome == "helped":
        steps += _which(group, f"{again} --seeds 0,1,2" if len(seeds) < SEEDS else "")
    if verdict.outcome == "harmed":
        steps.append(
            f"Keep to {verdict.baseline}, or try other methods: `pgfed methods` lists them."
        )
    if verdict.method is not None and verdict.outcome == "helped":
        steps.append(
            f"To take a client's model: `pgfed evaluate {folder} --client NAME` shows it beside "
            "the one it has without the others; its file lies under "
            f"{verdict.method}/seed-{min(seeds)}/models/."
        )
    return steps


def _test_samples(group: Group) -> str:
    """How many the clients have that have some."""
    n = group.clients.n_test[group.clients.n_test > 0]
    low, high = f"{n.min():,}", f"{n.max():,}"
    return f"{low} each" if low == high else f"{low} to {high} each"


def _which(group: Group, command: str) -> list[str]:
    """Where several methods lead together: how to tell them apart, and what to take meanwhile."""
    tied = [method for method in leaders(group) if method.about.role != "baseline"]
    if len(tied) < 2:
        return []
    # Of those that send about the same, the first in the tables, where controls come first.
    simplest = min(tied, key=lambda m: (float(f"{m.sent():.2g}"), group.methods.index(m)))
    names = together(method.label for method in tied)
    steps = [f"To know which method is best: other seeds, `{command}`."] if command else []
    equal = f"can be defended equally; {simplest.label} is the simplest of them"
    return [*steps, f"{'Until then ' if command else ''}{names} {equal}."]


def _baselines(group: Group, verdict: Verdict) -> str:
    """The option that adds what gains are over, where it is missing."""
    if verdict.baseline is not None:
        return ""
    names = dict.fromkeys(["local", "alone", *(method.base for method in group.methods)])
    return f" --methods {','.join(names)}"


def _model(known: object) -> str | None:
    """What of the model travels, what stays with the clients, and what is frozen."""
    try:
        return travelling(known)  # type: ignore[arg-type]
    except (AttributeError, LookupError, TypeError, ValueError):  # an older run, or damaged
        return None


def again(folder: RunData) -> dict[str, Any]:
    """How to repeat a run, and on what it ran."""
    known = folder.environment
    packages = known.get("packages")
    data = known.get("data")
    rows = {
        "command": known.get("command"),
        "data fingerprint": folder.fingerprint,
        "data": f"{data.get('samples'):,} samples of {data.get('name')}"
        if isinstance(data, dict) and isinstance(data.get("samples"), int)
        else None,
        "model": _model(known.get("model")),
        "git commit": known.get("git_commit"),
        "packages": ", ".join(f"{k} {v}" for k, v in packages.items())
        if isinstance(packages, dict)
        else None,
        "python": known.get("python"),
        "machine": ", ".join(
            str(known[key]) for key in ("platform", "cpu") if known.get(key) is not None
        ),
        "cores": known.get("cores"),
        "changed during the run": "; ".join(map(str, known.get("changes") or ())) or None,
        "memory": size(known["memory_bytes"]) if known.get("memory_bytes") else None,
    }
    return {
        "path": str(folder.path),
        "command": f"pgfed run {shlex.quote(str(folder.path / 'experiment.toml'))} --out NEW",
        "toml": folder.text,
        "environment": [(key, value) for key, value in rows.items() if value],
    }


def about_clients(group: Group) -> dict[str, Any]:
    """What the page tells of a picked client."""
    known, few = group.clients, slice(MAX_PICKED)
    classes = None
    if known.counts is not None:
        classes = [
            [[known.class_names[k], int(row[k])] for k in np.flatnonzero(row)]
            for row in known.counts[few]
        ]

    scale, digits = factor(group.metric), 1 if group.metric.unit == "share" else 4

    def shown(values: stats.Floats) -> list[float | None]:
        return [None if np.isnan(v) else round(scale * float(v), digits) for v in values[few]]

    methods = []
    for method in group.methods:
        gain = group.gain(method)
        curves = method.client_curves(CURVE_POINTS)
        methods.append(
            {
                "label": method.label,
                "kept": shown(stats.mean_over_seeds(method.scores("kept"))),
                "best": shown(stats.mean_over_seeds(method.scores("best"))),
                "gain": None if gain is None else shown(gain.per_client),
                "rounds": None if curves is None else curves[0],
                "curves": None if curves is None else [shown(row) for row in curves[1]],
            }
        )
    return {
        "names": known.names[few],
        "domains": None if known.domains is None else known.domains[few],
        "n_train": known.n_train[few].tolist(),
        "n_test": known.n_test[few].tolist(),
        "classes": classes,
        "axis": axis(group.metric),
        "over": group.over,
        "digits": {"share": 1, "number": 3, "target": 2}[group.metric.unit],
        "methods": methods,
    }
