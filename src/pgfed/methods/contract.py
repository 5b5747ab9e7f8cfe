"""What an algorithm is, and the few steps that algorithms share.

An algorithm is one file and one frozen dataclass; its fields are the hyper-parameters. Its methods
are pure at their boundary: they never change what they are given. The same object runs unchanged
on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.model.task import Layout, Part, Task

# Flat dictionaries: string keys; values are tensors, ints or floats. Nothing nested.
State = dict[str, Any]  # what the server, or one client, keeps between rounds
Message = dict[str, Any]  # what the server sends to a client
Update = dict[str, Any]  # what a client sends back: all that ever leaves it

# What one entry of an Update is. It fixes the entry's shape, is checked on arrival, and says in
# `pgfed methods --show` what leaves a site.
Kind = Literal["model", "body", "head", "gradient", "scalar", "row", "count"]


@dataclass(frozen=True)
class TrainConfig:
    """Local training: the [train] table, overridden by [method.NAME]."""

    epochs: int = 5  # E, passes over the client's data per round
    batch_size: int = 10  # B; 0 = the client's whole training set in one batch
    lr: float = 0.005  # eta
    momentum: float = 0.9  # rho
    momentum_policy: Literal["paper", "official"] = (
        "paper"  # official: none where the code has none
    )
    reset_momentum: bool = False  # forget the momentum buffer between participations


@dataclass(frozen=True)
class FederationInfo:
    """What the server knows about the federation."""

    clients: int  # N
    cohort: int  # M
    layout: Layout


@dataclass(frozen=True)
class ClientInfo:
    """What a client knows about itself before it has trained."""

    id: int
    n: int  # training samples
    federation: FederationInfo


# -- randomness --------------------------------------------------------------------------------


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """An independent random stream for (seed, purpose, client, round, epoch).

    Keyed, never streamed: what one client or method draws cannot shift what another one gets.
    """
    digest = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, digest, *key))))


@contextmanager
def torch_stream(key: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Dropout and the like draw from torch's global stream: keyed here, put back after."""
    with torch.random.fork_rng(devices=[]):
        seed = int(key.integers(2**62))
        if device.type == "cpu":
            # torch.manual_seed formats a stack trace per kind of device: longer than a small batch.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


def draw_cohort(seed: int, round: int, clients: int, cohort: int) -> list[int]:
    """The sorted ids of the clients of a round: the same for all methods under one seed."""
    drawn = generator(seed, "cohort", round).choice(clients, size=cohort, replace=False)
    return sorted(int(i) for i in drawn)


@dataclass(frozen=True)
class Rng:
    """The random streams of one client in one round."""

    seed: int
    client: int
    round: int

    def generator(self, purpose: str, epoch: int = 0) -> np.random.Generator:
        return generator(self.seed, purpose, self.client, self.round, epoch)

    def permutation(self, n: int, purpose: str, epoch: int = 0) -> Tensor:
        return torch.from_numpy(self.generator(purpose, epoch).permutation(n))


def batch_indices(
    data: Shard, batch_size: int, rng: Rng, *, epochs: int = 1, purpose: str = "train"
) -> Iterator[Tensor]:
    """Mini-batches of ``epochs`` passes: a fresh order each, the last incomplete batch dropped."""
    size = min(batch_size or len(data), len(data))
    for epoch in range(epochs):
        order = rng.permutation(len(data), purpose, epoch).to(data.y.device)
        for start in range(0, len(data) - size + 1, size):
            yield order[start : start + size]


def batches(
    data: Shard, batch_size: int, rng: Rng, *, epochs: int = 1, purpose: str = "train"
) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of `batch_indices`."""
    for index in batch_indices(data, batch_size, rng, epochs=epochs, purpose=purpose):
        yield data.batch(index)


# -- local training ----------------------------------------------------------------------------

Extra = Callable[[Tensor, Tensor], None]  # (theta, gradient so far): adds to the latter in place


def sgd(
    task: Task,
    theta: Tensor,
    data: Shard,
    rng: Rng,
    train: TrainConfig,
    *,
    velocity: Tensor | None = None,
    constant: Tensor | None = None,
    extra: Extra | None = None,
    before: Callable[[Tensor], None] | None = None,
    after: Callable[[Tensor], None] | None = None,
    part: Part = "all",
    epochs: int | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    clip: float = 0.0,
    purpose: str = "train",
) -> tuple[Tensor, Tensor]:
    """Mini-batch SGD with momentum from ``theta``: v <- rho v + g, theta <- theta - eta v.

    ``velocity``, ``constant`` and what the callables are given have task.d entries: all that is
    trained, without buffers. Terms of the gradient g that are not the loss's: ``constant`` is the
    same in every step, ``extra(theta, g)`` adds what depends on theta to whatever g holds.
    ``before(theta)`` and ``after(theta)``, called around each step, may change theta in place.
    Where ``part`` is not all, the other part rests: its values, and its velocity too. ``clip``
    bounds the norm of g, all its terms included (0: no bound). ``epochs``, ``lr`` and ``momentum``
    stand for those of ``train``; ``purpose`` names the random stream that orders the samples.
    Returns the new (theta, velocity); what was passed in stays as it was.
    """
    lr = train.lr if lr is None else lr
    rho = train.momentum if momentum is None else momentum
    theta = theta.clone()
    step = theta[: task.d]
    v = torch.zeros_like(step) if velocity is None else velocity.clone()
    b = task.layout.b
    moved = {"all": slice(0, task.d), "base": slice(0, b), "head": slice(b, task.d)}[part]
    moving, speed = step[moved], v[moved]
    # The gradient is collected in the momentum buffer itself: one pass over memory less. Not where
    # it is bounded first, or where ``extra`` may write to a part that rests.
    apart = clip > 0 or (extra is not None and part != "all")
    g = torch.empty_like(v) if apart else v
    steady = None if constant is None else constant[moved]
    for x, y in batches(
        data,
        train.batch_size,
        rng,
        epochs=train.epochs if epochs is None else epochs,
        purpose=purpose,
    ):
        if before is not None:
            before(step)
        if apart:
            speed.mul_(rho)
            g.zero_()
            if steady is not None:
                g[moved] = steady
        elif steady is None:
            speed.mul_(rho)
        else:  # both in one pass
            torch.add(steady, speed, alpha=rho, out=speed)
        if extra is not None:
            extra(step, g)
        task.add_gradient(theta, x, y, g, part=part)
        if apart:
            own = g[moved]
            speed.add_(own.mul_(clip / own.norm().clamp_(min=clip)) if clip else own)
        moving.add_(speed, alpha=-lr)
        if after is not None:
            after(step)
    return theta, v


def fine_tuned(
    task: Task,
    theta: Tensor,
    data: Shard,
    streams: Iterable[Rng],
    train: TrainConfig,
    *,
    purpose: str = "train",
) -> Iterator[Tensor]:
    """A new client's model after each epoch of plain SGD, one stream of randomness per epoch.

    As in the authors' code the momentum starts afresh with every epoch.
    """
    for rng in streams:
        with torch_stream(rng.generator(f"torch-{purpose}"), task.device):
            theta, _ = sgd(task, theta, data, rng, train, epochs=1, purpose=purpose)
        yield theta


def mean_gradient(
    task: Task, theta: Tensor, data: Shard, rng: Rng, train: TrainConfig, *, full: bool = False
) -> tuple[float, Tensor]:
    """(mean loss, its gradient) at ``theta``, over the samples that whole batches cover.

    The batches of one more epoch, their incomplete rest dropped, are averaged; as that is a mean
    over samples, it is computed in large batches. ``full`` takes every sample.
    """
    size = min(train.batch_size or len(data), len(data))
    used = len(data) if full else len(data) - len(data) % size
    order = rng.permutation(len(data), "gradient")[:used].to(data.y.device)
    total = torch.zeros(task.d, device=task.device)
    piece = torch.zeros_like(total)
    losses: list[tuple[float, Tensor]] = []
    for start in range(0, used, GRADIENT_BATCH):
        x, y = data.batch(order[start : start + GRADIENT_BATCH])
        piece.zero_()
        share = len(y) / used
        losses.append((share, task.add_gradient(theta, x, y, piece, training=False)))
        total.add_(piece, alpha=share)
    # Read at the end: a device goes on with the next batch meanwhile.
    return sum(share * float(loss) for share, loss in losses), total


GRADIENT_BATCH = 256


# -- aggregation -------------------------------------------------------------------------------


class Mean:
    """The mean that the engine hands to `aggregate`: weighted by n, in the order of client ids."""

    def __call__(
        self,
        updates: Mapping[int, Update],
        key: str,
        *,
        around: Tensor | None = None,
        uniform: bool = False,
    ) -> Tensor:
        """The mean of ``key`` over the updates; ``around`` is the vector they started from."""
        weights = self.weights(updates, uniform)
        ids = sorted(updates)
        total = torch.zeros_like(updates[ids[0]][key])
        for i in ids:
            total.add_(updates[i][key], alpha=weights[i])
        return total

    def each(self, updates: Mapping[int, Update], key: str) -> tuple[list[int], Tensor]:
        """The ids that count, and their vectors (or numbers) ``key`` as the rows of one tensor."""
        ids = sorted(updates)
        return ids, torch.stack([torch.as_tensor(updates[i][key]) for i in ids])

    def left_out(self, updates: Mapping[int, Update]) -> list[int]:
        """The clients of whose updates nothing counts."""
        return []

    @staticmethod
    def weights(updates: Mapping[int, Update], uniform: bool = False) -> dict[int, float]:
        """p_i = n_i / sum of n over those who answered; ``uniform``: all equal."""
        n = {i: 1 if uniform else int(u["n"]) for i, u in updates.items()}
        total = sum(n.values())
        return {i: n[i] / total for i in n}


def need_base(method: str, task: Task) -> None:
    """For methods that train the base by itself."""
    if not task.layout.b:
        raise UserError(f"methods: {method!r} needs a model with layers before its head")


# -- the contract ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A personalized federated learning method.

    A subclass is final: it overrides what its paper defines and nothing inherits from it.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""  # one line for `pgfed methods`; the registry has those of ours
    leaves: ClassVar[dict[str, Kind]]  # what each key of an Update is
    shares: ClassVar[dict[str, Kind]] = {}  # the same for what `share` gives after the last round
    # True where the method has one result, at the end, and not a best over rounds.
    scored_last: ClassVar[bool] = False
    # False where the authors' code trains without momentum (momentum_policy = "official").
    official_momentum: ClassVar[bool] = True
    # The settings that switch off what the method claims, for an honest comparison; and the
    # registered method, if there is one, that equals it under these settings.
    control: ClassVar[dict[str, Any] | None] = None
    control_twin: ClassVar[str | None] = None
    new_client_start: ClassVar[str] = "its global model"  # in words: what a new client starts from
    grid: ClassVar[dict[str, list[Any]]] = {}  # what a sweep tries beside learning rates

    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def momentum(self) -> float:
        """rho of this method's ordinary SGD steps, under the momentum policy."""
        if self.train.momentum_policy == "official" and not self.official_momentum:
            return 0.0
        return self.train.momentum

    def keep(self, **buffers: Tensor) -> State:
        """Momentum buffers for the client's next participation, if they are kept at all."""
        return {} if self.train.reset_momentum else dict(buffers)

    def check_model(self, task: Task) -> None:
        """Raise a UserError if the method cannot be used with this model."""

    def images(self, n: int) -> int:
        """Training samples a client with ``n`` of them steps over in a round."""
        size = min(self.train.batch_size or n, n)
        return self.train.epochs * (n // size) * size

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        return {"w": w0}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {}

    def messages(self, server: State, cohort: Sequence[int]) -> dict[int, Message]:
        """What the server sends to each client of the round."""
        return {i: {"w": server["w"]} for i in cohort}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        """The client's work of one round: its new state, and what it sends back."""
        raise NotImplementedError

    def aggregate(self, server: State, updates: Mapping[int, Update], mean: Mean) -> State:
        """The new server state from whichever clients answered."""
        if not updates:
            return server
        return {**server, "w": mean(updates, "w", around=server["w"])}

    def public(self, server: State) -> Message:
        """What a client needs of the server to be scored; empty: only its own state counts."""
        return {"w": server["w"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        """The client's personalized model as one flat vector."""
        raise NotImplementedError

    def share(self, state: State, client: ClientInfo) -> Update:
        """What each client gives once, after the last round, for `global_model`."""
        return {}

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        """The model a new client starts from."""
        w: Tensor = server["w"]
        return w

    def export(self, server: State) -> dict[str, Any]:
        """What a run keeps of the server's state beside models, as arrays for a file."""
        return {}
