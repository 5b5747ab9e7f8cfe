"""The clients' states: in memory up to a budget, the rest on disk.

A state on disk is a file ``CLIENT-ROUND.safetensors``, written once and never changed. Checkpoints
refer to the same files, so that a state is written once for both purposes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pgfed.engine.storage.durable import read_state, sha256, state_to_bytes, write_several
from pgfed.methods.values import State

MEMORY = 2 << 30  # bytes of states kept in memory by default


@dataclass
class Entry:
    """One client's state as of one round: in memory, on disk, or both."""

    client: int
    round: int
    state: State | None
    sha256: str | None = None  # of its file, once written

    @property
    def file(self) -> str:
        return f"{self.client:06d}-{self.round:06d}.safetensors"


class ClientStore:
    """client -> State, for the clients that have taken part."""

    def __init__(self, folder: Path | None = None, memory: int = MEMORY) -> None:
        self._folder = folder
        self._temporary = folder is None
        self._memory = memory
        self._entries: dict[int, Entry] = {}
        self._held: OrderedDict[int, int] = OrderedDict()  # client -> bytes, least recent first
        self._total = 0

    def __contains__(self, client: int) -> bool:
        return client in self._entries

    def get(self, client: int) -> State | None:
        """The client's state, or None if it has never taken part."""
        entry = self._entries.get(client)
        if entry is None:
            return None
        state = entry.state
        if state is None:
            state = read_state(self.folder / entry.file, entry.sha256 or "")
            entry.state = state
        self._hold(client, state)
        return state

    def put(self, client: int, round: int, state: State) -> None:
        old = self._entries.get(client)
        if self._temporary and old is not None and old.sha256 is not None:
            (self.folder / old.file).unlink(missing_ok=True)
        self._entries[client] = Entry(client, round, state)
        self._hold(client, state)

    def _hold(self, client: int, state: State) -> None:
        self._total -= self._held.pop(client, 0)
        self._held[client] = sum(
            v.numel() * v.element_size() for v in state.values() if isinstance(v, Tensor)
        )
        self._total += self._held[client]
        while self._total > self._memory and len(self._held) > 1:
            oldest, size = self._held.popitem(last=False)
            self._total -= size
            self.write([self._entries[oldest]])
            self._entries[oldest].state = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="pgfed-states-"))
        return self._folder

    def write(self, entries: Iterable[Entry]) -> None:
        """Make sure that these states are on disk. Writing one twice at once does no harm."""
        new = [(e, e.state) for e in entries if e.sha256 is None and e.state is not None]
        digests: list[str] = []

        def files() -> Iterator[tuple[Path, bytes]]:
            for entry, state in new:
                data = state_to_bytes(state)
                digests.append(sha256(data))
                yield self.folder / entry.file, data

        if new:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_several(files())
        for (entry, _), digest in zip(new, digests, strict=True):
            entry.sha256 = digest

    def entries(self) -> dict[int, Entry]:
        """The present states, as they are now: later rounds put new entries in their place."""
        return dict(self._entries)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Take these states as the present ones; they are read from disk when needed."""
        self._entries = {e.client: e for e in entries}
        self._held.clear()
        self._total = 0

    def remove_files(self, keep: set[str]) -> None:
        """Remove the files that neither these names nor the present states refer to."""
        there = os.listdir(self.folder)  # before: a state may go to disk while this looks
        wanted = keep.union(e.file for e in self.entries().values())
        for name in there:
            if name.endswith(".safetensors") and name not in wanted:
                (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
