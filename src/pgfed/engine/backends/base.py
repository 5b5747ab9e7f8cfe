"""Where clients' work is done. `Serial`, in the calling process, is the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import torch

from pgfed.data.federation import Federation
from pgfed.engine.client import ClientSide
from pgfed.methods.values import Message, State
from pgfed.model.kinds import CLASSES
from pgfed.model.networks import Factory, make_task
from pgfed.model.objectives import Objective
from pgfed.model.task import Task

# What one client's work needs beside what all share: its state (None: untouched) and message.
Payload = Callable[[int], tuple[State | None, Message]]


class Backend:
    """A place to run clients in. One `begin`, then any number of `map`s, then `end`, per run."""

    def __init__(
        self,
        federation: Federation,
        model: str | Factory,
        *,
        device: torch.device | str = "cpu",
        head: str | None = None,
        objective: Objective = CLASSES,
    ) -> None:
        self.objective = objective
        self.device = torch.device(device)
        self.federation = federation.to(self.device)
        self.model = model
        self.head = head

    def task(self, seed: int) -> Task:
        """The model with its start drawn from ``seed``."""
        shape, classes = self.federation.input_shape, len(self.federation.class_names)
        return make_task(
            self.model,
            shape,
            classes,
            seed=seed,
            example=self.federation.example(),
            head=self.head,
            objective=self.objective,
            device=self.device,
        )

    def begin(self, side: ClientSide) -> None:
        raise NotImplementedError

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        """Yield (client, result) of ``stage`` for all clients, in any order.

        A client's message is ``common`` plus its own part from ``payload``. A client that cannot
        be reached is left out.
        """
        raise NotImplementedError

    def commit(self, round: int, clients: Sequence[int]) -> None:
        """These clients' replies counted. For engines where states stay with the clients."""

    def end(self) -> None:
        """Give back what `begin` took. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Serial(Backend):
    """One client after the other, in this process."""

    def begin(self, side: ClientSide) -> None:
        self._side = side

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        for client in clients:
            state, own = payload(client)
            yield client, self._side.call(stage, client, round, state, {**common, **own})
