"""Is my algorithm right? One call checks what every engine relies on.

    from pgfed.testing import check_algorithm
    check_algorithm(MyMethod)

The same checks run over every method that pgfed ships.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.exchange.compression import Compression
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.durable import state_from_bytes, state_to_bytes
from pgfed.engine.storage.store import ClientStore
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng, ServerRng, draw_cohort
from pgfed.methods.values import State
from pgfed.model.flat import Stepped
from pgfed.model.task import Beside, Task
from pgfed.testing.material import batch_norm_model as batch_norm_model
from pgfed.testing.material import frozen_and_tied_model as frozen_and_tied_model
from pgfed.testing.material import small_model as small_model
from pgfed.testing.material import text_federation as text_federation
from pgfed.testing.material import text_model as text_model
from pgfed.testing.material import trivial_federation as trivial_federation
from pgfed.testing.private import check_private as check_private
from pgfed.testing.private import check_private_covered as check_private_covered
from pgfed.testing.private import check_private_home as check_private_home
from pgfed.testing.running import CLIENTS as CLIENTS
from pgfed.testing.running import COHORT as COHORT
from pgfed.testing.running import ROUNDS as ROUNDS
from pgfed.testing.running import TRAIN as TRAIN
from pgfed.testing.running import check_equal as check_equal
from pgfed.testing.running import flat_and_copied as flat_and_copied
from pgfed.testing.running import make as make
from pgfed.testing.running import outcome as outcome
from pgfed.testing.running import started as started

# -- the checks ----------------------------------------------------------------------------------


def check_inputs_unchanged(cls: type[Algorithm], **fields: Any) -> None:
    """No method changes what it is given; all that travels or stays is flat."""
    algorithm = make(cls, fields)
    with started(algorithm) as run:
        task, data, side = run.task, run.federation, run._side
        server = run.server
        kept: list[tuple[str, State, State]] = []

        def watch(what: str, values: State) -> State:
            kept.append((what, values, flat_and_copied(values, what)))
            return values

        w0 = {"w0": side.w0}
        watch("w0", w0)
        states: dict[int, State] = {}
        for t in range(1, 4):
            watch("server state", server)
            cohort = draw_cohort(3, t, CLIENTS, COHORT)
            messages = algorithm.messages(server, cohort, ServerRng(3, t))
            assert sorted(messages) == cohort, "messages: one for each client of the cohort"
            updates = {}
            for i in cohort:
                state = states.get(i) or algorithm.init_client(side.w0, side.client(i))
                watch("client state", state)
                watch("message", messages[i])
                new, update = algorithm.local_update(
                    task, state, messages[i], data.train(i), Rng(3, i, t)
                )
                states[i] = new
                updates[i] = watch("update", update)
            server = algorithm.aggregate(server, updates, Mean(), ServerRng(3, t))
            public = watch("public", algorithm.public(server))
            for i, state in states.items():
                watch("client state", state)
                model = algorithm.personal_model(task, state, public, data.train(i), Rng(3, i, t))
                assert model.shape == (task.layout.n,), "personal_model: one flat vector"
        shares = {
            i: watch("share", algorithm.share(states.get(i) or run.state(i), side.client(i)))
            for i in range(CLIENTS if algorithm.shares_of(task.layout) else 0)
        }
        watch("server state", server)
        model = algorithm.global_model(task, server, shares)
        assert model.shape == (task.layout.n,), "global_model: one flat vector"
        for what, values, before in kept:
            check_equal(before, values, f"{what} was changed in place")


def check_updates_declared(cls: type[Algorithm], **fields: Any) -> None:
    """What leaves a client is what `leaves` declares: every reply passes the server's check."""
    with started(make(cls, fields)) as run:
        while not run.finished:
            for drop in run.step()["dropped"]:
                raise AssertionError(
                    f"the reply of client {drop['client']} is refused: {drop['reason']} "
                    f"(leaves = {cls.leaves})"
                )


def check_home_stays(cls: type[Algorithm], **fields: Any) -> None:
    """Nothing that is sent, then or later, depends on what `task.home` gave.

    What is computed at home is exact, and not paid for under privacy: it must stay there. So the
    method runs again with a home that gives nothing but zeros, and must send the same.
    """
    sent: list[dict[str, Any]] = []
    for backend in (Serial, _Homeless):
        algorithm = make(cls, fields)
        seen: dict[str, Any] = {}
        with started(algorithm, backend(trivial_federation(), small_model), rounds=6) as run:
            _listen(algorithm, seen)
            while not run.finished:
                run.step()
            seen["global model"] = run.global_model()
        sent.append(seen)
    check_equal(sent[0], sent[1], "with and without what task.home gave")


def _listen(algorithm: Algorithm, seen: dict[str, Any]) -> None:
    """Note every update that the method's server is given."""
    aggregate = algorithm.aggregate

    def listening(server: State, updates: Any, mean: Mean, rng: ServerRng) -> State:
        for i, update in updates.items():
            seen.update({f"update {rng.round} {i} {k}": v for k, v in update.items()})
        return aggregate(server, updates, mean, rng)

    object.__setattr__(algorithm, "aggregate", listening)


class _Zero(Task):
    """A task at which every gradient is zero."""

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
        nowhere = torch.zeros_like(out)
        return super().add_gradient(
            theta.clone(), x, y, nowhere, part=part, training=training, beside=beside
        )

    def add_head_gradient(self, theta: Tensor, z: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return super().add_head_gradient(theta, z, y, torch.zeros_like(out))

    def hessian_product(self, theta: Tensor, x: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        return torch.zeros_like(vector)


class _WithZeroHome(Task):
    """A task whose home gives nothing."""

    @property
    def home(self) -> Task:
        home = copy.copy(self)
        home.__class__ = _Zero  # type: ignore[assignment]
        return home


class _Homeless(Serial):
    """Clients are given a task whose home gives nothing."""

    def task(self, seed: int) -> Task:
        task = super().task(seed)
        task.__class__ = _WithZeroHome
        return task


def check_states_travel(cls: type[Algorithm], **fields: Any) -> None:
    """States, messages and updates survive a file without pickle."""
    with started(make(cls, fields)) as run:
        while not run.finished:
            run.step()
        messages = run.algorithm.messages(run.server, [0, 1], ServerRng(3, run.round + 1))
        for values in [run.server, messages[0], *(run.state(i) for i in range(CLIENTS))]:
            check_equal(values, state_from_bytes(state_to_bytes(values)), "after a file")


def check_deterministic(cls: type[Algorithm], **fields: Any) -> None:
    """The same seed gives the same bits."""
    with started(make(cls, fields)) as one, started(make(cls, fields)) as two:
        check_equal(outcome(one), outcome(two), "run twice")


def check_serial_is_process(cls: type[Algorithm], **fields: Any) -> None:
    """Worker processes give the bits of one process."""
    with started(make(cls, fields)) as run:
        expected = outcome(run)
    pool = Process(trivial_federation(), small_model, workers=2)
    with started(make(cls, fields), pool) as run:
        check_equal(expected, outcome(run), "serial and process")


def check_resumes(cls: type[Algorithm], **fields: Any) -> None:
    """Interrupted = uninterrupted, from a checkpoint on disk."""
    with started(make(cls, fields)) as run:
        expected = outcome(run)
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints(Path(folder))
        with started(make(cls, fields), store=ClientStore(saved.clients)) as run:
            for _ in range(2):
                run.step()
                saved.save(run)
            saved.wait()
            history = run.history
        with started(make(cls, fields), store=ClientStore(saved.clients)) as run:
            assert saved.restore(run, history)
            check_equal(expected, outcome(run), "resumed")


def check_missing_replies(cls: type[Algorithm], **fields: Any) -> None:
    """Lost replies are normal: some in one round, all of them in another."""
    lost = {2: {0, 1, 4}, 3: set(range(CLIENTS))}
    options: dict[str, Any] = {"lose": lambda t, i: i in lost.get(t, ()), "rounds": 6}
    with started(make(cls, fields), **options) as run:
        before: State = {}
        while not run.finished:
            if run.round == 2:
                before = {f"{i} {k}": v for i in range(CLIENTS) for k, v in run.state(i).items()}
            run.step()
            if run.round == 3:
                after = {f"{i} {k}": v for i in range(CLIENTS) for k, v in run.state(i).items()}
                check_equal(before, after, "a lost reply must leave the client's state")
        assert np.isfinite(np.delete(run.score, 3)).all()
        assert torch.isfinite(run.global_model()).all()


def check_never_sampled(cls: type[Algorithm], **fields: Any) -> None:
    """A client that was never drawn has a personalized model and a score."""
    with started(make(cls, fields), rounds=1) as run:
        run.step()
        idle = [i for i in range(CLIENTS) if not run.touched(i)]
        assert idle
        for i, model in run.personal_models(idle):
            assert torch.isfinite(model).all()
            assert np.isfinite(run.score[i]) or i == 3


def check_single_sample(cls: type[Algorithm], **fields: Any) -> None:
    """A client with one training sample takes part like any other."""
    with started(make(cls, fields), rounds=8) as run:
        while not run.finished:
            assert run.step()["dropped"] == []
        assert run.touched(4), "the client with one sample was not drawn"
        assert torch.isfinite(run.personal_model(4)).all()


def check_scoring_is_free(cls: type[Algorithm], **fields: Any) -> None:
    """Scoring has no side effect on training."""
    with started(make(cls, fields), rounds=13) as run:
        scored = outcome(run)
    with started(make(cls, fields), rounds=13, evaluate_every=7) as run:
        rare = outcome(run)
    for out in (scored, rare):
        for key in [k for k in out if k.startswith("round ")]:
            del out[key]
    check_equal(scored, rare, "scored each round or seldom")


def check_batch_norm(cls: type[Algorithm], **fields: Any) -> None:
    """Buffers travel as the third slice: training with batch norm stays finite, and repeatable."""
    results = []
    for _ in range(2):
        backend = Serial(trivial_federation(), batch_norm_model)
        with started(make(cls, fields), backend) as run:
            results.append(outcome(run))
            assert all(not record["dropped"] for record in run.history)
    check_equal(results[0], results[1], "batch norm")


def check_frozen_and_tied(cls: type[Algorithm], **fields: Any) -> None:
    """What is frozen stays as it is and out of every vector; what is tied stays one."""
    with started(make(cls, fields), Serial(trivial_federation(), frozen_and_tied_model)) as run:
        before = {name: value.clone() for name, value in run.task.frozen().items()}
        found = outcome(run)
        assert all(not record["dropped"] for record in run.history)
        check_equal(before, run.task.frozen(), "frozen values")
        for key in [k for k in found if k.startswith("model ")]:
            values = run.task.named(found[key])
            assert not values.keys() & before.keys()
            assert torch.equal(values["1.weight"], values["3.weight"])


def check_tokens(cls: type[Algorithm], **fields: Any) -> None:
    """Inputs may be integers."""
    with started(make(cls, fields), Serial(text_federation(), text_model)) as run:
        outcome(run)
        assert all(not record["dropped"] for record in run.history)
        assert torch.isfinite(run.global_model()).all()


def check_compressed(cls: type[Algorithm], **fields: Any) -> None:
    """With fewer bytes: every reply counts, and interrupted = uninterrupted."""
    with started(make(cls, fields)) as run:
        plain = [run.step() for _ in range(run.rounds)]
    for compression in (Compression("int8"), Compression("top-k", 0.1)):
        options: dict[str, Any] = {"compression": compression}
        with started(make(cls, fields), **options) as run:
            expected = outcome(run)
            for record, before in zip(run.history, plain, strict=True):
                assert record["dropped"] == [], f"{compression.kind}: {record['dropped']}"
                for way in ("bytes_down", "bytes_up"):
                    assert record[way] <= before[way], f"{compression.kind}: more {way}"
        if compression.kind == "top-k":  # which is kept in the same places
            continue
        with tempfile.TemporaryDirectory() as folder:
            saved = Checkpoints(Path(folder))
            with started(make(cls, fields), store=ClientStore(saved.clients), **options) as run:
                run.step()
                saved.save(run)
                saved.wait()
                history = run.history
            with started(make(cls, fields), store=ClientStore(saved.clients), **options) as run:
                assert saved.restore(run, history)
                check_equal(expected, outcome(run), "compressed and resumed")


def check_learns(cls: type[Algorithm], **fields: Any) -> None:
    """A trivial task is learned by every client."""
    longer = {"train": replace(TRAIN, epochs=5), **fields}
    with started(make(cls, longer), rounds=12) as run:
        while not run.finished:
            run.step()
        reached = float(np.nanmean(run.score))
        assert reached > 0.8, f"mean accuracy {reached:.2f} on a trivial task"


CHECKS: dict[str, Callable[..., None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and name != "check_equal"
}


def check_algorithm(cls: type[Algorithm], **fields: Any) -> None:
    """Run all checks on a method; ``fields`` are its hyper-parameters. Raises AssertionError."""
    for check in CHECKS.values():
        check(cls, **fields)
