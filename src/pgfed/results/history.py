"""history.jsonl: one line per round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pgfed.engine.durable import write_atomic
from pgfed.errors import UserError

Record = dict[str, Any]


def read_history(path: Path, *, strict: bool = False) -> list[Record]:
    """The records of the rounds, as far as they are whole; none if there is no such file.

    A last line that is cut short is a round that is being written. ``strict``: any other damage is
    an error; otherwise the records before it count.
    """
    if not path.is_file():
        return []
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if record["round"] != number:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            if not strict:
                break
            raise UserError(
                f"{path}: line {number} is not the record of round {number}; the file is damaged"
            ) from None
        records.append(record)
    return records


def write_history(path: Path, records: list[Record]) -> None:
    write_atomic(path, "".join(map(line_of, records)))


def line_of(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
