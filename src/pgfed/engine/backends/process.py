"""Worker processes on one machine, one thread each.

Workers hold the data and the model; a client's state and message travel to a worker and back, so
a worker that dies takes nothing with it: another one does the client's work again, with the same
result. Clients with the most work go first.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess

import torch

from pgfed.data.federation import Federation
from pgfed.engine.backends import wire
from pgfed.engine.backends.pool import Died, Own, Pool
from pgfed.engine.client import ClientError, ClientSide, become_worker
from pgfed.errors import UserError
from pgfed.methods.values import Message, State
from pgfed.model.kinds import CLASSES
from pgfed.model.networks import Factory
from pgfed.model.objectives import Objective


class Process(Pool[Connection, Connection]):
    """A pool of worker processes. ``workers = 0``: one per core this process may use; on another
    device than the CPU, where each takes memory of its own, ``per_device``."""

    def __init__(
        self,
        federation: Federation,
        model: str | Factory,
        *,
        workers: int = 0,
        per_device: int = 1,
        device: torch.device | str = "cpu",
        head: str | None = None,
        objective: Objective = CLASSES,
    ) -> None:
        super().__init__(federation, model, device=device, head=head, objective=objective)
        self.workers = worker_count(workers, self.device, per_device)
        # A forked worker has data and model at once and shares their memory. Where forking is not
        # safe (CUDA, macOS) workers start afresh and the data lies in shared memory.
        self._forks = sys.platform == "linux" and self.device.type == "cpu"
        if not self._forks:
            self.federation.share_memory_()
        self._context: ForkContext | SpawnContext = (
            multiprocessing.get_context("fork")
            if self._forks
            else multiprocessing.get_context("spawn")
        )
        self._pool: dict[Connection, BaseProcess] = {}
        self._idle: list[Connection] = []
        self._informed: set[Connection] = set()  # of what all clients get in this call
        self._side: ClientSide | None = None

    def begin(self, side: ClientSide) -> None:
        self.end()
        self._side = side
        for _ in range(self.workers):
            self._start()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        inherited = [*self._pool, ours] if self._forks else []
        worker = self._context.Process(
            target=_work, args=(theirs, inherited, self._side, os.getpid()), daemon=True
        )
        worker.start()
        theirs.close()
        self._pool[ours] = worker
        self._idle.append(ours)

    def _kill(self, conn: Connection) -> None:
        worker = self._pool.pop(conn)
        if conn in self._idle:
            self._idle.remove(conn)
        conn.close()
        worker.kill()
        worker.join()
        worker.close()

    def _open(self, common: Message) -> Message:
        while len(self._pool) < self.workers:  # some were given up in the middle of the last call
            self._start()
        self._informed.clear()
        return common

    def _send(
        self,
        conn: Connection,
        stage: str,
        round: int,
        work: list[int],
        common: Message,
        own: Own,
    ) -> Connection:
        inform = conn not in self._informed
        parts: list[State] = [common] if inform else []
        for state, message in own:
            parts += [state or {}, message]
        head = {
            "stage": stage,
            "round": round,
            "clients": work,
            "untouched": [state is None for state, _ in own],
            "common": inform,
        }
        try:
            wire.send(conn, head, parts)
        except OSError:  # it died waiting for work
            raise Died("the worker process") from None
        self._informed.add(conn)
        return conn

    def _wait(self, conns: list[Connection]) -> Sequence[Connection]:
        return wait(conns)  # type: ignore[return-value]

    def _receive(
        self, conn: Connection, stage: str, round: int, work: list[int]
    ) -> Iterator[list[State]] | UserError | ClientError:
        try:
            head, parts = wire.receive(conn)
        except (EOFError, OSError):
            raise Died("the worker process") from None
        if "error" in head:
            if head["user"]:
                return UserError(head["error"])
            failure = ClientError(head["error"])
            failure.add_note(head["trace"])  # what `--debug` shows
            return failure
        each = len(parts) // len(work)
        return (parts[k * each : (k + 1) * each] for k in range(len(work)))

    def _abandon(self, conns: Sequence[Connection]) -> None:
        for conn in conns:  # its answer must not be taken for one to the next call
            if conn in self._pool:
                self._kill(conn)

    def end(self) -> None:
        for conn in list(self._pool):
            self._kill(conn)

    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._pool.values() if worker.pid is not None]


def worker_count(workers: int, device: torch.device | str, per_device: int) -> int:
    """So many as are asked for; otherwise one per core, or ``per_device`` beside a GPU."""
    return workers or (available_cores() if torch.device(device).type == "cpu" else per_device)


def available_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def become_child(parent: int, inherited: Sequence[Connection]) -> None:
    """Set up a forked or spawned process that works for ``parent`` and ends with it."""
    for other in inherited:  # so that a pipe closes when its one owner does
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            raise SystemExit  # it ended before this was asked for
    become_worker()


def _work(conn: Connection, inherited: list[Connection], side: ClientSide, parent: int) -> None:
    """A worker's life: receive work, do it, send the result; end with the parent."""
    become_child(parent, inherited)
    common: Message = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            head, parts = wire.receive(conn)
            if head["common"]:
                common = parts.pop(0)
            results: list[State] = []
            try:
                for k, client in enumerate(head["clients"]):
                    state = None if head["untouched"][k] else parts[2 * k]
                    results += side.call(
                        head["stage"], client, head["round"], state, {**common, **parts[2 * k + 1]}
                    )
            except Exception as error:
                failure = {
                    "error": str(error),
                    "user": isinstance(error, UserError),
                    "trace": traceback.format_exc(),
                }
                wire.send(conn, failure)
                continue
            wire.send(conn, {}, results)
