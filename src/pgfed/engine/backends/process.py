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
from pgfed.engine.backends.base import Backend, Payload
from pgfed.engine.backends.queue import Queue
from pgfed.engine.client import ClientError, ClientSide, become_worker
from pgfed.errors import UserError
from pgfed.methods.values import Message, State
from pgfed.model.networks import Factory
from pgfed.model.objectives import CLASSES, Objective


class Process(Backend):
    """A pool of worker processes. ``workers = 0``: one per core this process may use."""

    def __init__(
        self,
        federation: Federation,
        model: str | Factory,
        *,
        workers: int = 0,
        device: torch.device | str = "cpu",
        head: str | None = None,
        objective: Objective = CLASSES,
    ) -> None:
        super().__init__(federation, model, device=device, head=head, objective=objective)
        self.workers = workers or available_cores()
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
        self._side: ClientSide | None = None

    def begin(self, side: ClientSide) -> None:
        self.end()
        self._side = side
        for _ in range(self.workers):
            self._start()

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        inherited = [*self._pool, ours] if self._forks else []
        worker = self._context.Process(
            target=_work, args=(theirs, inherited, self._side, os.getpid()), daemon=True
        )
        worker.start()
        theirs.close()
        self._pool[ours] = worker
        return ours

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        queue = Queue(stage, round, clients, self.federation.n_train, self.workers)
        busy: dict[Connection, list[int]] = {}
        informed: set[Connection] = set()

        def give(conn: Connection) -> None:
            while queue:
                busy[conn] = work = queue.take()
                try:
                    self._give(
                        conn, stage, round, work, None if conn in informed else common, payload
                    )
                except OSError:  # it died waiting for work
                    conn = replace(conn)
                    continue
                informed.add(conn)
                return

        def replace(conn: Connection) -> Connection:
            """Start a new worker in the place of a dead one; its clients go first in the queue."""
            queue.put_back(busy.pop(conn), "the worker process")
            self._remove(conn)
            return self._start()

        for conn in list(self._pool):
            give(conn)
        while busy:
            for ready in wait(list(busy)):
                conn = ready  # type: ignore[assignment]
                try:
                    head, parts = wire.receive(conn)
                except (EOFError, OSError):
                    give(replace(conn))
                    continue
                done = busy.pop(conn)
                if "error" in head:
                    if head["user"]:
                        raise UserError(head["error"])
                    failure = ClientError(head["error"])
                    failure.add_note(head["trace"])  # what `--debug` shows
                    raise failure
                give(conn)
                each = len(parts) // len(done)
                for k, client in enumerate(done):
                    yield client, parts[k * each : (k + 1) * each]

    def _give(
        self,
        conn: Connection,
        stage: str,
        round: int,
        work: list[int],
        common: Message | None,
        payload: Payload,
    ) -> None:
        parts: list[State] = [] if common is None else [common]
        untouched = []
        for client in work:
            state, own = payload(client)
            untouched.append(state is None)
            parts += [state or {}, own]
        head = {"stage": stage, "round": round, "clients": work, "untouched": untouched}
        wire.send(conn, head | {"common": common is not None}, parts)

    def _remove(self, conn: Connection) -> None:
        worker = self._pool.pop(conn)
        conn.close()
        worker.kill()
        worker.join()
        worker.close()

    def end(self) -> None:
        for conn in list(self._pool):
            self._remove(conn)

    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._pool.values() if worker.pid is not None]


def available_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(conn: Connection, inherited: list[Connection], side: ClientSide, parent: int) -> None:
    """A worker's life: receive work, do it, send the result; end with the parent."""
    for other in inherited:  # so that a pipe closes when its one owner does
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            return
    become_worker()
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
                told = {
                    "error": str(error),
                    "user": isinstance(error, UserError),
                    "trace": traceback.format_exc(),
                }
                wire.send(conn, told)
                continue
            wire.send(conn, {}, results)
