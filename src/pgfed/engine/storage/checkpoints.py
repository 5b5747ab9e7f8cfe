"""Everything needed to go on, as one consistent cut after each round.

``checkpoint/clients/`` holds clients' states, each file written once; ``server-ROUND.safetensors``
the server's state and the scores; ``round-ROUND.json``, written last, names them all with their
checksums: a round counts from the moment that file is there. The last two are kept, or more where
asked for, so that a file damaged afterwards costs one round and not the run.
"""

from __future__ import annotations

import _thread
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pgfed.engine.storage.durable import (
    DamagedFile,
    read_state,
    sha256,
    state_to_bytes,
    write_atomic,
)
from pgfed.engine.storage.store import ClientStore, Entry
from pgfed.methods.values import State

if TYPE_CHECKING:
    from pgfed.engine.rounds import Run

KEPT = 2
FORMAT = 2


class Checkpoints:
    """The checkpoints of one run, in one folder. Writing overlaps the next round.

    ``waits``: a round that ends while the last checkpoint is still being written waits for it.
    Otherwise it goes without one of its own, but for the last round: where rounds are shorter than
    a disk takes, it is no loss to run them again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 1,
        kept: int = KEPT,
        waits: bool = True,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = folder
        self._kept = kept
        self.every = every
        self._waits = waits
        self._warn = warn
        self._writing: Future[None] | None = None
        self._named: dict[str, set[str]] = {}  # by its manifest, the files of a checkpoint

    @property
    def clients(self) -> Path:
        return self.folder / "clients"

    def save(self, run: Run) -> None:
        """Write a checkpoint of the run as it is now, unless this round has none due."""
        writing = self._writing is not None and not self._writing.done()
        if not run.finished and (run.round % self.every or (writing and not self._waits)):
            return
        self.wait()
        cut, meta = run.snapshot()
        entries = run.store.entries()
        self._writing = Future()
        work = (run.round, cut, meta, run.store, entries)
        # Not a Thread, whose start() takes locks that an interrupt could leave taken.
        _thread.start_new_thread(self._fulfil, (self._writing, work))

    def wait(self) -> None:
        """Until the last checkpoint is on disk; raises what went wrong while writing it."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def settle(self) -> None:
        """Until nothing is being written any more, however that went.

        For a run that is interrupted, wherever that was: even while the writer was being started.
        A checkpoint that has not been begun will not be.
        """
        if self._writing is not None:
            if not self._writing.cancel():
                self._writing.exception()  # waits for it
            self._writing = None

    def _fulfil(self, writing: Future[None], work: tuple[Any, ...]) -> None:
        if writing.set_running_or_notify_cancel():
            try:
                self._write(*work)
            except BaseException as error:
                writing.set_exception(error)
            else:
                writing.set_result(None)

    def _write(
        self,
        round: int,
        cut: State,
        meta: dict[str, Any],
        store: ClientStore,
        entries: dict[int, Entry],
    ) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        store.write(entries.values())
        data = state_to_bytes(cut)
        write_atomic(self.folder / _server(round), data)
        listed = [[e.client, e.round, e.sha256] for e in entries.values()]
        body = {"format": FORMAT, "round": round, "server": sha256(data), "clients": listed, **meta}
        text = json.dumps(body)
        # The checksum of a JSON text stands in its last line.
        manifest = self.folder / f"round-{round:06d}.json"
        write_atomic(manifest, f"{text}\n{sha256(text.encode())}\n")
        self._named[manifest.name] = {_server(round), *(e.file for e in entries.values())}
        self._tidy(store)

    def _tidy(self, store: ClientStore) -> None:
        """Keep the last checkpoints and what they refer to."""
        manifests = sorted(self.folder.glob("round-*.json"))
        for old in manifests[: -self._kept]:
            old.unlink(missing_ok=True)
        self._named = {path.name: self._files(path) for path in manifests[-self._kept :]}
        files = set().union(*self._named.values())
        for path in self.folder.glob("server-*.safetensors"):
            if path.name not in files:
                path.unlink(missing_ok=True)
        if self.clients.is_dir():
            store.remove_files(files)

    def _files(self, manifest: Path) -> set[str]:
        """The names of a checkpoint's files; of a damaged one none."""
        named = self._named.get(manifest.name)
        if named is not None:
            return named
        try:
            body = _read_manifest(manifest)
        except DamagedFile:
            return set()
        states = (Entry(client, round, None).file for client, round, _ in body["clients"])
        return {_server(body["round"]), *states}

    def restore(self, run: Run, history: list[dict[str, Any]]) -> bool:
        """Put the run back to the last whole checkpoint; False if there is none.

        ``history``: the rounds' records, as far as they have been written down.
        """
        for path in sorted(self.folder.glob("round-*.json"), reverse=True):
            try:
                body = _read_manifest(path)
                if body["round"] > len(history):
                    raise DamagedFile(f"the history ends with round {len(history)}")
                cut = read_state(self.folder / _server(body["round"]), body["server"])
                entries = [Entry(c, r, None, digest) for c, r, digest in body["clients"]]
                for entry in entries:
                    read_state(self.clients / entry.file, entry.sha256 or "")
                _check_fits(cut, [entry.client for entry in entries], run)
            except DamagedFile as damage:
                self._warn(f"checkpoint {path}: {damage}; going back to the one before")
                path.unlink(missing_ok=True)
                continue
            run.store.restore(entries)
            run.restore(cut, body)
            run.history = history[: run.round]
            return True
        return False


def _server(round: int) -> str:
    return f"server-{round:06d}.safetensors"


def rounds_kept(folder: Path) -> list[int]:
    """The rounds after which there is a checkpoint in this folder."""
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("round-*.json"))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        text, digest, *_ = path.read_text().split("\n")
        if sha256(text.encode()) != digest:
            raise ValueError("checksum does not match")
        body: dict[str, Any] = json.loads(text)
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}, expected {FORMAT}")
        numbers = [body["round"], body["best_round"]]
        digests = [body["server"]]
        for client, round, digest in body["clients"]:
            numbers += [client, round]
            digests.append(digest)
        if not all(type(n) is int and 0 <= n < 10**9 for n in numbers):
            raise ValueError("its rounds and clients are no numbers")
        if not all(type(d) is str for d in digests) or type(body["best_score"]) is not float:
            raise ValueError("its checksums or its best score are none")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path.name}: {error}") from error
    return body


def _check_fits(cut: State, clients: list[int], run: Run) -> None:
    """A sound file may still be another run's: nothing is taken over before that is clear."""
    here, _ = run.snapshot()
    n = run.info.clients
    for key, value in here.items():
        found = cut.get(key)
        if key.startswith("server."):
            fits = type(found) is type(value)
        elif not isinstance(value, Tensor) or not isinstance(found, Tensor):
            fits = False
        elif key == "run.unscored":
            fits = found.dtype == value.dtype and found.dim() == 1
            fits = fits and all(0 <= i < n for i in found.tolist())
        else:  # per client, or the last rounds' rows of that
            fits = found.dtype == value.dtype and found.shape[-1:] == value.shape[-1:] == (n,)
            fits = fits and found.dim() == value.dim()
        if not fits:
            raise DamagedFile(f"{key}: not what this run saves")
    if not all(i < n for i in clients):
        raise DamagedFile("it knows more clients than there are")
