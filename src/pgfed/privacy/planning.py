"""What a method will release before it runs, and the noise that goes with it.

No table of methods: the method itself is run dry, over two rounds and with nothing computed, and
what it asks for is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pgfed.config.privacy import Privacy
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm, ClientInfo, FederationInfo
from pgfed.methods.randomness import Rng, ServerRng, draw_cohort
from pgfed.methods.values import Message, State
from pgfed.model.layout import Layout
from pgfed.model.private.noise import Keyed
from pgfed.model.private.policy import (
    COUNTS,
    GRADIENT,
    ONCE,
    Meter,
    Policy,
    Releases,
    Unit,
    Unplanned,
)
from pgfed.model.private.units import PrivateShard, SamplesAsked
from pgfed.model.private.view import PrivateTask, nothing, sealed
from pgfed.model.task import Task
from pgfed.privacy import accounting
from pgfed.privacy.accounting import Spent

LITTLE = 3.0  # signal over noise, below which little is learned


def declared(units: int) -> int:
    """How many units a client says it has: rounded down to two digits."""
    scale = int(10 ** max(0, len(str(units)) - 2))
    return units // scale * scale


def gives_nothing(algorithm: Algorithm, layout: Layout) -> bool:
    """Whether nothing of this method leaves a client."""
    return not algorithm.leaves and not algorithm.shares_of(layout)


def check_method(name: str, algorithm: Algorithm, layout: Layout) -> None:
    """Refuse what cannot be charged."""
    reason = algorithm.no_privacy()
    if reason is None and not algorithm.covered and algorithm.shares_of(layout):
        reason = "its clients share parts that are trained on exact gradients"
    if reason is not None:
        raise UserError(f"methods: {name!r} cannot be run with privacy: {reason}")
    if ":" in algorithm.train.augment:
        raise UserError(
            f"train.augment: found {algorithm.train.augment!r}; a function of one's own may mix "
            "samples, which privacy cannot bound; allowed: none, flip-crop"
        )
    if algorithm.train.precision != "float32":
        raise UserError(
            f"train.precision: found {algorithm.train.precision!r}; under privacy each sample's "
            "gradient is bounded exactly; allowed: float32"
        )


def participations(
    seed: int, rounds: int, clients: int, cohort: int, keys: Sequence[int] | None
) -> list[int]:
    """How often each client is drawn: known to all before the run."""
    drawn = Counter(
        i for t in range(1, rounds + 1) for i in draw_cohort(seed, t, clients, cohort, keys)
    )
    return [drawn[i] for i in range(clients)]


def dry_run(
    algorithm: Algorithm, task: Task, info: FederationInfo, size: int, table: Privacy, rounds: int
) -> Releases:
    """What a participation of a client that says it has ``size`` units releases at most."""
    who = algorithm.name
    policy = Policy(size, table.clip, {}, 1.0, personal=table.personal)
    units = nothing(task)
    w0 = task.initial()
    known = replace(info, start=lambda k: w0.clone(), samples=(size,) * info.clients)
    clients = [0, 1] if info.clients > 1 else [0]
    server = algorithm.init_server(w0, known)
    states = {i: algorithm.init_client(w0, ClientInfo(i, size, info)) for i in clients}
    most: Releases = Counter()
    for t in (1, 2):
        rng = ServerRng(0, t)
        now = algorithm.at(t, rounds)
        updates = {}
        for i, message in now.messages(server, clients, rng).items():
            view = PrivateTask(
                task, policy, Keyed(), Meter(), who=who, offers_home=is_ours(algorithm), dry=True
            )
            data = PrivateShard(units, size, who, partial(view.counts, units))
            states[i], updates[i] = now.local_update(view, states[i], message, data, Rng(0, i, t))
            most |= view.meter.releases
        server = now.aggregate(server, updates, Mean(), rng)
    if algorithm.covered:
        for i in clients:
            _check_covered(algorithm, task, states[i], algorithm.public(server), i, size)
    return most


def _check_covered(
    algorithm: Algorithm, task: Task, state: State, public: Message, client: int, size: int
) -> None:
    """A model that may leave must be made without samples: a class may have the word from another
    that it follows, and not what it stands for."""
    view, data = sealed(task, size, algorithm.name)
    try:
        algorithm.personal_model(view, state, public, data, Rng(0, client, 3))
    except (SamplesAsked, Unplanned):
        raise SamplesAsked(
            f"{algorithm.name} says that its personal model is covered, and makes it of samples "
            "in personal_model; say covered = False"
        ) from None


def is_ours(algorithm: Algorithm) -> bool:
    return type(algorithm).__module__.startswith("pgfed.")


@dataclass(frozen=True)
class Plan:
    """What one client releases under one method (and seed), and what that comes to."""

    size: int
    unit: Unit
    participations: int
    releases: Releases  # of a participation
    noise: Mapping[str, float]
    spent: Spent
    clip: float
    d: int

    @property
    def total(self) -> Releases:
        return total_of(self.releases, self.participations)

    def count(self, gradients: bool) -> int:
        """All of one sort: of draws, or over all units."""
        return sum(n for (kind, _), n in self.total.items() if (kind == GRADIENT) == gradients)

    @property
    def kappa(self) -> float:
        """Signal over noise, if all units' gradients agreed: B sqrt(N) / (sigma sqrt(d)).

        Without end where there is no noise, as for a client that is never drawn.
        """
        sigma = self.noise.get(GRADIENT, 0.0)
        n = self.count(gradients=True)
        batch = max((q * self.size for (kind, q) in self.releases if kind == GRADIENT), default=0.0)
        return batch * math.sqrt(n) / (sigma * math.sqrt(self.d)) if sigma * n else math.inf

    def policy(self, table: Privacy, loss_scale: float) -> Policy:
        return Policy(
            self.size,
            table.clip,
            dict(self.noise),
            loss_scale,
            self.unit,
            table.personal,
            dict(self.releases),
        )

    def record(self) -> dict[str, object]:
        """As files hold it."""
        return {
            "epsilon": None if math.isinf(self.spent.epsilon) else self.spent.epsilon,
            "delta": self.spent.delta,
            "unit": self.unit,
            "size": self.size,
            "clip": self.clip,
            "noise": dict(self.noise),
            "participations": self.participations,
            "releases": [
                {"kind": kind, "q": q, "count": n} for (kind, q), n in sorted(self.total.items())
            ],
            "accountant": self.spent.accountant,
        }


def total_of(releases: Releases, participations: int) -> Releases:
    """Of all participations; what is released once stays once."""
    return Counter(
        {(kind, q): n if kind in ONCE else n * participations for (kind, q), n in releases.items()}
    )


def make_plan(
    table: Privacy,
    releases: Releases,
    *,
    size: int,
    unit: Unit,
    participations: int,
    d: int,
) -> Plan:
    """The plan of one client. With a noise multiplier and epsilon, as often as that allows."""
    check_delta(table, size)
    times = min(participations, table.participations or participations)
    noises, spent = _noise(table, releases, times)
    if table.noise_multiplier is not None and table.epsilon is not None:
        total = partial(total_of, releases)
        times = longest(times, total, noises, table.epsilon, table.delta)
        spent = accounting.spent(accounting.history(total_of(releases, times), noises), table.delta)
    return Plan(size, unit, times, releases, noises, spent, table.clip, d)


def check_delta(table: Privacy, size: int) -> None:
    if table.delta >= 1 / size:
        raise UserError(
            f"privacy.delta: found {table.delta:g}; allowed: below 1 / size = {1 / size:.2g}"
        )


def _noise(table: Privacy, releases: Releases, times: int) -> tuple[dict[str, float], Spent]:
    total = total_of(releases, max(1, times))
    if table.noise_multiplier is None:
        assert table.epsilon is not None, "one of the two is given"
        return accounting.planned(total, table.epsilon, table.delta)
    noises = accounting.noise(total, table.noise_multiplier)
    return noises, accounting.spent(accounting.history(total, noises), table.delta)


def longest(
    most: int,
    total: Callable[[int], Releases],
    noises: Mapping[str, float],
    epsilon: float,
    delta: float,
) -> int:
    """How many of at most so many participations stay within epsilon with this noise; ``total``:
    what the first so many of them release."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        history = accounting.history(total(middle), noises)
        fits = accounting.spent(history, delta).epsilon <= epsilon
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def dry_or_refuse(
    name: str,
    algorithm: Algorithm,
    task: Task,
    info: FederationInfo,
    size: int,
    table: Privacy,
    rounds: int,
) -> Releases:
    """As `dry_run`; a method that asks for what privacy does not give is refused."""
    try:
        return dry_run(algorithm, task, info, size, table, rounds)
    except SamplesAsked as error:
        raise UserError(f"methods: {name!r} cannot be run with privacy: {error}") from None


def needs_scale(releases: Releases) -> bool:
    """Whether losses are summed, so that their bound must be known."""
    return any(kind not in (GRADIENT, COUNTS) for kind, _ in releases)
