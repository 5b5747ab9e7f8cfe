"""history.jsonl: one line per round, and what all of them say together.

In the file clients have their names; in memory, as in the engine, they are numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.config.experiment import LAST
from pgfed.engine.callbacks import Record
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.results.formats import count
from pgfed.results.statistics import Floats

# What 0.1 (format 1) called the keys of a record.
RENAMED = {
    "mean_accuracy": "mean_score",
    "client_accuracy": "client_score",
    "mean_validation_accuracy": "mean_validation_score",
    "images": "samples",
}


@dataclass(frozen=True)
class Health:
    """Whether a run came to anything: replies that did not count, models that diverged."""

    asked: int
    refused: tuple[str, ...]  # why, for each reply that did not count
    diverged: int  # clients whose model holds NaN in the end

    @property
    def sound(self) -> bool:
        """Whether scores are those of trained models."""
        return not self.diverged and (not self.asked or len(self.refused) < self.asked)


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
    """The rounds of one method under one seed, as far as they have been run."""

    records: list[Record]
    rounds: list[int]
    score: list[float | None]
    sent: list[float]  # bytes in both directions, up to and with this round
    samples: int
    train_seconds: float
    seconds: float
    dropped: list[tuple[int, int, str]]  # round, client, reason
    health: Health
    left_out: list[tuple[int, int]]  # round, client: by the aggregation, not refused
    clients: Floats | None  # scored rounds x clients: scores, where the history has them
    sites: dict[int, Site]  # by client; of a federation over Flower


def history_of(records: list[Record], where: object = "history") -> History:
    """What the records of the rounds say; ``where`` is named if one of them is damaged."""
    try:
        sent = np.cumsum([float(r["bytes_down"]) + float(r["bytes_up"]) for r in records])
        scored = [r for r in records if r["mean_score"] is not None]
        return History(
            records=records,
            rounds=[int(r["round"]) for r in records],
            score=[None if (a := r["mean_score"]) is None else float(a) for r in records],
            sent=sent.tolist(),
            samples=sum(int(r["samples"]) for r in records),
            train_seconds=sum(float(r["train_seconds"]) for r in records),
            seconds=sum(float(r["seconds"]) for r in records),
            dropped=[
                (int(r["round"]), d["client"], str(d["reason"]))
                for r in records
                for d in r["dropped"]
            ],
            health=_health(records),
            left_out=[(int(r["round"]), i) for r in records for i in r.get("left_out", ())],
            clients=_client_curves(scored),
            sites=_sites(records),
        )
    except KeyError as error:
        raise UserError(
            f"{where}: a record has no {error.args[0]!r}; the file is damaged"
        ) from None
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{where}: a record is damaged ({error})") from None


def _health(records: Sequence[Record]) -> Health:
    return Health(
        asked=sum(len(record["cohort"]) for record in records),
        refused=tuple(
            str(drop["reason"])
            for record in records
            for drop in record["dropped"]
            if drop["client"] in record["cohort"] and not drop["reason"].startswith("score:")
        ),
        diverged=next((int(r.get("diverged", 0)) for r in reversed(records) if _judged(r)), 0),
    )


def _judged(record: Record) -> bool:
    """Whether models were scored, be it that all of them had diverged."""
    return record["mean_score"] is not None or "diverged" in record


def troubles(label: str, each: Sequence[Health]) -> list[str]:
    """What went wrong with a method under all its seeds, a line each; nothing on a good day."""
    asked = sum(one.asked for one in each)
    refused = [reason for one in each for reason in one.refused]
    diverged = max(one.diverged for one in each)
    lines = []
    if refused:
        ((reason, _),) = Counter(refused).most_common(1)
        lines.append(
            f"{label}: {len(refused):,} of {asked:,} replies did not count ({reason})"
            f"{'; lower train.lr' if 'NaN' in reason else ''}."
        )
    if diverged:
        lines.append(
            f"{label}: training diverged to NaN for {count(diverged, 'client')}; lower train.lr."
        )
    return lines


def window_of(rounds: int) -> int:
    """How many rounds are the last ones: ten, but at most a third, whose models are trained."""
    return max(1, min(LAST, rounds // 3))


def last_scores(records: Sequence[Record], window: int, key: str = "mean_score") -> list[float]:
    """The scores of the last rounds, as far as they were scored."""
    first = len(records) - window
    return [r[key] for r in records if r["round"] > first and r.get(key) is not None]


def _client_curves(scored: Sequence[Record]) -> Floats | None:
    if not scored or not all("client_score" in record for record in scored):
        return None
    return np.array([record["client_score"] for record in scored], dtype=np.float64)


def _sites(records: Sequence[Record]) -> dict[int, Site]:
    over_flower = [record for record in records if "sites" in record]
    clients = {i for r in over_flower for i in [*r["cohort"], *r["sites"]]}
    return {i: _site(i, over_flower) for i in sorted(clients)}


def _site(client: int, records: Sequence[Record]) -> Site:
    facts = [record["sites"].get(client, {}) for record in records]
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


# -- the file ----------------------------------------------------------------------------------


def read_history(
    path: Path, names: Sequence[str], *, format: int, strict: bool = False
) -> list[Record]:
    """The records of the rounds, as far as they are whole; none if there is no such file.

    A last line that is cut short is a round that is being written. ``strict``: any other damage is
    an error; otherwise the records before it count. ``names``: of the clients, by their numbers.
    """
    if not path.is_file():
        return []
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    # In format 1 clients are numbers, also where the data has names for them.
    numbers = {} if format == 1 else {name: i for i, name in enumerate(names)}
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if record["round"] != number:
                raise ValueError
            if format == 1:
                record = {RENAMED.get(key, key): value for key, value in record.items()}
            records.append(_with_numbers(record, numbers))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if not strict:
                break
            raise UserError(
                f"{path}: line {number} is not the record of round {number}; the file is damaged"
            ) from None
    return records


def write_history(path: Path, records: Sequence[Record], names: Sequence[str]) -> None:
    write_atomic(path, "".join(line_of(record, names) for record in records))


def line_of(record: Record, names: Sequence[str]) -> str:
    return json.dumps(_with_names(record, names), allow_nan=False) + "\n"


def _with_names(record: Record, names: Sequence[str]) -> Record:
    def name(client: int) -> str:  # somebody who is not one of the clients may have answered
        return names[client] if 0 <= client < len(names) else str(client)

    return _translated(record, name)


def _with_numbers(record: Record, numbers: Mapping[str, int]) -> Record:
    def number(client: Any) -> int:
        return numbers[client] if client in numbers else int(client)

    return _translated(record, number)


def _translated(record: Record, client: Any) -> Record:
    """The record with its clients called otherwise."""
    changed: Record = {}
    for key in ("cohort", "left_out"):
        if key in record:
            changed[key] = [client(i) for i in record[key]]
    for key in ("client_seconds", "sites"):
        if key in record:
            changed[key] = {client(i): value for i, value in record[key].items()}
    if "dropped" in record:
        dropped = record["dropped"]
        changed["dropped"] = [{**drop, "client": client(drop["client"])} for drop in dropped]
    return {**record, **changed}
