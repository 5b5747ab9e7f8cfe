"""Read run folders, finished and running, of this format and of 0.1's.

What is missing or damaged is one line that names the file. Importing this module does not import
torch.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pgfed.config import experiment as experiments
from pgfed.config.tables import BASE, Experiment
from pgfed.data.files import npz
from pgfed.engine.callbacks import Record
from pgfed.engine.storage.durable import in_use
from pgfed.errors import UserError, first_line
from pgfed.methods import registry as algorithms
from pgfed.methods.roles import Course, Role
from pgfed.model.metrics import ACCURACY, Metric, Unit
from pgfed.results.folder import layout
from pgfed.results.folder.evidence import read_evidence
from pgfed.results.folder.history import History, history_of, read_history
from pgfed.results.folder.layout import seed_folder
from pgfed.results.runs import SCORES, Arm, Clients, MethodInfo, RunData, SeedRun, names_from
from pgfed.results.statistics import Floats, Ints, Pairs

COLUMNS = ("client", "n_train", "n_test", *SCORES)
OTHERS = ("domain", "gain", "rounds", "attacker")  # the columns beyond are metrics
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
    first = path
    for method in layout.methods_of(found):
        for seed in found.seeds:
            at = seed_folder(path, method, seed)
            if not (at / layout.CLIENTS).is_file():
                done = len(read_records(path, found, method, seed, _names(path)))
                unfinished.append((method, seed, done))
                continue
            rows = _read_clients(at / layout.CLIENTS, found.format, len(table) or None)
            if not table:
                table, first = rows, at / layout.CLIENTS
            runs.setdefault(method, {})[seed] = _seed_run(path, found, method, seed, rows)
    if not runs:
        running = f"`pgfed watch {path}` shows how far it is"
        advice = running if in_use(path) else layout.how_to_go_on(path)
        raise UserError(f"{path}: no method has finished yet; {advice}")
    return RunData(
        path=path,
        experiment=found,
        environment=_read_object(path / layout.ENVIRONMENT),
        clients=_clients(table, first, path / layout.DATA),
        metric=read_metric(path),
        methods=read_methods(path, found),
        runs=runs,
        unfinished=unfinished,
        text=_text(path / layout.EXPERIMENT),
        new_clients=_new_clients(path / "new_clients.json"),
        explicit=_explicit(path / "explicit.json"),
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
    records = read_records(path, experiment, method, seed, _names(path))
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
    run = _seed_run(path, experiment, method, seed, rows)
    if len(run.history.rounds) != rounds:
        raise UserError(f"{file}: {len(run.history.rounds)} whole rounds in {layout.HISTORY}")
    return run


def finished_run(data: RunData, method: str, seed: int) -> SeedRun:
    """What a method left under a seed; says if it has not finished."""
    if seed not in data.runs.get(method, {}):
        raise layout.unfinished(data.path, method, seed)
    return data.runs[method][seed]


# -- one method, one seed ----------------------------------------------------------------------


def _seed_run(path: Path, experiment: Experiment, method: str, seed: int, rows: Rows) -> SeedRun:
    at = seed_folder(path, method, seed)
    names = [row["client"] for row in rows]
    records = read_records(path, experiment, method, seed, names)
    if not records:
        raise UserError(f"{at / layout.HISTORY}: missing or empty, though the method has finished")
    history = history_of(records, at / layout.HISTORY)
    if any(not 0 <= i < len(rows) for record in records for i in record["cohort"]):
        raise UserError(f"{at / layout.HISTORY}: names others than {layout.CLIENTS} does")
    return SeedRun(
        method=method,
        seed=seed,
        history=history,
        scores={name: _column(rows, name, at / layout.CLIENTS) for name in SCORES},
        matrix=_read_alpha(at / layout.ALPHA, len(rows)),
        attackers=frozenset(i for i, row in enumerate(rows) if row.get("attacker") == "yes"),
        evidence=read_evidence(at / layout.EVIDENCE, len(rows)),
        metrics={
            name: _column(rows, name, at / layout.CLIENTS)
            for name in rows[0]
            if experiment.format > 1 and name not in (*COLUMNS, *OTHERS)
        },
    )


def _read_clients(path: Path, format: int, expected: int | None) -> Rows:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
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


def _read_alpha(path: Path, clients: int) -> dict[str, Any] | None:
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
    said = _read_optional(file)
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
    said = _read_object(file) if experiment.format > 1 else {}
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


def _names(path: Path) -> list[str]:
    """The clients' names while none has finished."""
    rows = _read_optional(path / layout.DATA).get("clients", [])
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
    content = _read_optional(path)
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


def _new_clients(path: Path) -> dict[str, dict[str, list[float]]]:
    curves = {}
    for method, curve in _read_optional(path).items():
        try:
            epochs = [float(e) for e in curve["epochs"]]
            accuracy = [float(a) for a in curve["accuracy"]]
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise UserError(f"{path}: {method!r} is damaged ({first_line(error)})") from None
        if len(epochs) != len(accuracy):
            raise UserError(f"{path}: {method!r} has {len(epochs)} epochs, {len(accuracy)} values")
        curves[str(method)] = {"epochs": epochs, "accuracy": accuracy}
    return curves


def _explicit(path: Path) -> list[Arm]:
    try:
        return [
            Arm(
                mu=float(arm["mu"]),
                lr=float(arm["lr"]),
                chosen=bool(arm["chosen"]),
                accuracy=[float(a) for a in arm["accuracy"]],
                gains=[float(gain) for gain in arm["gains"] if gain is not None],
            )
            for arm in _read_optional(path).get("arms", [])
        ]
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{path}: an arm is damaged ({first_line(error)})") from None


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_object(path) if path.is_file() else {}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON; the file is damaged") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object; the file is damaged")
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; the file is damaged") from None


def _column(rows: Sequence[Mapping[str, str]], name: str, path: Path) -> Floats:
    """A column of clients.csv; a score may be missing, a size may not."""
    try:
        values = np.array([float(row[name] or "nan") for row in rows])
    except ValueError as error:
        raise UserError(f"{path}: column {name!r} is damaged ({error})") from None
    if name.startswith("n_") and not ((values >= 0) & (values < 2**53)).all():
        raise UserError(f"{path}: column {name!r} holds no sizes; the file is damaged")
    return values
