"""Read run folders, finished and running, of this format and of 0.1's.

What is missing or damaged is one line that names the file. Importing this module does not import
torch.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pgfed.config import experiment as experiments
from pgfed.config.experiment import LAST
from pgfed.config.tables import BASE, Experiment
from pgfed.data.files import npz
from pgfed.engine.callbacks import Record
from pgfed.errors import UserError, first_line
from pgfed.methods import registry as algorithms
from pgfed.methods.roles import Course, Role
from pgfed.model.metrics import ACCURACY, Metric, Unit
from pgfed.results.folder import layout
from pgfed.results.folder.evidence import read_evidence
from pgfed.results.folder.history import History, history_of, read_history, window_of
from pgfed.results.folder.layout import seed_folder
from pgfed.results.folder.studies import read_explicit, read_new_clients
from pgfed.results.folder.texts import read_object, read_optional, read_text
from pgfed.results.runs import (
    KEPT,
    SCORES,
    TOLD,
    Clients,
    MethodInfo,
    RunData,
    SeedRun,
    Told,
    kept_scores,
    names_from,
)
from pgfed.results.statistics import Floats, Ints, Pairs

COLUMNS = ("client", "n_train", "n_test", *SCORES)
OTHERS = (*TOLD, "clearly", "domain", "rounds", "attacker")  # the columns beyond are metrics
# The arrays of alpha.npz, as the PGFed family exports them.
ALPHA = ("start", "meetings")
ALPHA_PARTS = ("alpha", "data", "indices", "indptr", "shape", "last_ids", "last_products")
# What 0.1 (format 1) called a column, and what its methods would have said of themselves.
RENAMED = {"gain_over_local": "gain", "last10": "mean"}
_OF_PGFED = {"control": {"mu": 0.0}, "control_twin": "fedavg-local"}
_SAID: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("pgfed", "pgfed-mo", "pgfed-ce"), _OF_PGFED),
    "fedbabu": {"scored_last": True},
    "local": {"role": "baseline"},
}

# Settings that methods have got since, as they were in effect before there was a choice.
_SINCE: dict[str, dict[str, Any]] = {
    name: {"shared": "all", "solver": "sgd", "head_epochs": 5}
    for name in ("pgfed", "pgfed-mo", "pgfed-ce")
}

Rows = list[dict[str, str]]


def load(path: Path) -> RunData:
    """Read a run folder; runs that have not finished are named, not read."""
    found = _completed(experiments.of_run(path))
    runs: dict[str, dict[int, SeedRun]] = {}
    unfinished = []
    table: Rows = []  # of the first finished run; the others have the same clients
    first, metric = path, read_metric(path)
    for method in layout.methods_of(found):
        for seed in found.seeds:
            at = seed_folder(path, method, seed)
            if not (at / layout.CLIENTS).is_file():
                done = len(read_records(path, found, method, seed, names_in(path)))
                unfinished.append((method, seed, done))
                continue
            rows = _read_clients(at / layout.CLIENTS, found.format, len(table) or None)
            if not table:
                table, first = rows, at / layout.CLIENTS
            runs.setdefault(method, {})[seed] = _seed_run(path, found, method, seed, rows, metric)
    if not runs:
        running = f"`pgfed watch {path}` shows how far it is"
        advice = running if layout.at_work(path) else layout.how_to_go_on(path)
        raise UserError(f"{path}: no method has finished yet; {advice}")
    return RunData(
        path=path,
        experiment=found,
        environment=read_object(path / layout.ENVIRONMENT),
        clients=_clients(table, first, path / layout.DATA),
        metric=metric,
        methods=read_methods(path, found),
        runs=runs,
        unfinished=unfinished,
        text=read_text(path / layout.EXPERIMENT),
        new_clients=read_new_clients(path / "new_clients.json"),
        explicit=read_explicit(path / "explicit.json"),
    )


def _completed(experiment: Experiment) -> Experiment:
    """With what a file of 0.1 could not say, so that its methods are those of today's folders."""
    if experiment.format > 1:
        return experiment
    tables = {
        name: {**_SINCE.get(str(table.get(BASE, name)), {}), **table}
        for name, table in experiment.method.items()
    }
    return replace(experiment, method=tables)


def read_curves(path: Path, experiment: Experiment, method: str, seed: int) -> History:
    """The rounds of a method and seed so far, of a run that may still be going on."""
    records = read_records(path, experiment, method, seed, names_in(path))
    return history_of(records, seed_folder(path, method, seed) / layout.HISTORY)


def read_records(
    path: Path,
    experiment: Experiment,
    method: str,
    seed: int,
    names: Sequence[str],
    *,
    strict: bool = True,
) -> list[Record]:
    """The rounds of a method and seed, with the clients' numbers."""
    file = seed_folder(path, method, seed) / layout.HISTORY
    return read_history(file, names, format=experiment.format, strict=strict)


def read_finished(
    path: Path, experiment: Experiment, method: str, seed: int, names: Sequence[str], rounds: int
) -> SeedRun | None:
    """What a method left under a seed, if it has come to its end; these must be its clients."""
    file = seed_folder(path, method, seed) / layout.CLIENTS
    if not file.is_file():
        return None
    rows = _read_clients(file, experiment.format, len(names))
    if [row["client"] for row in rows] != list(names):
        raise UserError(f"{file}: not the run's clients")
    run = _seed_run(path, experiment, method, seed, rows, read_metric(path))
    if len(run.history.rounds) != rounds:
        raise UserError(f"{file}: {len(run.history.rounds)} whole rounds in {layout.HISTORY}")
    return run


def finished_run(data: RunData, method: str, seed: int) -> SeedRun:
    """What a method left under a seed; says if it has not finished."""
    if seed not in data.runs.get(method, {}):
        raise layout.unfinished(data.path, method, seed)
    return data.runs[method][seed]


# -- one method, one seed ----------------------------------------------------------------------


def _seed_run(
    path: Path, experiment: Experiment, method: str, seed: int, rows: Rows, metric: Metric
) -> SeedRun:
    at = seed_folder(path, method, seed)
    names = [row["client"] for row in rows]
    records = read_records(path, experiment, method, seed, names)
    if not records:
        raise UserError(f"{at / layout.HISTORY}: missing or empty, though the method has finished")
    history = history_of(records, at / layout.HISTORY)
    if any(not 0 <= i < len(rows) for record in records for i in record["cohort"]):
        raise UserError(f"{at / layout.HISTORY}: names others than {layout.CLIENTS} does")
    scores = {name: _column(rows, name, at / layout.CLIENTS) for name in SCORES}
    metrics = {
        name: _column(rows, name, at / layout.CLIENTS)
        for name in rows[0]
        if experiment.format > 1 and name not in (*COLUMNS, *OTHERS)
    }
    return SeedRun(
        method=method,
        seed=seed,
        history=history,
        scores={**scores, KEPT: kept_scores(metrics.get(metric.name), scores["final"])},
        matrix=read_alpha(at / layout.ALPHA, len(rows)),
        attackers=frozenset(i for i, row in enumerate(rows) if row.get("attacker") == "yes"),
        evidence=read_evidence(at / layout.EVIDENCE, len(rows)),
        metrics=metrics,
        window=min(LAST, len(records)) if experiment.format == 1 else window_of(len(records)),
        told=_told(rows, at / layout.CLIENTS),
    )


def _told(rows: Rows, path: Path) -> Told | None:
    """What sites said of their gains, where there is no evidence to find it out again."""
    if (path.parent / layout.EVIDENCE).is_file() or not any(row.get("gain_p") for row in rows):
        return None
    return Told(*(_column(rows, name, path) for name in TOLD))


def _read_clients(path: Path, format: int, expected: int | None) -> Rows:
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        rows: Rows = list(reader)
        if format == 1:
            rows = [_from_format_1(row) for row in rows]
        columns = rows[0] if rows else [RENAMED.get(n, n) for n in reader.fieldnames or ()]
        missing = [name for name in COLUMNS if name not in columns]
    except csv.Error as error:
        raise UserError(f"{path}: not a table ({error}); the file is damaged") from None
    if missing:
        raise UserError(f"{path}: column {missing[0]!r} is missing; the file is damaged")
    if not rows or any(None in row or None in row.values() for row in rows):
        raise UserError(f"{path}: rows are missing or cut short; the file is damaged")
    if expected is not None and len(rows) != expected:
        raise UserError(f"{path}: {len(rows)} clients, but the other methods have {expected}")
    if len({row["client"] for row in rows}) < len(rows):
        raise UserError(f"{path}: names a client twice; the file is damaged")
    return rows


def _from_format_1(row: dict[str, str]) -> dict[str, str]:
    row = {RENAMED.get(name, name): value for name, value in row.items()}
    label = row.pop("label", "")
    return {**row, "client": label} if label else row


def read_alpha(path: Path, clients: int) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    arrays = npz.read(path, ALPHA, ALPHA_PARTS)  # bounded, and without pickle
    try:
        pairs = Pairs.read(arrays)
    except Exception as error:  # arrays that do not fit together raise a dozen kinds
        raise UserError(f"{path}: not a matrix of alphas ({first_line(error)})") from None
    if pairs.clients != clients:
        raise UserError(f"{path}: {pairs.clients} clients, but clients.csv has {clients}")
    return arrays


def read_metric(path: Path) -> Metric:
    """What the run is judged by; before there was a choice, accuracy."""
    file = path / layout.METRIC
    said = read_optional(file)
    if not said:
        return ACCURACY
    try:
        bounds = [float(said[key]) for key in ("low", "high")]
        more, unit = said["more_is_better"], said["unit"]
        if type(more) is not bool or unit not in get_args(Unit):
            raise ValueError(f"{more!r:.40}, {unit!r:.40}")
        return Metric(str(said["name"]), str(said["title"]), more, bounds[0], bounds[1], unit)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}: damaged ({first_line(error)})") from None


# -- the whole folder --------------------------------------------------------------------------


def read_methods(path: Path, experiment: Experiment) -> dict[str, MethodInfo]:
    """What the methods say of themselves, without their modules."""
    file = path / layout.METHODS
    said = read_object(file) if experiment.format > 1 else {}
    found = {}
    for folder, name in zip(layout.methods_of(experiment), experiment.methods, strict=True):
        base = experiment.base(name)
        if experiment.format == 1:
            summary = algorithms.NAMES[base].summary if base in algorithms.NAMES else ""
            found[folder] = MethodInfo(base, summary, **_SAID.get(base, {}))
            continue
        try:
            found[folder] = _method_info(said[folder])
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: {folder!r} is damaged ({first_line(error)})") from None
    return found


def _method_info(said: Mapping[str, Any]) -> MethodInfo:
    control = said["control"]
    return MethodInfo(
        base=str(said["base"]),
        summary=str(said["summary"]),
        control=None if control is None else dict(control.items()),
        control_twin=None if said["control_twin"] is None else str(said["control_twin"]),
        new_client_start=str(said["new_client_start"]),
        scored_last=bool(said["scored_last"]),
        role=_one_of(get_args(Role), said.get("role", _role(str(said["base"])))),
        course=_one_of(get_args(Course), said.get("course", "rounds")),
    )


def _role(base: str) -> str:
    """Before folders said it."""
    return "baseline" if base == algorithms.BASELINE else "method"


def _one_of(allowed: tuple[Any, ...], said: Any) -> Any:
    if said not in allowed:
        raise TypeError(f"{said!r:.40}")
    return said


def names_in(path: Path) -> list[str]:
    """The clients' names while none has finished."""
    rows = read_optional(path / layout.DATA).get("clients", [])
    try:
        labels = [str(row.get("label") or "") for row in rows]
    except (AttributeError, TypeError) as error:
        raise UserError(f"{path / layout.DATA}: damaged ({first_line(error)})") from None
    return names_from(len(labels), labels)


def _clients(table: Rows, source: Path, data: Path) -> Clients:
    domains = [row.get("domain") or "" for row in table]
    counts, class_names = _class_counts(data, len(table))
    return Clients(
        n_train=_column(table, "n_train", source).astype(np.int64),
        n_test=_column(table, "n_test", source).astype(np.int64),
        names=[row["client"] for row in table],
        domains=domains if any(domains) else None,
        counts=counts,
        class_names=class_names,
    )


def _class_counts(path: Path, clients: int) -> tuple[Ints | None, list[str]]:
    """Clients x classes, and the classes' names."""
    content = read_optional(path)
    if not content:
        return None, []
    try:
        names = [str(name) for name in content["class_names"]]
        if not any("counts" in row for row in content["clients"]):  # other targets than classes
            return None, names
        counts = np.array([row["counts"] for row in content["clients"]], dtype=np.int64)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{path}: damaged ({first_line(error)})") from None
    if counts.shape != (clients, len(names)):
        raise UserError(
            f"{path}: {counts.shape} samples per client and class, but there are {clients} clients "
            f"and {len(names)} classes"
        )
    return counts, names


def _column(rows: Sequence[Mapping[str, str]], name: str, path: Path) -> Floats:
    """A column of clients.csv; a score may be missing, a size may not."""
    try:
        values = np.array([float(row.get(name) or "nan") for row in rows])
    except ValueError as error:
        raise UserError(f"{path}: column {name!r} is damaged ({error})") from None
    if name.startswith("n_") and not ((values >= 0) & (values < 2**53)).all():
        raise UserError(f"{path}: column {name!r} holds no sizes; the file is damaged")
    return values
