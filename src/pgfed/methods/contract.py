"""What an algorithm is.

An algorithm is one file and one frozen dataclass; its fields are the hyper-parameters. Its methods
are pure at their boundary: they never change what they are given. The same object runs unchanged
on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.roles import Course, Role, Source
from pgfed.methods.settings import PersonalConfig, TrainConfig, check_bounds
from pgfed.methods.values import Kind, Message, State, Update
from pgfed.model.layout import Layout
from pgfed.model.task import Task


def _no_further_start(k: int) -> Tensor:
    raise RuntimeError("further initial models are the server's, in init_server")


@dataclass(frozen=True)
class FederationInfo:
    """What the server knows about the federation."""

    clients: int  # N
    cohort: int  # M
    layout: Layout
    # The k-th further initial model, keyed by the seed: for methods with several models.
    start: Callable[[int], Tensor] = field(default=_no_further_start, compare=False, repr=False)
    samples: tuple[int, ...] = ()  # n_i of every client; in init_server alone


@dataclass(frozen=True)
class ClientInfo:
    """What a client knows about itself before it has trained."""

    id: int
    n: int  # training samples
    federation: FederationInfo


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A personalized federated learning method.

    A subclass is final: it overrides what its paper defines and nothing inherits from it. The
    defaults are FedAvg's for whatever part of the model is `shared`: clients keep the rest of their
    model in ``state["own"]``.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""  # one line for `pgfed methods`; the registry has those of ours
    leaves: ClassVar[dict[str, Kind]]  # what each key of an Update is
    # The same for what `share` gives after the last round, if global_model needs it. An "own" part
    # is asked for only where clients have one.
    shares: ClassVar[dict[str, Kind]] = {"own": "own", "n": "count"}
    # In a comparison: a method on trial; what a client reaches without the others, which gains are
    # over; or a bound that nobody could choose.
    role: ClassVar[Role] = "method"
    # Rounds of drawn clients; every client once; once on everybody's training data together, which
    # only a simulation can.
    course: ClassVar[Course] = "rounds"
    # True where the method has one result, at the end, and not a best over rounds.
    scored_last: ClassVar[bool] = False
    # False where the authors' code trains without momentum (momentum_policy = "official").
    official_momentum: ClassVar[bool] = True
    # Why the method's derivation needs plain SGD, if it does: said when another optimizer is set.
    plain_sgd: ClassVar[str | None] = None
    # Whether the personalized model follows from messages and from what privacy charges alone;
    # False where it is trained on exact gradients at home. Only such a model may leave a site.
    covered: ClassVar[bool] = False
    # Whether server["w"] follows the mean of a round's replies, and nothing else: then [server]
    # optimizer can follow it.
    averages: ClassVar[bool] = True
    # The settings that switch off what the method claims, for an honest comparison; and the
    # registered method, if there is one, that equals it under these settings.
    control: ClassVar[dict[str, Any] | None] = None
    control_twin: ClassVar[str | None] = None
    new_client_start: ClassVar[str] = "its global model"  # in words: what a new client starts from
    grid: ClassVar[dict[str, list[Any]]] = {}  # what a sweep tries beside learning rates
    # What the personal model is made of; where it is "own", `public` is empty.
    personal_from: ClassVar[Source] = "global"
    # False where no frame of a client's class shares (personal.frame) makes sense: the method has
    # one of its own, or no global classifier.
    frames: ClassVar[bool] = True

    # What travels and is averaged: all | body | head | not-norm | a pattern of names | not: and a
    # pattern. A field of methods that leave the choice to the user.
    shared = "all"

    train: TrainConfig = field(default_factory=TrainConfig)
    personal: PersonalConfig = field(default_factory=PersonalConfig)  # the engine's business

    def __post_init__(self) -> None:
        check_bounds(self, f"method.{self.name}")

    def at(self, round: int, rounds: int) -> Self:
        """This method as of a round: `train` with what the schedule has come to."""
        train = self.train.at(round, rounds)
        return self if train is self.train else replace(self, train=train)

    @classmethod
    def usual(cls) -> PersonalConfig:
        """How this method's personal models are made unless an experiment says otherwise."""
        found = cls.__dataclass_fields__["personal"].default_factory
        return found()  # type: ignore[operator,no-any-return]

    @property
    def steps(self) -> TrainConfig:
        """How this method's ordinary SGD steps are taken: [train] under the momentum policy."""
        if self.train.momentum_policy == "official" and not self.official_momentum:
            return replace(self.train, momentum=0.0)
        return self.train

    def keep(self, **buffers: Tensor) -> State:
        """Momentum buffers for the client's next participation, if they are kept at all."""
        return {} if self.train.reset_momentum else dict(buffers)

    def check_model(self, task: Task) -> None:
        """Raise a UserError if the method cannot be used with this model."""

    def no_privacy(self) -> str | None:
        """Why the method cannot be run with privacy, and what to do instead; None if it can."""
        return None

    def images(self, n: int) -> int:
        """Training samples a client with ``n`` of them steps over in a round."""
        size = min(self.train.batch_size or n, n)
        return self.train.epochs * (n // size) * size

    # -- the server's side of a round --------------------------------------------------------------

    def init_server(self, w0: Tensor, federation: FederationInfo) -> State:
        w, own = federation.layout.split(self.shared, w0)
        return {"w": w, "own": own} if len(own) else {"w": w}

    def messages(self, server: State, cohort: Sequence[int], rng: ServerRng) -> dict[int, Message]:
        """What the server sends to each client of the round."""
        return {i: {"w": server["w"]} for i in cohort}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        """The new server state from whichever clients answered."""
        if not updates:
            return server
        return {**server, "w": mean(updates, "w", around=server["w"])}

    # -- the client's side -------------------------------------------------------------------------

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        _, own = client.federation.layout.split(self.shared, w0)
        return {"own": own} if len(own) else {}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        """The client's work of one round: its new state, and what it sends back."""
        raise NotImplementedError

    # -- what comes of it --------------------------------------------------------------------------

    def public(self, server: State) -> Message:
        """What a client needs of the server to be scored; empty: only its own state counts."""
        return {"w": server["w"]}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        """The client's personalized model as one flat vector."""
        return task.layout.join(self.shared, public["w"], state.get("own"))

    def share(self, state: State, client: ClientInfo) -> Update:
        """What each client gives once, after the last round, for `global_model`."""
        return {"own": state["own"], "n": client.n}

    def global_model(self, task: Task, server: State, shares: Mapping[int, Update]) -> Tensor:
        """The model a new client starts from: with the mean of the clients' own parts, or without
        any of these the one that everybody started from."""
        own = Mean()(shares, "own") if shares else server.get("own")
        return task.layout.join(self.shared, server["w"], own)

    def export(self, server: State) -> dict[str, Any]:
        """What a run keeps of the server's state beside models, as arrays for a file."""
        return {}

    # -- what the engine asks ----------------------------------------------------------------------

    def shares_of(self, layout: Layout) -> dict[str, Kind]:
        """What `share` gives with this model: nothing where an own part is wanted and none is."""
        if "own" in self.shares.values() and not layout.own(self.shared).size:
            return {}
        return self.shares

    def twin(self) -> str | None:
        """The registered method that equals this one's control, with these settings."""
        return self.control_twin


def need_base(method: str, task: Task) -> None:
    """For methods that train the base by itself."""
    if not task.layout.b:
        raise UserError(f"methods: {method!r} needs a model with layers before its head")
