"""The client's side of a run: the same code on every engine."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pgfed.data.augment import augmentation
from pgfed.data.federation import Federation, Shard
from pgfed.engine import personal as own
from pgfed.engine.exchange.attacks import Attack
from pgfed.engine.exchange.compression import UNSAID, Compression
from pgfed.engine.exchange.replies import Form
from pgfed.engine.privacy import Protection
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, generator, torch_stream
from pgfed.methods.values import Kind, Message, State, Update
from pgfed.model.private.view import PrivateTask, sealed
from pgfed.model.task import Task

View = Callable[[Tensor | None], Task]  # of an offset: the task for a client's steps


class ClientError(Exception):
    """Something went wrong inside a client's work: says which client, round and stage."""


@dataclass
class ClientSide:
    """Everything a client's work needs that does not change during a run.

    Each call takes and gives flat dictionaries only, so an engine can carry them anywhere.
    ``state`` is None for a client that has not taken part yet.
    """

    algorithm: Algorithm
    task: Task
    federation: Federation
    seed: int
    w0: Tensor
    info: FederationInfo
    rounds: int  # of the run, for schedules
    attack: Attack | None = None  # what the attackers do, in a simulation
    attackers: frozenset[int] = frozenset()
    protection: Protection | None = None  # of clients' units; None: exact gradients
    compression: Compression | None = None  # of what travels in training

    def call(
        self, stage: str, client: int, round: int, state: State | None, message: Message
    ) -> list[State]:
        """Do one stage of a client's work: train, refresh, score, personal, evidence or share."""
        work = {
            "train": self.train,
            "refresh": self.refresh,
            "score": self.score,
            "personal": self.personal,
            "evidence": self.evidence,
            "share": self.share,
        }[stage]
        try:
            if state is not None:
                state = on_device(state, self.task.device)
            message = on_device(message, self.task.device)
            stream = "personal" if stage == "evidence" else stage  # it is of the kept model
            key = generator(self.seed, f"torch-{stream}", self.federation.key(client), round)
            with torch_stream(key, self.task.device), one_thread():
                return work(client, round, state, message)
        except UserError:
            raise
        except Exception as error:
            raise ClientError(
                f"{self.algorithm.name}, round {round}, client {client}, {stage}: "
                f"{type(error).__name__}: {error}{_hint(self.algorithm, error)}"
            ) from error

    def _begun(self, client: int, state: State | None) -> State:
        """A client's state, or what it begins with."""
        if state is not None:
            return {k: v for k, v in state.items() if not k.startswith(UNSAID)}
        start = self.algorithm.init_client(self.w0, self.client(client))
        return on_device(start, self.task.device)

    @property
    def form(self) -> Form:
        """Of what travels."""
        task = self.task
        return Form(task.layout, self.algorithm.shared, task.outputs, task.width)

    def opened(self, sent: Message) -> Message:
        """A message to train by, as it was meant; raises Damaged."""
        return sent if self.compression is None else self.compression.opened(sent)

    def heard(self, declared: dict[str, Kind], message: Message, sent: Update) -> Update:
        """An update as it was meant, in answer to an opened message; raises Damaged."""
        if self.compression is None:
            return sent
        return self.compression.heard(self.form, declared, message, sent)

    def size(self, declared: dict[str, Kind], sent: Message) -> int:
        """Bytes of the arrays in the answer to a message to train by."""
        if self.compression is None:
            return self.form.size(declared, sent)
        return self.compression.size(self.form, declared, sent)

    def client(self, client: int) -> ClientInfo:
        return ClientInfo(client, self.trains_on(client), self.info)

    def trains_on(self, client: int) -> int:
        """How many samples; under privacy as many units as it says it has."""
        if self.protection is not None:
            return self.protection.size(client)
        return self.federation.trains_on(client)

    @property
    def samples(self) -> tuple[int, ...]:
        """`trains_on` of every client."""
        if self.protection is None:
            return tuple(self.federation.n_train.tolist())
        return tuple(self.protection.size(i) for i in range(self.info.clients))

    def _rng(self, client: int, round: int) -> Rng:
        return Rng(self.seed, client, round, self.federation.key(client))

    def train(self, client: int, round: int, state: State | None, sent: Message) -> list[State]:
        """[new state, update as it travels, {"round", "seconds"}]."""
        message = self.opened(sent)
        new, update, echo = self._trained(client, round, state, message)
        if self.compression is not None:
            declared, rng = own.declared(message, self.algorithm), self._rng(client, round)
            update, left = self.compression.said(
                self.form, declared, message, update, _unsaid(state), rng
            )
            new = {**new, **left}
        return [new, update, echo]

    def refresh(self, client: int, round: int, state: State | None, sent: Message) -> list[State]:
        """As `train`, of which nothing leaves: exact, whatever protects samples otherwise."""
        exact = replace(self, protection=None)
        new, _, echo = exact._trained(client, round, state, self.opened(sent))
        return [{**new, **_unsaid(state)}, {}, echo]

    def _trained(
        self, client: int, round: int, state: State | None, message: Message
    ) -> list[State]:
        """[new state, update, {"round", "seconds"}]."""
        began = time.perf_counter()
        rng = self._rng(client, round)
        pooled = self.algorithm.course == "pooled"
        data = self.federation.pooled() if pooled else self.federation.train(client)
        attack = self.attack if client in self.attackers else None
        if attack is not None:
            data = attack.data(data, self.task.outputs)
        algorithm = self.algorithm.at(min(round, self.rounds), self.rounds)
        begun = self._begun(client, state)
        asked = {k: v for k, v in message.items() if k != own.COUNTS}
        view = self._view(data)
        if self.protection is not None:
            view, data = self.protection.view(view, self.federation, algorithm, client, round)
        shown = data
        view.offset = own.training_offset(algorithm, lambda: shown.class_counts(view.outputs))
        new, update = algorithm.local_update(view, begun, asked, data, rng)
        if attack is not None:
            update = attack.update(update, self.algorithm.leaves, message, rng)
        if own.COUNTS in own.declared(message, algorithm):
            update = {**update, own.COUNTS: data.class_counts(self.task.outputs).float()}
        if isinstance(view, PrivateTask):
            view.meter.check(view.policy)
        return [new, update, {"round": round, "seconds": time.perf_counter() - began}]

    def score(self, client: int, round: int, state: State | None, public: Message) -> list[State]:
        """[the scores of the personalized model on the client's own test and validation data]."""
        theta = self._personal(client, round, state, public)
        task = self.task.view(self.federation.train(client))
        scores: State = {}
        for name, data in (
            ("test", self.federation.test(client)),
            ("validation", self.federation.validation(client)),
        ):
            scores |= {f"{name}_n": len(data), f"{name}_loss": 0.0}
            if len(data):
                found = task.score(theta, data)
                scores[f"{name}_loss"] = found.loss
                if found.score is not None:
                    scores[f"{name}_score"] = float(found.score)
        return [scores]

    def personal(
        self, client: int, round: int, state: State | None, public: Message
    ) -> list[State]:
        """[{"w": the personalized model}]."""
        return [{"w": self._personal(client, round, state, public)}]

    def evidence(
        self, client: int, round: int, state: State | None, public: Message
    ) -> list[State]:
        """[what the personalized model gives for each test sample and what that came to, every
        metric and fact that is defined]."""
        theta = self._personal(client, round, state, public)
        data = self.federation.test(client)
        objective = self.task.view(self.federation.train(client)).objective
        if not len(data):
            return [{"outcome": torch.zeros(0)}, {}]
        pairs = self.task.predictions(theta, data)
        outcomes = torch.cat([objective.outcomes(found, y).cpu() for found, y in pairs])
        found: State = {"outcome": outcomes.float()}
        if objective.targets != "masks":
            found["outputs"] = torch.cat([outputs for outputs, _ in pairs])
            found["target"] = torch.cat([y for _, y in pairs])
        numbers = {**objective.scores(pairs), **objective.facts(pairs)}
        return [found, {k: float(v) for k, v in numbers.items() if v is not None}]

    def share(self, client: int, round: int, state: State | None, message: Message) -> list[State]:
        """[what the client gives for the global model after the last round]."""
        return [self.algorithm.share(self._begun(client, state), self.client(client))]

    def _personal(self, client: int, round: int, state: State | None, public: Message) -> Tensor:
        data = self.federation.train(client)
        view: View = partial(self._view, data)
        if self.protection is not None and self.algorithm.covered:
            view, data = self._sealed(client, view)
        return own.personal_model(
            self.algorithm,
            self.task,
            view,
            self._begun(client, state),
            public,
            data,
            self._rng(client, round),
            counts=partial(self.class_counts, client),
            validation=self.federation.validation(client),
            untouched=state is None,
        )

    def _sealed(self, client: int, view: View) -> tuple[View, Shard]:
        """For a model that may leave: it is made without samples, or not at all."""
        known = self.trains_on(client), self.algorithm.name
        _, data = sealed(self.task, *known)
        return lambda offset: sealed(view(offset), *known)[0], data

    def class_counts(self, client: int) -> Tensor:
        """Of its training data; under privacy as it has told them."""
        if self.protection is not None:
            return self.protection.class_counts(self.task, self.federation, client)
        return self.federation.train(client).class_counts(self.task.outputs)

    def unframed(self, client: int, model: Tensor) -> Tensor:
        """A model to begin with that is to have these outputs in the client's frame."""
        counts = partial(self.class_counts, client)
        return own.unframed(self.algorithm, self.task, model, counts)

    def _view(self, data: Shard, offset: Tensor | None = None) -> Task:
        """The task for the steps of the client with this training data, in its frame."""
        view = self.task.view(data)
        view.augment = augmentation(self.algorithm.train.augment)
        view.bfloat16 = self.algorithm.train.precision == "bfloat16"
        view.offset = offset
        return view


def _unsaid(state: State | None) -> State:
    """What a client's updates have left unsaid so far."""
    return {k: v for k, v in (state or {}).items() if k.startswith(UNSAID)}


def _hint(algorithm: Algorithm, error: Exception) -> str:
    """For a method of the user's own that was written for another version of the contract."""
    own = not type(algorithm).__module__.startswith("pgfed.")
    if own and isinstance(error, TypeError) and "argument" in str(error):
        return " (a method written for 0.1? docs/public-api.md says what has changed)"
    return ""


def on_device(values: State, device: torch.device) -> State:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: results must not depend on how many there are."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def become_worker() -> None:
    """Set up a process that does nothing but train: one thread, and memory stays where it is."""
    torch.set_num_threads(1)
    # What was imported stays: the garbage collector need not look at it again, nor, in a forked
    # worker, make copies of pages that are shared with the parent.
    gc.freeze()
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
            # glibc keeps freed blocks: activations do not go back to the kernel at every step.
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
            # M_MMAP_THRESHOLD; older versions of glibc refuse more than 32 MiB.
            libc.mallopt(-3, 1 << 30) or libc.mallopt(-3, 1 << 25)
            # M_MXFAST: without fast bins, freeing an activation does not sweep them.
            libc.mallopt(1, 0)
        except (OSError, AttributeError):
            pass  # another C library: nothing to tune
