"""Methods that average a part of the model are one method with different masks (Q1, Q10).

`Masked` trains the whole model everywhere and averages only the entries under a mask: nothing
averaged is Local, the base FedPer, the head LG-FedAvg, everything FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from numerics.reference import problem
from numerics.setup import federation, network
from numerics.stepping import CLIENTS, COHORT, LOST, NET, PROBLEM, ROUNDS, SEED, TRAIN, Batch
from pgfed.data.federation import Shard
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm, ClientInfo
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedper import FedPer
from pgfed.methods.lg_fedavg import LGFedAvg
from pgfed.methods.local import Local
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State, Update
from pgfed.model.layout import Layout
from pgfed.model.networks import Factory
from pgfed.model.task import Task

Mask = Callable[[Layout], Tensor]


def nothing(layout: Layout) -> Tensor:
    return torch.zeros(layout.n, dtype=torch.bool)


def head(layout: Layout) -> Tensor:
    mask = nothing(layout)
    mask[layout.head] = True
    return mask


def body(layout: Layout) -> Tensor:
    return ~head(layout)


def everything(layout: Layout) -> Tensor:
    return ~nothing(layout)


@dataclass(frozen=True, kw_only=True)
class Masked(Algorithm):
    name = "masked"
    summary = "the entries under a mask are averaged"
    leaves = {"w": "model", "n": "count"}

    mask: Mask

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"w": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w = self.personal_model(task, state, message, data, rng)
        w, kept = sgd(task, w, data, rng, self.train, state)
        return {"w": w, **self.keep(**kept)}, {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        return torch.where(self.mask(task.layout), public["w"], state["w"])


def normed(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """With buffers: they belong to the body."""
    return nn.Sequential(nn.Linear(input_shape[0], 6), nn.BatchNorm1d(6), nn.Linear(6, classes))


MODELS = {"plain": partial(network, hidden=NET.h), "batch_norm": normed}


def run_of(
    algorithm: Algorithm,
    model: Factory,
    clients: list[Batch] = PROBLEM,
    cohort: int = COHORT,
) -> Run:
    data = federation(clients)
    return Run(
        algorithm,
        data,
        Serial(data, model),
        seed=SEED,
        rounds=ROUNDS,
        cohort=cohort,
        lose=lambda t, i: (t, i) == LOST,
    )


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(
    ("method", "mask", "reset"),
    [
        (Local, nothing, False),
        (FedPer, body, False),
        (LGFedAvg, head, True),  # its momentum starts anew in every round
        (FedAvg, everything, False),
    ],
    ids=["local", "fedper", "lg-fedavg", "fedavg"],
)
def test_one_method_with_a_mask(
    method: type[Algorithm], mask: Mask, reset: bool, model: Factory
) -> None:
    found = run_of(method(train=TRAIN), model)
    expected = run_of(Masked(train=replace(TRAIN, reset_momentum=reset), mask=mask), model)
    for _ in range(ROUNDS):
        found.step()
        expected.step()
        for i in range(CLIENTS):
            assert torch.equal(found.personal_model(i), expected.personal_model(i))


@pytest.mark.parametrize("method", [FedAvg, FedPer, LGFedAvg])
def test_a_federation_of_one_trains_alone(method: type[Algorithm]) -> None:
    """Q10: N = M = 1."""
    train = replace(TRAIN, reset_momentum=method is LGFedAvg)
    alone = problem(1, seed=5)
    found = run_of(method(train=train), MODELS["plain"], alone, cohort=1)
    local = run_of(Local(train=train), MODELS["plain"], alone, cohort=1)
    for _ in range(ROUNDS):
        found.step()
        local.step()
        assert torch.equal(found.personal_model(0), local.personal_model(0))


def test_equal_sizes_weigh_equally() -> None:
    """Q10: with equal n_i the mean is the plain one."""
    equal = [(x[:8], y[:8]) for x, y in PROBLEM]
    run = run_of(FedAvg(train=TRAIN), MODELS["plain"], equal, cohort=4)
    message = run.algorithm.messages(run.server, [0], ServerRng(0, 1))[0]
    cohort = run.step()["cohort"]
    trained = []
    for i in cohort:
        data, rng = run.federation.train(i), Rng(SEED, i, 1)
        trained.append(run.algorithm.local_update(run.task, {}, message, data, rng)[1]["w"])
    torch.testing.assert_close(run.server["w"], torch.stack(trained).mean(0))


def test_one_full_step_descends_the_common_risk() -> None:
    """Q10: T_i = 1, full batch, no momentum: one gradient step on sum p_i f_i."""
    train = replace(TRAIN, epochs=1, batch_size=0, momentum=0.0)
    run = run_of(FedAvg(train=train), MODELS["plain"])
    w0 = run.task.initial().double().numpy()
    cohort = run.step()["cohort"]
    x, y = (np.concatenate([PROBLEM[i][k] for i in cohort]) for k in (0, 1))
    expected = w0 - train.lr * NET.gradient(w0, x, y)  # p_i f_i pools the samples
    np.testing.assert_allclose(run.server["w"].double().numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "bias"), [("plain", "head.bias"), ("batch_norm", "2.bias")])
def test_all_but_the_heads_bias(name: str, bias: str) -> None:
    """FedAvg with only that kept local."""

    def but_bias(layout: Layout) -> Tensor:
        mask = everything(layout)
        mask[layout.d - 3 : layout.d] = False
        return mask

    model = MODELS[name]
    found = run_of(FedPer(train=TRAIN, shared=f"not:{bias}"), model)
    expected = run_of(Masked(train=TRAIN, mask=but_bias), model)
    for _ in range(ROUNDS):
        record = found.step()
        expected.step()
        for i in range(CLIENTS):
            assert torch.equal(found.personal_model(i), expected.personal_model(i))
    assert record["bytes_up"] == 4 * len(record["client_seconds"]) * (found.info.layout.n - 3)
    assert len(found.state(record["cohort"][0])["own"]) == 3


def test_shared_refuses_what_fits_nothing_or_everything() -> None:
    task = run_of(FedAvg(train=TRAIN), MODELS["plain"]).task
    with pytest.raises(UserError, match=r"no parameter .* called 'fc\.bias'.*head\.bias"):
        FedPer(shared="not:fc.bias").check_model(task)
    with pytest.raises(UserError, match=r"every parameter of the model is called '\*'"):
        FedPer(shared="not:*").check_model(task)
    assert task.layout.shared("not:head.*").slices == task.layout.shared("body").slices
    assert FedPer.shared == "body"
