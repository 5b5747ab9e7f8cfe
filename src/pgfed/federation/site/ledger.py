"""The ledger beside a site's data: what may be spent, what runs have reserved, what has left.

ledger.jsonl   one canonical JSON per line; `prev` is the SHA-256 of the line before
outbox/        replies as they left, for whoever asks the same again
lock           held while the ledger is looked at and written

Kinds of lines: `open` (what the ledger is for), `budget` (changed by the operator), `plan` (a run's
slice, reserved when it opens), `once` (noisy class counts, for all runs), `charge` (an answered
round), `score` (a model's noisy scores, at the end), `repair`. Nothing here looks at a clock, and
nothing is known by the data's fingerprint: one more record must not open a new budget.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgfed.engine.storage.durable import sync, write_atomic
from pgfed.errors import UserError
from pgfed.federation.folders.folder import SiteFolder

FILE, OUTBOX, LOCK = "ledger.jsonl", "outbox", "lock"
ELSEWHERE = "elsewhere"  # beside the data, where the ledger is not
NOTE = "ledger.json"  # in the site's state folder: how long the ledger was
FIRST = "0" * 64  # stands before the first line
OLD = "an old backup? `pgfed privacy repair` counts as spent what may have left"

Line = dict[str, Any]
Place = tuple[str, str, int, int]  # run, method, seed, round


class LedgerError(UserError):
    """The ledger does not allow it; says why."""


def ledger_of(folder: SiteFolder, data: str = "", at: Path | None = None) -> Ledger:
    """Beside the data, so that two federations on the same data meet in it."""
    table = folder.file.private
    place = (at or folder.path) / Path((data or folder.file.data).partition(":")[2]).expanduser()
    place = place.resolve()  # by whatever link the data is reached, it is the same
    beside = _beside(place)
    where = folder.path / Path(table.ledger).expanduser() if table.ledger else beside
    where = where.resolve()
    found = Ledger(beside).elsewhere or (beside if Ledger(beside).exists else where)
    if where != found:
        advice = "leave the key out, or move that folder there" if found == beside else "name that"
        raise UserError(
            f"privacy.ledger: found {table.ledger or 'none'}, but {found} holds a ledger of these "
            f"records; {advice}"
        )
    _check_parts(place)
    return Ledger(where, folder.states / NOTE, beside)


def _beside(place: Path) -> Path:
    return place.parent / f"{place.name}.privacy"


def _check_parts(place: Path) -> None:
    """Refuse a part of data that has a ledger, and data of which a part has one."""
    around = [_beside(parent) for parent in place.parents]
    within = place.glob("*.privacy")  # not deeper: there may be a million images
    for other in (*around, *within):
        if Ledger(other).exists:
            raise UserError(
                f"data: {place} and the data beside {other} hold the same records, which have one "
                "budget: give the same path"
            )


class Ledger:
    """One site's ledger. Read and written under its lock only."""

    def __init__(self, folder: Path, copy: Path | None = None, beside: Path | None = None) -> None:
        """``copy``: where the site notes how long the ledger was, to know an old backup;
        ``beside``: where it would lie by default."""
        self.folder, self._copy, self._beside = folder, copy, beside or folder
        self._path = folder / FILE

    @property
    def exists(self) -> bool:
        return self._path.is_file()

    @property
    def elsewhere(self) -> Path | None:
        """Where the ledger is that would lie here."""
        path = self.folder / ELSEWHERE
        return Path(path.read_text().strip()) if path.is_file() else None

    def point(self) -> None:
        """Say beside the data where the ledger is, if that can be written."""
        if self._beside != self.folder:
            with contextlib.suppress(OSError):
                self._beside.mkdir(exist_ok=True)
                write_atomic(self._beside / ELSEWHERE, f"{self.folder}\n")

    @contextmanager
    def locked(self) -> Iterator[Entries]:
        """The verified lines; others wait meanwhile."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / OUTBOX).mkdir(exist_ok=True)
            handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(
                f"privacy.ledger: {self.folder} cannot be written ({error.strerror}); nothing "
                "leaves without it"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(handle)

    def _read(self) -> Entries:
        raw = self._path.read_bytes() if self._path.is_file() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):  # torn: what it was about has not left
            os.truncate(self._path, len(whole))
        lines: list[Line] = []
        last = FIRST
        for number, text in enumerate(whole.split(b"\n")[:-1], 1):
            try:
                line = json.loads(text)
                before = line["prev"]
            except (ValueError, KeyError, TypeError):
                raise LedgerError(f"{self._path}: line {number} is no line of a ledger") from None
            if before != last or text != canonical(line):
                raise LedgerError(f"{self._path}: line {number} was changed, or one is missing")
            lines.append(line)
            last = hashlib.sha256(text).hexdigest()
        found = Entries(lines, last)
        self._check_age(found)
        return found

    def _check_age(self, found: Entries) -> None:
        """Refuse a ledger that is shorter than it was, or another one."""
        seen = self.seen()
        if seen is not None and not found.has_ended(*seen):
            moved = "" if found.lines else f", or was the data moved without {self.folder.name}?"
            raise LedgerError(
                f"{self._path}: {len(found.lines)} lines, but it had {seen[0]} with another end; "
                f"{OLD}{moved}"
            )

    def seen(self) -> tuple[int, str] | None:
        """How long the ledger was, and how it ended, as far as the site noted it."""
        noted = self._noted()
        return None if noted is None else (noted["lines"], noted["hash"])

    def _noted(self) -> Line | None:
        if self._copy is None or not self._copy.is_file():
            return None
        try:
            content = json.loads(self._copy.read_text())
            return {
                "lines": int(content["lines"]),
                "hash": str(content["hash"]),
                "lost": int(content.get("lost", 0)),
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LedgerError(f"{self._copy}: not a note of a ledger's length") from None

    def append(self, entries: Entries, kind: str, **content: Any) -> None:
        """On disk when this returns; only under the lock."""
        line = {"kind": kind, **content, "prev": entries.head}
        text = canonical(line)
        fresh = not self._path.is_file()
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync(self.folder)
        entries.lines.append(json.loads(text))
        entries.head = hashlib.sha256(text).hexdigest()
        self.note(entries)

    def note(self, entries: Entries, lost: int = 0) -> None:
        """How long it is; ``lost``: how long somebody else has known it, where that was more."""
        if self._copy is not None:
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            lost = max(lost, (self._noted() or {"lost": 0})["lost"])
            noted = {"lines": entries.length, "hash": entries.head, "lost": lost}
            write_atomic(self._copy, json.dumps(noted) + "\n")

    # -- replies ---------------------------------------------------------------------------------

    def put(self, reply: bytes) -> str:
        """A reply into the outbox, whole and on disk; its SHA-256."""
        digest = hashlib.sha256(reply).hexdigest()
        write_atomic(self._reply(digest), reply)
        return digest

    def reply(self, charge: Line) -> bytes:
        """The reply that was charged."""
        path = self._reply(charge["sent"])
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != charge["sent"]:
            raise LedgerError(
                f"round {charge['round']} was answered, and the answer is not in the outbox any "
                "more; it is not computed again"
            )
        return data

    def tidy(self, entries: Entries) -> None:
        """Remove replies that were not charged: they have not left."""
        known = {f"{line['sent']}.safetensors" for line in entries.lines if "sent" in line}
        for path in (self.folder / OUTBOX).iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)

    def _reply(self, digest: str) -> Path:
        return self.folder / OUTBOX / f"{digest}.safetensors"


class Entries:
    """The lines of a ledger, and what follows from them."""

    def __init__(self, lines: list[Line], head: str) -> None:
        self.lines, self.head = lines, head

    @property
    def end(self) -> str:
        """How long it is and how it ends: for the server, which says it again to a later ledger."""
        return f"{self.length} {self._sealed(self.head)}"

    def _sealed(self, head: str) -> str:
        """A line's hash as others may know it. A charge holds the hash of a state with parts that
        were trained exactly at home: who guesses the records can compute that, and the line."""
        assert self.opened is not None, "its first line has the key"
        return hmac.new(self.opened["id"].encode(), head.encode(), "sha256").hexdigest()

    @property
    def length(self) -> int:
        """Its lines; after a repair as many as there may have been, and those since."""
        lost, since = self._repaired
        return lost + since

    @property
    def _repaired(self) -> tuple[int, int]:
        """How long it was at most before the last repair, and the lines from there on."""
        lost, since = 0, 0
        for line in self.lines:
            if "lost" in line:
                lost, since = max(lost + since, int(line["lost"])), 0
            since += 1
        return lost, since

    def has_ended(self, n: int, head: str, *, sealed: bool = False) -> bool:
        """Whether it once was so long, and ended so (``sealed``: as a server was told); what it was
        before a repair counts as known, since all of that is spent."""
        lost, since = self._repaired
        if n > lost + since:
            return False
        if lost and n <= lost:
            return True
        place = len(self.lines) - (lost + since - n)
        found = self.head if place == len(self.lines) else self.lines[place]["prev"]
        return head == (self._sealed(found) if sealed else found)

    def of(self, kind: str) -> Iterator[Line]:
        return (line for line in self.lines if line["kind"] == kind)

    @property
    def opened(self) -> Line | None:
        return next(self.of("open"), None)

    @property
    def budget(self) -> tuple[float, float]:
        """(epsilon, delta) as the operator set them last."""
        last = [*self.of("open"), *self.of("budget")][-1]
        return float(last["epsilon"]), float(last["delta"])

    @property
    def reserved(self) -> tuple[float, float]:
        """What runs have taken: slices add up."""
        plans = [*self.of("plan"), *self.of("repair")]
        return sum(float(p["epsilon"]) for p in plans), sum(float(p["delta"]) for p in plans)

    @property
    def left(self) -> tuple[float, float]:
        (epsilon, delta), (taken, taken_delta) = self.budget, self.reserved
        return max(0.0, epsilon - taken), max(0.0, delta - taken_delta)

    def plan(self, run: str) -> Line | None:
        return next((line for line in self.of("plan") if line["run"] == run), None)

    def closed(self, plan: Line) -> bool:
        """Whether the ledger was repaired after this plan was made: what had been answered until
        then is not known."""
        return any(line["kind"] == "repair" for line in self.lines[self.lines.index(plan) :])

    def charge(self, place: Place, kind: str = "charge") -> Line | None:
        """The answer to this round, if it was given."""
        for line in self.of(kind):
            if (line["run"], line["method"], line["seed"], line["round"]) == place:
                return line
        return None

    def charges(self, run: str, method: str, seed: int) -> int:
        """How many rounds were answered."""
        return sum(
            (line["run"], line["method"], line["seed"]) == (run, method, seed)
            for line in self.of("charge")
        )

    def counts(self, classes: list[str]) -> list[float] | None:
        """The noisy counts of these classes, if they were ever released."""
        found = (line["counts"] for line in self.of("once") if line["classes"] == classes)
        return next(found, None)


def canonical(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode()


def open_ledger(
    ledger: Ledger,
    entries: Entries,
    *,
    epsilon: float,
    delta: float,
    unit: str,
    size: int,
    size_test: int,
) -> None:
    """Its first line: the budget, and the numbers that are public from now on."""
    if entries.opened is not None:
        raise LedgerError(f"{ledger.folder}: holds a ledger already")
    ledger.append(
        entries,
        "open",
        id=secrets.token_hex(16),
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        size=size,
        size_test=size_test,
    )


def reserve(ledger: Ledger, entries: Entries, line: Line) -> None:
    """Append a run's plan if its slice is still there."""
    epsilon, delta = entries.left
    if line["epsilon"] > epsilon + 1e-9 or line["delta"] > delta * (1 + 1e-9):
        raise LedgerError(
            f"this run needs epsilon {line['epsilon']:.3g}, of which {epsilon:.3g} is left; set "
            "privacy.run_epsilon in site.toml before the first run, or raise the budget"
        )
    ledger.append(entries, "plan", **line)


def repair(ledger: Ledger, reason: str, epsilon: float = 0.0, delta: float = 0.0) -> Line:
    """After an old ledger was put back: all that was left counts as spent, since runs may have
    opened meanwhile. ``epsilon``, ``delta``: as the site's file has them; a larger budget than the
    ledger's may have been lost with the rest."""
    noted = ledger._noted() or {"lines": 0, "lost": 0}
    copy, ledger._copy = ledger._copy, None
    with ledger.locked() as entries:
        if entries.opened is None:
            raise LedgerError(
                f"{ledger.folder}: holds no ledger to repair; put a backup of it there, or, if the "
                "data was moved, the folder that lay beside it"
            )
        (most, most_delta), (taken, taken_delta) = entries.budget, entries.reserved
        ledger._copy = copy
        ledger.append(
            entries,
            "repair",
            epsilon=max(0.0, most - taken, epsilon - taken),
            delta=max(0.0, most_delta - taken_delta, delta - taken_delta),
            lost=max(entries.length, noted["lines"], noted["lost"]),
            reason=reason,
        )
        return entries.lines[-1]
