"""[train]: optimizers, decay, clipping, schedules, against torch's own and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.config.experiment import load, make_methods
from pgfed.data.federation import Shard
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods import Algorithm
from pgfed.methods.contract import ClientInfo, FederationInfo
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.lg_fedavg import LGFedAvg
from pgfed.methods.pfedme import PFedMe
from pgfed.methods.pgfed import PGFed
from pgfed.methods.randomness import Rng
from pgfed.methods.registry import METHODS, get
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import head_then_base, sgd
from pgfed.model.task import Task
from pgfed.testing import (
    TRAIN,
    check_equal,
    check_resumes,
    check_serial_is_process,
    outcome,
    started,
)

TRAINS = [
    TrainConfig(epochs=2, batch_size=4, lr=0.01, optimizer="adamw", weight_decay=0.3),
    TrainConfig(epochs=2, batch_size=4, lr=0.01, optimizer="adamw", momentum=0.0, clip=0.2),
    TrainConfig(epochs=2, batch_size=4, lr=0.05, weight_decay=0.3, clip=0.2),
]
ALL = replace(TRAIN, lr=0.01, optimizer="adamw", weight_decay=0.01, clip=1.0, schedule="cosine")


def task_and_twin() -> tuple[Task, nn.Module, Shard]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    twin = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    twin.load_state_dict(module.state_dict())
    return Task(module, (4,)), twin, Shard(torch.randn(18, 4), torch.randint(3, (18,)))


def of_torch(moving: list[nn.Parameter], train: TrainConfig) -> torch.optim.Optimizer:
    if train.optimizer == "adamw":
        betas = (train.momentum, 0.999)
        return torch.optim.AdamW(moving, train.lr, betas, weight_decay=train.weight_decay)
    return torch.optim.SGD(moving, train.lr, train.momentum)


def follow(
    twin: nn.Module,
    moving: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    train: TrainConfig,
) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        if train.clip:
            nn.utils.clip_grad_norm_(moving, train.clip)
        if train.optimizer == "sgd":  # torch's own decay of SGD is a term of the loss
            with torch.no_grad():
                for p in moving:
                    p.mul_(1 - train.lr * train.weight_decay)
        optimizer.step()


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("train", TRAINS)
def test_steps_are_those_of_torch_over_several_participations(train: TrainConfig) -> None:
    task, twin, data = task_and_twin()
    theta, kept = task.initial(), {}
    moving = list(twin.parameters())
    optimizer = of_torch(moving, train)
    for t in (1, 2, 3):
        rng = Rng(0, 0, t)
        theta, kept = sgd(task, theta, data, rng, train, kept)
        follow(twin, moving, optimizer, list(task.batches(data, 4, rng, epochs=2)), train)
        torch.testing.assert_close(theta, flat(twin), rtol=0, atol=2e-6)


@pytest.mark.parametrize("train", TRAINS)
def test_head_and_base_each_have_steps_of_their_own(train: TrainConfig) -> None:
    task, twin, data = task_and_twin()
    theta, kept = task.initial(), {}
    base, head = list(twin[0].parameters()), list(twin[2].parameters())
    optimizers = of_torch(base, train), of_torch(head, train)
    for t in (1, 2):
        rng = Rng(0, 0, t)
        theta, kept = head_then_base(task, theta, data, rng, train, kept, head_epochs=3)
        first = list(task.batches(data, 4, rng, epochs=3, purpose="head"))
        follow(twin, head, optimizers[1], first, train)
        follow(twin, base, optimizers[0], list(task.batches(data, 4, rng, epochs=2)), train)
        torch.testing.assert_close(theta, flat(twin), rtol=0, atol=2e-6)


def test_what_defines_a_step_is_not_in_the_gradient_pass() -> None:
    task, twin, data = task_and_twin()
    view = task.view(data)
    view.augment = lambda x, y, draw: (torch.zeros_like(x), y)
    train = replace(TRAINS[0], clip=1e-3)
    pgfed = PGFed(train=train, full_grad=True)
    info = ClientInfo(0, len(data), FederationInfo(1, 1, task.layout))
    state = pgfed.init_client(task.initial(), info)
    message = {"w": task.initial()}
    _, update = pgfed.local_update(view, state, message, data, Rng(0, 0, 1))
    assert not torch.equal(update["w"], task.initial())
    twin.load_state_dict(task.named(update["w"]))
    F.cross_entropy(twin(data.x), data.y).backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
    torch.testing.assert_close(update["gradient"], expected, rtol=0, atol=1e-6)


def test_cosine_goes_from_the_rate_towards_nothing() -> None:
    train = TrainConfig(lr=0.2, schedule="cosine")
    rates = [train.at(t, 4).lr for t in (1, 2, 3, 4)]
    expected = [0.2 * 0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]
    assert rates == pytest.approx(expected)
    assert TrainConfig(lr=0.2).at(3, 4) == TrainConfig(lr=0.2)


def test_the_engine_hands_over_the_settings_of_the_round() -> None:
    seen: list[tuple[str, float]] = []

    class Listening(FedAvg):
        def messages(self, server: Any, cohort: Any, rng: Any) -> Any:
            seen.append(("server", self.train.lr))
            return super().messages(server, cohort, rng)

        def local_update(self, *args: Any) -> Any:
            seen.append(("client", self.train.lr))
            return super().local_update(*args)

    train = replace(TRAIN, lr=0.4, schedule="cosine")
    with started(Listening(train=train), rounds=4) as run:
        for t in range(1, 5):
            seen.clear()
            run.step()
            rate = train.at(t, 4).lr
            assert seen == [("server", rate)] + 3 * [("client", rate)]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "pfedme"])
def test_every_method_honours_them(method: str) -> None:
    def trained(train: TrainConfig) -> dict[str, Any]:
        with started(get(method)(train=train), rounds=3) as run:
            found = outcome(run)
            assert all(not record["dropped"] for record in run.history)
            assert all(v.isfinite().all() for k, v in found.items() if k.startswith("model"))
            return {k: v for k, v in found.items() if k.startswith("model")}

    plain = trained(TRAIN)
    for change in (
        {"optimizer": "adamw"},
        {"weight_decay": 0.5},
        {"clip": 0.01},
        {"schedule": "cosine"},
    ):
        other = trained(replace(TRAIN, **change))
        differ = any(not torch.equal(plain[k], other[k]) for k in plain)
        assert differ, f"{method} ignores {change}"


@pytest.mark.parametrize("method", ["fedavg", "fedrod", "fedrep", "pgfed"])
def test_what_is_kept_travels_and_is_taken_up_again(method: str) -> None:
    cls: type[Algorithm] = get(method)
    check_serial_is_process(cls, train=ALL)
    check_resumes(cls, train=ALL)


def test_moments_are_kept_unless_they_are_reset() -> None:
    def states(reset: bool) -> Run:
        train = replace(ALL, reset_momentum=reset)
        with started(FedAvg(train=train)) as run:
            outcome(run)
        return run

    run = states(reset=False)
    kept = next(run.state(i) for i in range(6) if run.touched(i))
    assert kept.keys() == {"v", "v_squares", "v_steps"}
    assert kept["v_steps"][0] == kept["v_steps"][1] > 0
    assert not states(reset=True).state(0)


@pytest.mark.parametrize("change", [{"optimizer": "adamw"}, {"weight_decay": 0.1}, {"clip": 1.0}])
def test_loops_of_their_own_refuse_by_name(change: dict[str, Any]) -> None:
    (key,) = change
    with pytest.raises(UserError, match=f"^method.pfedme.{key}: found .* plain gradient steps"):
        PFedMe(train=replace(TrainConfig(), **change))
    task, _, _ = task_and_twin()
    two_pass = LGFedAvg(train=replace(TrainConfig(), **change), lg_two_pass=True)
    with pytest.raises(UserError, match=f"^method.lg-fedavg.{key}: found"):
        two_pass.check_model(task)


def test_a_method_derived_for_sgd_says_so(caplog: pytest.LogCaptureFixture) -> None:
    words = [
        'methods=["fedavg","feddyn","pgfed"]',
        "train.optimizer=adamw",
        "method.pgfed.optimizer=sgd",
    ]
    make_methods(load(None, words))
    (note,) = caplog.messages
    assert note.startswith("feddyn: was derived for SGD (")
    assert note.endswith("and runs with adamw")


def test_feddyns_clip_is_that_of_train() -> None:
    made, experiment = make_methods(load(None, ['methods=["feddyn"]', "method.feddyn.clip=0.5"]))
    assert made["feddyn"].train.clip == 0.5
    assert experiment.train.clip == 0.0
    words = ['methods=["feddyn"]', "method.feddyn.clip=-1"]
    with pytest.raises(UserError, match=r"method\.feddyn\.clip"):
        make_methods(load(None, words))


def test_equal_settings_give_equal_bits() -> None:
    with started(FedAvg(train=ALL)) as one, started(FedAvg(train=ALL)) as two:
        check_equal(outcome(one), outcome(two), "run twice")
