"""What the page tells beside its tables: the setting, each client, how to do it again."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from pgfed.results import statistics as stats
from pgfed.results.comparison import Group
from pgfed.results.formats import NONE, axis, count, factor, size, travelling
from pgfed.results.runs import RunData
from pgfed.results.verdict import Verdict

MAX_PICKED = 1_000  # clients about whom the page knows everything
ENOUGH = 30  # rounds that a longer run is to have at least
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
    """What a reader may do now, the likeliest first."""
    folder = shlex.quote(str(group.folders[0].path))
    seeds = {seed for method in group.methods for seed in method.runs}
    file = shlex.quote(str(group.folders[0].path / "experiment.toml"))
    again = f"pgfed run {file} --out NEW"
    steps = []
    if verdict.method is not None and not verdict.comparable:  # too short
        rounds = max(ENOUGH, 2 * group.folders[0].experiment.rounds)
        return [f"Run it for longer: `{again} --rounds {rounds}{_baselines(group, verdict)}`."]
    if verdict.method is not None and verdict.outcome == "helped":
        steps.append(
            f"Take models home: `pgfed evaluate {folder} --client NAME` shows a client's model "
            f"beside its own alone; its file lies under {verdict.method}/seed-{min(seeds)}/models/."
        )
    if verdict.lost:
        steps.append(
            f"The {count(verdict.lost, 'client')} that clearly lost should keep training alone, or "
            "try another method."
        )
    if verdict.untold:
        who = f"For {count(verdict.untold, 'client')} it cannot be told"
        if not verdict.gained and not verdict.lost:
            who = "For no single client can it be told"
        steps.append(
            f"{who}: more test samples would tell; more rounds or seeds would not make these "
            "models surer."
        )
    if verdict.method is not None and verdict.baseline is None:
        asked = f"{again}{_baselines(group, verdict)}"
        steps.append(f"Give it something to be held against: `{asked}`.")
    elif verdict.outcome in ("no-clear-difference", "cannot-be-told") and len(seeds) < 3:
        steps.append(f"Repeat it with other seeds: `{again} --seeds 0,1,2`.")
    elif verdict.outcome == "helped" and len(seeds) == 1 and len(group.methods) > 2:
        steps.append(
            f"To tell methods apart, repeat it under other seeds: `{again} --seeds 0,1,2`."
        )
    if verdict.outcome == "harmed":
        steps.append("Train alone, or try other methods: `pgfed methods` lists them.")
    return steps


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
