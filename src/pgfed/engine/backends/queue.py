"""The clients of one `map`, and who is served next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from pgfed.data.partitions import Ints
from pgfed.engine.client import ClientError

# A client whose work ends the worker this often is not tried again: it is the work that kills.
ATTEMPTS = 3


class Queue:
    """Clients with the most work go first; many small pieces of work go in groups."""

    def __init__(
        self, stage: str, round: int, clients: Sequence[int], n_train: Ints, workers: int
    ) -> None:
        self._stage = stage
        self._round = round
        self._waiting = deque(sorted(clients, key=lambda i: (-n_train[i], i)))
        # The cohort of a round goes one by one.
        self._group = max(1, len(self._waiting) // (16 * workers))
        self._failures: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> list[int]:
        """The next piece of work for one worker."""
        # A client whose group ended a worker goes alone: if it is the one, it takes no other along.
        alone = self._failures[self._waiting[0]] > 0
        size = 1 if alone else min(self._group, len(self._waiting))
        return [self._waiting.popleft() for _ in range(size)]

    def put_back(self, work: list[int], worker: str) -> None:
        """The worker died doing this work: it is next, on another one."""
        for client in reversed(work):
            self._failures[client] += 1
            if self._failures[client] >= ATTEMPTS:
                raise ClientError(
                    f"round {self._round}, client {client}, {self._stage}: {worker} died "
                    f"{ATTEMPTS} times doing this client's work (out of memory?)"
                )
            self._waiting.appendleft(client)
