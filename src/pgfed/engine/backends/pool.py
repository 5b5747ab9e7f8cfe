"""The loop over workers that processes and Ray's actors share: give work, wait, put back, replace.

A worker holds the data and the model; a client's state and message travel to it and back, so one
that dies takes nothing with it: another does the client's work again, with the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from pgfed.engine.backends.base import Backend, Payload
from pgfed.engine.backends.queue import Queue
from pgfed.engine.client import ClientError
from pgfed.errors import UserError
from pgfed.methods.values import Message, State

Worker = TypeVar("Worker")
Ticket = TypeVar("Ticket")  # what a worker's answer is waited for by
Own = list[tuple[State | None, Message]]  # of each client of a piece of work


class Died(Exception):
    """A worker ended before it answered; says what kind of worker."""


class Pool(Backend, ABC, Generic[Worker, Ticket]):
    """A backend with workers. `begin` starts them and notes them in ``_idle``."""

    workers: int
    _idle: list[Worker]

    # -- what a kind of workers supplies -------------------------------------------------------

    @abstractmethod
    def _start(self) -> None:
        """Start a worker, which is idle at once or once `_wait` has heard from it."""

    @abstractmethod
    def _kill(self, worker: Worker) -> None:
        """Have it gone, and forget it."""

    @abstractmethod
    def _open(self, common: Message) -> Any:
        """A `map` begins: what `_send` needs of the part of the messages that all clients get."""

    @abstractmethod
    def _send(
        self, worker: Worker, stage: str, round: int, work: list[int], common: Any, own: Own
    ) -> Ticket:
        """Give this work to an idle worker; raises Died if it is not there any more."""

    @abstractmethod
    def _wait(self, tickets: list[Ticket]) -> Sequence[Ticket]:
        """Those that are answered; none if a worker has become idle meanwhile."""

    @abstractmethod
    def _receive(
        self, ticket: Ticket, stage: str, round: int, work: list[int]
    ) -> Iterable[list[State]] | UserError | ClientError:
        """Each client's result, or what went wrong in the work; raises Died."""

    @abstractmethod
    def _abandon(self, workers: Sequence[Worker]) -> None:
        """These still work on something that nobody waits for any more."""

    # -- the loop ------------------------------------------------------------------------------

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        queue = Queue(stage, round, clients, self.federation.n_train, self.workers)
        shared = self._open(common)
        busy: dict[Ticket, tuple[Worker, list[int]]] = {}

        def give() -> None:
            while queue and self._idle:
                work = queue.take()
                own = [payload(client) for client in work]
                worker = self._idle.pop()
                try:
                    busy[self._send(worker, stage, round, work, shared, own)] = worker, work
                except Died as death:
                    replace(worker, work, death)

        def replace(worker: Worker, work: list[int], death: Died) -> None:
            self._kill(worker)
            self._start()
            queue.put_back(work, str(death))

        try:
            while queue or busy:
                give()
                for ticket in self._wait(list(busy)):
                    worker, work = busy.pop(ticket)
                    try:
                        results = self._receive(ticket, stage, round, work)
                    except Died as death:
                        replace(worker, work, death)
                        continue
                    self._idle.append(worker)
                    if isinstance(results, Exception):
                        raise results
                    give()  # before the results are looked at: no worker waits for that
                    yield from zip(work, results, strict=True)
        finally:
            self._abandon([worker for worker, _ in busy.values()])
