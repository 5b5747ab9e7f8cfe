"""A method under privacy: what it sends is charged, and depends on nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pgfed.config.privacy import Privacy
from pgfed.data.federation import Federation, Shard
from pgfed.engine.backends.base import Serial
from pgfed.engine.personal import covered
from pgfed.engine.privacy import Protection, check_method, exempt, released
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm, FederationInfo
from pgfed.methods.randomness import Rng
from pgfed.model.flat import Stepped
from pgfed.model.private.policy import Personal, Policy, Unplanned
from pgfed.model.private.units import SamplesAsked
from pgfed.model.private.view import HomeTask, PrivateTask
from pgfed.model.task import Beside, Task
from pgfed.privacy import planning
from pgfed.testing.material import small_model, trivial_federation
from pgfed.testing.running import CLIENTS, COHORT, TRAIN, check_equal, started
from pgfed.testing.running import make as _make

# A noisy step takes many times as long as another, and each is checked as the first is.
TRAIN_ONCE = replace(TRAIN, epochs=1)
KINDS = ("gradient", "pass", "losses", "counts", "scores")


def make(cls: type[Algorithm], fields: dict[str, Any]) -> Algorithm:
    return _make(cls, {"train": TRAIN_ONCE, **fields})


def protect(
    algorithm: Algorithm,
    task: Task,
    federation: Federation,
    *,
    sigma: float = 0.05,
    clip: float = 1.0,
    loss_scale: float = 2.0,
    personal: Personal = "at-home",
    sizes: dict[int, int] | None = None,
    kind: type[Protection] = Protection,
) -> Protection:
    """Every client protected with this noise, as the method's own dry run plans it."""
    info = FederationInfo(len(federation), COHORT, task.layout)
    table = Privacy(noise_multiplier=sigma, clip=clip, personal=personal)
    policies = {}
    for i in range(len(federation)):
        size = (sizes or {}).get(i, planning.declared(federation.trains_on(i)))
        releases = released(algorithm.name, algorithm, task, info, size, table, rounds=4)
        noise = dict.fromkeys(KINDS, sigma)
        policies[i] = Policy(size, clip, noise, loss_scale, "record", personal, releases)
    return kind(policies, seed=3)


def allowed(cls: type[Algorithm], fields: dict[str, Any]) -> bool:
    """Whether the method runs with privacy; one that does not is refused with its reason."""
    algorithm, task = make(cls, fields), Serial(trivial_federation(), small_model).task(3)
    refusal = ""
    try:
        check_method(cls.name, algorithm, task.layout)
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert refusal.partition("privacy: ")[2], f"refused without a reason: {refusal}"
        return False
    return not exempt(algorithm, task.layout)


def check_private(cls: type[Algorithm], **fields: Any) -> None:
    """Under privacy the method sees no sample, releases what its dry run says, and sends what it
    declares; or it is refused with a reason."""
    if not allowed(cls, fields):
        return
    for personal in ("at-home", "private"):
        algorithm, backend = make(cls, fields), Serial(trivial_federation(), small_model)
        try:
            protection = protect(algorithm, backend.task(3), backend.federation, personal=personal)
            with started(algorithm, backend, protection=protection, rounds=3) as run:
                while not run.finished:
                    record = run.step()
                    assert not record["dropped"], f"refused: {record['dropped']}"
                assert torch.isfinite(run.global_model()).all()
        except (SamplesAsked, Unplanned, UserError) as error:
            raise AssertionError(f"under privacy: {error}") from None


def check_private_home(cls: type[Algorithm], **fields: Any) -> None:
    """What is sent does not depend on what home gives: garbage there changes no update."""
    if not allowed(cls, fields):
        return
    sent = []
    for kind in (Protection, _Garbage):
        algorithm, backend = make(cls, fields), Serial(trivial_federation(), small_model)
        seen: dict[str, Any] = {}
        protection = protect(algorithm, backend.task(3), backend.federation, kind=kind)
        with started(algorithm, backend, protection=protection, rounds=3) as run:
            _listen(algorithm, seen)
            while not run.finished:
                run.step()
            seen["global model"] = run.global_model()
        sent.append(seen)
    check_equal(sent[0], sent[1], "with and without what home gave")


def check_private_covered(cls: type[Algorithm], **fields: Any) -> None:
    """A model that is declared covered follows from messages and releases: neither home nor the
    training data changes it."""
    if not (allowed(cls, fields) and covered(make(cls, fields))):
        return
    found = []
    for kind in (Protection, _Garbage):
        algorithm, backend = make(cls, fields), Serial(trivial_federation(), small_model)
        protection = protect(algorithm, backend.task(3), backend.federation, kind=kind)
        with started(algorithm, backend, protection=protection, rounds=3) as run:
            while not run.finished:
                run.step()
            public, task = algorithm.public(run.server), run.task
            models = {}
            for i in range(CLIENTS):
                data = run.federation.train(i)
                if kind is _Garbage:
                    task, data = HomeTask(run.task), _other(data)
                    task.__class__ = _GarbageHome
                rng = Rng(3, i, 9)
                models[str(i)] = algorithm.personal_model(task, run.state(i), public, data, rng)
        found.append(models)
    check_equal(found[0], found[1], "a covered model, with other training data")


def _other(data: Shard) -> Shard:
    return Shard(torch.full_like(data.x, 7.0), data.y.flip(0))


def _listen(algorithm: Algorithm, seen: dict[str, Any]) -> None:
    aggregate = algorithm.aggregate

    def listening(server: Any, updates: Any, mean: Any, rng: Any) -> Any:
        for i, update in updates.items():
            seen.update({f"update {rng.round} {i} {k}": v for k, v in update.items()})
        return aggregate(server, updates, mean, rng)

    object.__setattr__(algorithm, "aggregate", listening)


class _GarbageHome(HomeTask):
    """A home that gives gradients of nothing in particular."""

    def add_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        *,
        part: Stepped = "all",
        training: bool = True,
        beside: Beside | None = None,
    ) -> Tensor:
        out.add_(0.1)
        return torch.zeros(())


class _WithGarbage(PrivateTask):
    @property
    def home(self) -> Task:
        return _GarbageHome(self._plain)


class _Garbage(Protection):
    """Clients whose home gives garbage."""

    def view(
        self, task: Task, federation: Federation, algorithm: Algorithm, client: int, round: int
    ) -> tuple[PrivateTask, Shard]:
        view, data = super().view(task, federation, algorithm, client, round)
        view.__class__ = _WithGarbage
        return view, data
