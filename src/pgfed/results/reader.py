"""Read run folders. What is missing or damaged is one line that names the file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.config import experiment
from pgfed.config.experiment import Experiment
from pgfed.engine.durable import in_use
from pgfed.errors import UserError
from pgfed.methods import registry as algorithms
from pgfed.results.history import read_history
from pgfed.results.sentence import Health, health
from pgfed.results.statistics import Floats, Ints, Pairs, read_alpha

NO_ATTACK = "none"
COLUMNS = ("client", "n_train", "n_test", "best", "final", "last10")


@dataclass(frozen=True)
class Clients:
    """The clients and their data, as far as the folder tells."""

    n_train: Ints
    n_test: Ints
    names: list[str]  # as the data calls them, otherwise their number
    domains: list[str] | None
    counts: Ints | None  # clients x classes
    class_names: list[str]

    def __len__(self) -> int:
        return len(self.n_train)


@dataclass(frozen=True)
class Site:
    """What the rounds of a run over Flower were like with one site."""

    asked: int  # rounds
    counted: int  # of these, the ones whose update was used
    seconds: list[float]  # from asking for an update to having it, where it came
    work_seconds: float  # of all that, training
    bytes_down: int
    bytes_up: int
    failures: list[str]  # why a reply did not count, a score did not come, a state was lost


@dataclass(frozen=True)
class History:
    """The rounds of one method under one seed."""

    rounds: list[int]
    accuracy: list[float | None]
    sent: list[float]  # bytes in both directions, up to and with this round
    images: int
    train_seconds: float
    seconds: float
    dropped: list[tuple[int, int, str]]  # round, client, reason
    health: Health
    left_out: list[tuple[int, int]]  # round, client: by the aggregation, not refused
    clients: Floats | None  # scored rounds x clients: accuracies, where the history has them
    sites: dict[int, Site]  # by client; of a federation over Flower


@dataclass(frozen=True)
class SeedRun:
    """One method under one seed, finished."""

    seed: int
    history: History
    # Per client; NaN for attackers, whose own models nobody asks about.
    last10: Floats  # mean of the last ten rounds
    best: Floats  # in the round whose mean was best on test data
    final: Floats
    alpha: Pairs | None
    attackers: frozenset[int]  # clients that simulated an attack


@dataclass(frozen=True)
class Arm:
    """One arm of the study of explicit against implicit objectives: a mu and a step length."""

    mu: float  # 0: implicit
    lr: float
    chosen: bool  # the best step length for this mu
    accuracy: list[float]  # after 0, 1, ... steps
    gains: list[float]  # per client, where it has test data

    @property
    def gain(self) -> float:
        return float(np.mean(self.gains)) if self.gains else float("nan")


@dataclass(frozen=True)
class Folder:
    """One run folder."""

    path: Path
    experiment: Experiment
    text: str  # of experiment.toml
    environment: dict[str, Any]
    clients: Clients
    runs: dict[str, dict[int, SeedRun]]  # method -> seed -> run
    unfinished: list[tuple[str, int, int]]  # method, seed, rounds done
    new_clients: dict[str, dict[str, list[float]]]  # method -> epochs, accuracy
    explicit: list[Arm]

    @property
    def fingerprint(self) -> str | None:
        found = self.environment.get("data", {}).get("fingerprint")
        return found if isinstance(found, str) else None

    def settings(self, method: str) -> dict[str, Any]:
        """Everything that can change what this method gives on these clients, as flat keys."""
        e = self.experiment
        return {
            "rounds": e.rounds,
            "cohort": e.cohort,
            **{f"model.{k}": v for k, v in e.model.model_dump().items() if v is not None},
            **e.train.model_dump(),
            **{k: v for k, v in e.method.get(method, {}).items() if k != experiment.BASE},
            "aggregation": e.engine.aggregation,
            "attack": self.attack,
        }

    @property
    def attack(self) -> str:
        """What some clients did to the others, in words."""
        told = self.experiment.attack
        if told.kind == "none":
            return NO_ATTACK
        strength = "" if told.kind == "label-flip" else f" x{told.strength:g}"
        return f"{told.kind}{strength} by {100 * told.share:g} %"

    def base(self, method: str) -> str:
        """The registered method that this one is, or is a variant of."""
        return self.experiment.base(method)


def load(path: Path) -> Folder:
    """Read a run folder; runs that have not finished are named, not read."""
    found = experiment.of_run(path)
    runs: dict[str, dict[int, SeedRun]] = {}
    unfinished = []
    table: list[dict[str, str]] = []  # of the first finished run; the others have the same clients
    first = path
    for method in map(algorithms.folder, found.methods):
        for seed in found.seeds:
            at = path / method / f"seed-{seed}"
            if not (at / "clients.csv").is_file():
                unfinished.append(
                    (method, seed, len(read_history(at / "history.jsonl", strict=True)))
                )
                continue
            rows = _read_clients(at / "clients.csv", len(table) or None)
            if not table:
                table, first = rows, at / "clients.csv"
            runs.setdefault(method, {})[seed] = _seed_run(at, seed, rows)
    if not runs:
        advice = f"`pgfed watch {path}` shows how far it is" if in_use(path) else how_to_go_on(path)
        raise UserError(f"{path}: no method has finished yet; {advice}")
    return Folder(
        path=path,
        experiment=found,
        text=(path / "experiment.toml").read_text(encoding="utf-8"),
        environment=_read_object(path / "environment.json"),
        clients=_clients(table, first, path / "data.json"),
        runs=runs,
        unfinished=unfinished,
        new_clients=_new_clients(path / "new_clients.json"),
        explicit=_explicit(path / "explicit.json"),
    )


def how_to_go_on(path: Path) -> str:
    """What to say of a run that nobody runs."""
    if (path.absolute().parent / "federation.toml").is_file():
        return f"`pgfed federation run {path.absolute().parent} --resume` goes on"
    return f"`pgfed resume {path}` goes on"


# -- one method, one seed ----------------------------------------------------------------------


def _seed_run(at: Path, seed: int, rows: Sequence[Mapping[str, str]]) -> SeedRun:
    attackers = frozenset(i for i, row in enumerate(rows) if row.get("attacker") == "yes")

    def column(name: str) -> Floats:
        values = _column(rows, name, at / "clients.csv")
        values[sorted(attackers)] = np.nan
        return values

    told = at / "history.jsonl"
    return SeedRun(
        seed=seed,
        history=_history(read_history(told, strict=True), told),
        last10=column("last10"),
        best=column("best"),
        final=column("final"),
        alpha=_read_alpha(at / "alpha.npz", len(rows)),
        attackers=attackers,
    )


def _history(records: Sequence[Mapping[str, Any]], path: Path) -> History:
    if not records:
        raise UserError(f"{path}: missing or empty, though the method has finished")
    try:
        sent = np.cumsum([float(r["bytes_down"]) + float(r["bytes_up"]) for r in records])
        return History(
            rounds=[int(r["round"]) for r in records],
            accuracy=[None if (a := r["mean_score"]) is None else float(a) for r in records],
            sent=sent.tolist(),
            images=sum(int(r["samples"]) for r in records),
            train_seconds=sum(float(r["train_seconds"]) for r in records),
            seconds=sum(float(r["seconds"]) for r in records),
            dropped=[
                (int(r["round"]), int(d["client"]), str(d["reason"]))
                for r in records
                for d in r["dropped"]
            ],
            health=health(records),
            left_out=[(int(r["round"]), int(i)) for r in records for i in r.get("left_out", ())],
            clients=_client_curves([r for r in records if r["mean_score"] is not None]),
            sites=_sites(records),
        )
    except KeyError as error:
        raise UserError(f"{path}: a record has no {error.args[0]!r}; the file is damaged") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a record is damaged ({error})") from None


def _sites(records: Sequence[Mapping[str, Any]]) -> dict[int, Site]:
    told = [record for record in records if "sites" in record]
    clients = {int(i) for r in told for i in [*r["cohort"], *r["sites"]]}
    return {i: _site(i, told) for i in sorted(clients)}


def _site(client: int, records: Sequence[Mapping[str, Any]]) -> Site:
    facts = [record["sites"].get(str(client), {}) for record in records]
    failures = [str(d["reason"]) for r in records for d in r["dropped"] if d["client"] == client]
    failures += [f"not scored: {f['not_scored']}" for f in facts if "not_scored" in f]
    failures += ["had lost its state and began afresh" for f in facts if f.get("afresh")]
    return Site(
        asked=sum(client in record["cohort"] for record in records),
        counted=sum(bool(f.get("counted")) for f in facts),
        seconds=[float(f["seconds"]) for f in facts if f.get("seconds")],
        work_seconds=sum(float(f.get("work_seconds", 0)) for f in facts),
        bytes_down=sum(int(f.get("bytes_down", 0)) for f in facts),
        bytes_up=sum(int(f.get("bytes_up", 0)) for f in facts),
        failures=failures,
    )


def _client_curves(scored: Sequence[Mapping[str, Any]]) -> Floats | None:
    if not scored or not all("client_score" in record for record in scored):
        return None
    return np.array([record["client_score"] for record in scored], dtype=np.float64)


def _read_clients(path: Path, expected: int | None) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as error:
        raise UserError(f"{path}: not a table ({error}); the file is damaged") from None
    if missing:
        raise UserError(f"{path}: column {missing[0]!r} is missing; the file is damaged")
    if not rows or any(None in row or None in row.values() for row in rows):
        raise UserError(f"{path}: rows are missing or cut short; the file is damaged")
    if expected is not None and len(rows) != expected:
        raise UserError(f"{path}: {len(rows)} clients, but the other methods have {expected}")
    return rows


def _read_alpha(path: Path, clients: int) -> Pairs | None:
    if not path.is_file():
        return None
    try:
        pairs = Pairs.read(read_alpha(path))
    except UserError:
        raise
    except Exception as error:  # arrays that do not fit together raise a dozen kinds
        raise UserError(f"{path}: not a matrix of alphas ({_one_line(error)})") from None
    if pairs.clients != clients:
        raise UserError(f"{path}: {pairs.clients} clients, but clients.csv has {clients}")
    return pairs


# -- the whole folder --------------------------------------------------------------------------


def _clients(table: Sequence[Mapping[str, str]], source: Path, data: Path) -> Clients:
    domains = [row.get("domain") or "" for row in table]
    counts, names = _class_counts(data, len(table))
    return Clients(
        n_train=_column(table, "n_train", source).astype(np.int64),
        n_test=_column(table, "n_test", source).astype(np.int64),
        names=[row.get("label") or row["client"] for row in table],
        domains=domains if any(domains) else None,
        counts=counts,
        class_names=names,
    )


def _class_counts(path: Path, clients: int) -> tuple[Ints | None, list[str]]:
    """Clients x classes, and the classes' names."""
    content = _read_optional(path)
    if not content:
        return None, []
    try:
        counts = np.array([row["counts"] for row in content["clients"]], dtype=np.int64)
        names = [str(name) for name in content["class_names"]]
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{path}: damaged ({_one_line(error)})") from None
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
            raise UserError(f"{path}: {method!r} is damaged ({_one_line(error)})") from None
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
        raise UserError(f"{path}: an arm is damaged ({_one_line(error)})") from None


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
    """A column of clients.csv; an accuracy may be missing, a size may not."""
    try:
        values = np.array([float(row[name] or "nan") for row in rows])
    except ValueError as error:
        raise UserError(f"{path}: column {name!r} is damaged ({error})") from None
    if name.startswith("n_") and not ((values >= 0) & (values < 2**53)).all():
        raise UserError(f"{path}: column {name!r} holds no sizes; the file is damaged")
    return values


def _one_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
