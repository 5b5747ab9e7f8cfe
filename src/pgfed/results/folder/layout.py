"""Where things are in a run folder, and which of its methods and seeds is meant."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgfed.config.tables import Experiment
from pgfed.engine.storage.durable import in_use
from pgfed.errors import Interrupted, UserError, unknown
from pgfed.methods import registry as algorithms

EXPERIMENT = "experiment.toml"
ENVIRONMENT = "environment.json"
DATA = "data.json"  # who holds what
METHODS = "methods.json"  # what only the methods can say of themselves
METRIC = "metric.json"  # what the run is judged by
SUMMARY = "summary.json"
# In the folder of a method and seed:
HISTORY = "history.jsonl"
CLIENTS = "clients.csv"  # written last: a run that has it has come to its end
EVIDENCE = "evidence.npz"
ALPHA = "alpha.npz"
EXPORTED = "method.npz"
MODELS = "models"
CHECKPOINT = "checkpoint"


def seed_folder(path: Path, method: str, seed: int) -> Path:
    """What one method left behind under one seed; ``method`` is the name of its folder."""
    return path / method / f"seed-{seed}"


def is_run(path: Path) -> bool:
    """Does this folder hold a run, finished or not?"""
    return (path / EXPERIMENT).is_file()


def choose(out: Path | None, name: str) -> Path:
    """Where the run will go: ``out``, or the first of runs/NAME, runs/NAME-2, ... that is free."""
    if out is None:
        out, number = Path("runs") / name, 1
        while out.exists():
            number += 1
            out = Path("runs") / f"{name}-{number}"
        return out
    try:
        if out.exists() and not out.is_dir():
            raise UserError(f"--out: {out} is a file; give a folder that is new or empty")
        taken = out.is_dir() and any(out.iterdir())
    except OSError as error:
        where = error.filename or out
        raise UserError(f"{where}: cannot be written ({error.strerror or error})") from None
    if taken:
        hint = f"`pgfed resume {out}` goes on with it, or " if is_run(out) else ""
        raise UserError(
            f"--out: {out} exists and is not empty; {hint}give another folder, or remove it first"
        )
    return out


def at_work(path: Path) -> bool:
    """Does a process run this run, or a part of it?"""
    return any(map(in_use, [path, *path.glob("*/seed-*")]))


def check_no_jobs(path: Path) -> None:
    """Refuse to run all of what others run a part of (`pgfed run --only`)."""
    for folder in sorted(path.glob("*/seed-*")):
        if in_use(folder):
            raise UserError(f"{folder}: another pgfed is at work in this folder")


def how_to_go_on(path: Path) -> str:
    """What to say of a run that nobody runs."""
    if (path.absolute().parent / "federation.toml").is_file():
        return f"`pgfed federation run {path.absolute().parent} --resume` goes on"
    return f"`pgfed resume {path}` goes on"


def interrupted(where: str, path: Path, more: str = "") -> Interrupted:
    """What to say of Ctrl+C: how to go on, if anything has begun. ``more`` follows that."""
    goes_on = f"; `pgfed resume {path}` goes on{more}" if is_run(path) else ""
    return Interrupted(f"interrupted during {where}{goes_on}")


# -- which one is meant ------------------------------------------------------------------------


def methods_of(experiment: Experiment) -> list[str]:
    """The methods by the names of their folders."""
    return [algorithms.folder(name) for name in experiment.methods]


def choose_method(experiment: Experiment, path: Path, asked: str | None) -> str:
    """The method asked for; without one, the only one."""
    methods = methods_of(experiment)
    if asked is None and len(methods) == 1:
        return methods[0]
    if asked is None:
        raise UserError(f"method: {path} holds several: {', '.join(methods)}; say which")
    name = algorithms.folder(asked)
    if name not in methods:
        raise unknown("method", asked, methods)
    return name


def choose_methods(experiment: Experiment, path: Path, asked: str | None) -> list[str]:
    """The method asked for, or all of them."""
    return methods_of(experiment) if asked is None else [choose_method(experiment, path, asked)]


def choose_seed(experiment: Experiment, asked: int | None) -> int:
    """The seed asked for; without one, the first whose models are kept."""
    seeds = experiment.seeds
    if asked is None:
        return seeds[-1] if experiment.output.models == "last" else seeds[0]
    if asked not in seeds:
        raise UserError(f"seed: found {asked}; allowed: {', '.join(map(str, seeds))}")
    return asked


def choose_client(names: Sequence[str], asked: int | str) -> int:
    """The client asked for, by its name or its number; a name goes first."""
    if isinstance(asked, str):
        if asked in names:
            return names.index(asked)
        if not (asked.isascii() and asked.isdecimal() and len(asked) < 10):
            raise unknown("client", asked, names)
        asked = int(asked)
    if not 0 <= asked < len(names):
        raise UserError(f"client: found {asked}; allowed: 0 to {len(names) - 1}")
    return asked


def unfinished(path: Path, method: str, seed: int) -> UserError:
    return UserError(f"{path}: {method} with seed {seed} has not finished")


# -- tables ------------------------------------------------------------------------------------


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Rows as a CSV file, by default with the columns of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
