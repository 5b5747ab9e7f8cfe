"""What has left a site: a dated line for each answer, written before the answer goes.

Each line holds the hash of itself and of the line before, so that none can be changed or taken out
without all that follow; `record.head` beside it says how many there are and how the last one ends,
so that the end cannot be cut off. Who may write the folder can write all of it anew: to be safe
from that, note the last hash elsewhere now and then.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.federation.flower.records import Head, pack, size
from pgfed.methods.values import State

FILE = "record.jsonl"
HEAD = "record.head"
FIRST = "0" * 64  # stands before the first line

Entry = dict[str, Any]


def read(folder: Path) -> list[Entry]:
    """All lines, verified; raises UserError at the first that is not as it was written."""
    path = folder / FILE
    entries: list[Entry] = []
    last = FIRST
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = json.loads(line)
            told = entry.pop("hash")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: line {number} is not a line of the record") from None
        if told != _hash(last, entry):
            raise UserError(f"{path}: line {number} was changed, or one before it is missing")
        entries.append({**entry, "hash": told})
        last = told
    _check_end(path, entries)
    return entries


def _lines(path: Path) -> list[str]:
    """Without a last one that is not whole: what it was about has not left."""
    if not path.is_file():
        return []
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _check_end(path: Path, entries: list[Entry]) -> None:
    """The head is written after the line: it may be behind by one, where a process was killed."""
    try:
        content = json.loads(path.with_name(HEAD).read_text())
        n, last = int(content["lines"]), content["hash"]
    except FileNotFoundError:
        n, last = 0, FIRST
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path.with_name(HEAD)}: not the head of a record") from None
    hashes = [FIRST, *(entry["hash"] for entry in entries)]
    if len(entries) < n or hashes[n] != last:
        raise UserError(f"{path}: {len(entries)} lines, but {n} were written; some are missing")
    if len(entries) > n + 1:
        raise UserError(f"{path}: {len(entries)} lines, but {n} were written; some were added")


def _hash(before: str, entry: Entry) -> str:
    return hashlib.sha256(f"{before}\n{json.dumps(entry)}".encode()).hexdigest()


class Record:
    """The record of one site, added to as it answers; and how often it has answered."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        entries = read(folder)
        self._n, self._last = len(entries), entries[-1]["hash"] if entries else FIRST
        self._asked: dict[tuple[Any, ...], set[str]] = {}
        for entry in entries:
            self._count(entry)
        if self._path.is_file():  # without a line that was cut short
            whole = "".join(f"{line}\n" for line in _lines(self._path)).encode()
            os.truncate(self._path, len(whole))

    def add(self, **entry: Any) -> None:
        """On disk when this returns; nothing of it is there if it fails, as on a full disk."""
        entry = {"when": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **entry}
        digest = _hash(self._last, entry)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab", buffering=0) as file:
            whole = os.fstat(handle).st_size
            try:
                _write(file, f"{json.dumps({**entry, 'hash': digest})}\n".encode())
                head = {"lines": self._n + 1, "hash": digest}
                write_atomic(self._path.with_name(HEAD), json.dumps(head) + "\n")
            except OSError:  # the answer does not leave
                os.ftruncate(handle, whole)
                raise
        self._n, self._last = self._n + 1, digest
        self._count(entry)

    def questions(self, **about: Any) -> set[str]:
        """The different questions of this kind that were answered in this round."""
        return self._asked.get(_place(about), set())

    def _count(self, entry: Entry) -> None:
        if "question" in entry:
            self._asked.setdefault(_place(entry), set()).add(entry["question"])


def left(reply: Head, results: Mapping[str, State], meant: Mapping[str, State]) -> Entry:
    """What an answer holds: the names of all of it, bytes and length (norm) of its arrays.

    ``meant``: the same as it was before it was encoded to travel.
    """
    values = [v for part in meant.values() for v in part.values()]
    arrays = [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    squares = sum(float(torch.linalg.vector_norm(v.double())) ** 2 for v in arrays)
    return {
        "keys": [*reply, *(f"{name}.{key}" for name, part in results.items() for key in part)],
        "bytes": size(pack({}, **results)),
        "norm": squares**0.5,
    }


def _write(file: FileIO, line: bytes) -> None:
    """All of it, to the disk: on one that is nearly full a part may be written at first."""
    while line:
        line = line[file.write(line) :]
    os.fsync(file.fileno())


def _place(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry[key] for key in ("run", "method", "seed", "round", "kind"))
