"""Local, FedAvg and FedAvg-local against float64 numpy, and the invariants that concern them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics.reference import Array, Net, TorchNet, problem
from numerics.setup import cohorts, make_run
from pgfed.data.federation import Shard
from pgfed.engine.rounds import Run
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedavg_local import FedAvgLocal
from pgfed.methods.local import Local
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import TrainConfig
from pgfed.methods.steps import Terms, sgd
from pgfed.model.task import Task

N, M, T, SEED = 7, 3, 5, 0
PROBLEM = problem(N)
NET = Net(4, 5, 3)
METHODS: list[type[Algorithm]] = [Local, FedAvg, FedAvgLocal]
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


def close(found: Tensor, expected: Array) -> None:
    gap = np.abs(found.double().numpy() - expected).max()
    assert gap < 1e-5, gap


def identical(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(two[key])), key


class Reference:
    """The three methods' states in float64: theta, each client's own model and momentum."""

    def __init__(self, method: type[Algorithm], run: Run) -> None:
        self.goes_on = method is Local  # from its own weights, and nothing is averaged
        self.theta = run.task.initial().double().numpy()
        self.own = [self.theta] * N
        self.v = [np.zeros_like(self.theta) for _ in range(N)]
        shards = [run.federation.train(i) for i in range(N)]
        self.data = [(s.x.double().numpy(), s.y.numpy()) for s in shards]

    def round(self, t: int, cohort: list[int], train: TrainConfig, lost: list[int]) -> None:
        answered = [i for i in cohort if i not in lost]
        for i in answered:
            x, y = self.data[i]
            w = self.own[i] if self.goes_on else self.theta
            v = np.zeros_like(w) if train.reset_momentum else self.v[i]
            size = min(train.batch_size or len(y), len(y))
            for epoch in range(train.epochs):
                order = Rng(SEED, i, t).permutation(len(y), "train", epoch).numpy()
                for k in range(len(y) // size):
                    batch = order[k * size : (k + 1) * size]
                    v = train.momentum * v + NET.gradient(w, x[batch], y[batch])
                    w = w - train.lr * v
            self.own[i], self.v[i] = w, v
        if answered and not self.goes_on:
            n = {i: len(self.data[i][1]) for i in answered}
            self.theta = sum(n[i] / sum(n.values()) * self.own[i] for i in answered)


TRAINS = {
    "full-batch": TrainConfig(epochs=4, batch_size=0, lr=0.1),
    "mini-batch": TrainConfig(epochs=2, batch_size=4, lr=0.03),
    "larger-than-some": TrainConfig(epochs=2, batch_size=12, lr=0.05),
    "reset": TrainConfig(epochs=2, batch_size=4, lr=0.03, reset_momentum=True),
    "no-momentum": TrainConfig(epochs=2, batch_size=4, lr=0.1, momentum=0.0),
}


@by_method
@pytest.mark.parametrize("train", TRAINS.values(), ids=TRAINS.keys())
@pytest.mark.parametrize("lossy", [False, True], ids=["complete", "lossy"])
def test_five_rounds_equal_numpy(method: type[Algorithm], train: TrainConfig, lossy: bool) -> None:
    S = cohorts(SEED, T, N, M)
    lost = {2: S[1][:1], 3: S[2], 5: S[4][1:]} if lossy else {}
    run = make_run(
        method(train=train),
        PROBLEM,
        cohort=M,
        rounds=T,
        seed=SEED,
        lose=lambda t, i: i in lost.get(t, []),
    )
    expected = Reference(method, run)
    for t, cohort in enumerate(S, start=1):
        run.step()
        expected.round(t, cohort, train, lost.get(t, []))
        close(run.global_model(), expected.theta)
        for i in range(N):
            own = expected.theta if method is FedAvg else expected.own[i]
            close(run.personal_model(i), own)
            if run.touched(i) and not train.reset_momentum:
                close(run.state(i)["v"], expected.v[i])
            assert not (train.reset_momentum and "v" in run.state(i))


def task_and_twin() -> tuple[Task, TorchNet, Shard]:
    """A task, a module with the same values for torch.optim, and a client's samples."""
    torch.manual_seed(0)
    module, twin = TorchNet(4, 5, 3), TorchNet(4, 5, 3)
    twin.load_state_dict(module.state_dict())
    x, y = PROBLEM[0]
    return Task(module, (4,)), twin, Shard(torch.from_numpy(x).float(), torch.from_numpy(y))


def test_sgd_is_torch_sgd() -> None:
    task, twin, data = task_and_twin()
    train = TrainConfig(epochs=3, batch_size=4, lr=0.05, momentum=0.9)
    start = task.initial()
    theta, kept = sgd(task, start, data, Rng(0, 0, 1), train)
    theta, kept = sgd(task, theta, data, Rng(0, 0, 2), train, kept)
    assert torch.equal(start, task.initial())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for t in (1, 2):
        for xb, yb in task.batches(data, 4, Rng(0, 0, t), epochs=3):
            optimizer.zero_grad()
            F.cross_entropy(twin(xb), yb).backward()
            optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in twin.parameters()])
    torch.testing.assert_close(theta, flat, rtol=0, atol=1e-6)
    buffers = [optimizer.state[p]["momentum_buffer"].flatten() for p in twin.parameters()]
    torch.testing.assert_close(kept["v"], torch.cat(buffers), rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("part", ["all", "base", "head"])
def test_a_constant_term_belongs_to_the_gradient(part: Any, clip: float) -> None:
    task, twin, data = task_and_twin()
    train = TrainConfig(epochs=3, batch_size=4, lr=0.05, momentum=0.9, clip=clip)
    constant = 0.3 * torch.randn(task.d)
    seen: list[Tensor] = []
    theta, _ = sgd(
        task,
        task.initial(),
        data,
        Rng(0, 0, 1),
        train,
        terms=Terms(
            constant=constant,
            before=lambda w: seen.append(w.clone()),
            after=lambda w: seen.append(w.clone()),
        ),
        part=part,
    )
    moved = {"all": slice(None), "base": slice(task.layout.b), "head": slice(task.layout.b, None)}
    moving, terms, at = [], [], 0
    for p in twin.parameters():
        entries = range(at, at := at + p.numel())
        if entries[0] in range(task.d)[moved[part]]:
            moving.append(p)
            terms.append(constant[entries.start : entries.stop].view_as(p))
    optimizer = torch.optim.SGD(moving, lr=0.05, momentum=0.9)
    steps = 0
    for xb, yb in task.batches(data, 4, Rng(0, 0, 1), epochs=3):
        optimizer.zero_grad()
        F.cross_entropy(twin(xb), yb).backward()
        for p, term in zip(moving, terms, strict=True):
            p.grad += term
        if clip:
            nn.utils.clip_grad_norm_(moving, clip)
        optimizer.step()
        steps += 1
    flat = torch.cat([p.detach().flatten() for p in twin.parameters()])
    torch.testing.assert_close(theta, flat, rtol=0, atol=1e-6)
    assert torch.equal(seen[0], task.initial())
    assert len(seen) == 2 * steps
    assert torch.equal(seen[-1], theta)
    for after, before in zip(seen[1:-1:2], seen[2::2], strict=True):
        assert torch.equal(after, before)


@pytest.mark.parametrize("clip", [0.0, 1e9])
@pytest.mark.parametrize("part", ["base", "head"])
def test_a_part_that_rests_keeps_its_velocity(part: Any, clip: float) -> None:
    task, _, data = task_and_twin()
    theta, kept = sgd(
        task,
        start := task.initial(),
        data,
        Rng(0, 0, 1),
        TrainConfig(epochs=1, batch_size=4, lr=0.05, clip=clip),
        {"v": torch.ones(task.d)},
        terms=Terms(extra=lambda w, g: g.add_(w, alpha=0.5)),
        part=part,
    )
    resting = slice(task.layout.b, None) if part == "base" else slice(task.layout.b)
    assert (kept["v"][resting] == 1).all()
    assert torch.equal(theta[resting], start[resting])
    assert not torch.equal(theta, start)


@pytest.mark.parametrize(
    ("n", "size", "expected"), [(11, 4, [4, 4]), (8, 4, [4, 4]), (7, 10, [7]), (5, 0, [5])]
)
def test_batches_are_whole_and_differ_by_epoch(n: int, size: int, expected: list[int]) -> None:
    data = Shard(torch.arange(float(n))[:, None], torch.arange(n))
    task = Task(nn.Sequential(nn.Linear(1, 2)), (1,))
    epochs = list(task.batches(data, size, Rng(0, 1, 2), epochs=2))
    assert [len(y) for _, y in epochs] == 2 * expected
    first = torch.cat([y for _, y in epochs[: len(expected)]]).tolist()
    second = torch.cat([y for _, y in epochs[len(expected) :]]).tolist()
    assert len(set(first)) == len(first)
    assert first != second
    again = torch.cat([y for _, y in task.batches(data, size, Rng(0, 1, 2), epochs=1)]).tolist()
    assert again == first


def test_fedavg_averages_batch_norm_buffers_too() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    task = Task(module, (4,))
    algorithm = FedAvg(train=TrainConfig(epochs=1, batch_size=4))
    server = {"w": task.initial()}
    updates = {}
    for i in (2, 0):
        x, y = PROBLEM[i]
        data = Shard(torch.from_numpy(x).float(), torch.from_numpy(y))
        message = algorithm.messages(server, [i], ServerRng(0, 1))[i]
        _, updates[i] = algorithm.local_update(task, {}, message, data, Rng(0, i, 1))
    assert torch.equal(server["w"], task.initial())
    n = {i: len(PROBLEM[i][1]) for i in updates}
    share = n[0] / (n[0] + n[2])
    expected = share * updates[0]["w"] + (1 - share) * updates[2]["w"]
    found = algorithm.aggregate(server, updates, Mean(), ServerRng(0, 1))["w"]
    assert len(found) == task.layout.n == task.d + 10
    torch.testing.assert_close(found, expected)
    assert (found[task.d :] != task.initial()[task.d :]).all()


def test_who_is_scored_with_what() -> None:
    train = TrainConfig(epochs=2, batch_size=4, lr=0.1)
    runs = {m: make_run(m(train=train), PROBLEM, cohort=M, rounds=2) for m in METHODS}
    for run in runs.values():
        run.step()
        run.step()
    untouched = next(i for i in range(N) if not runs[FedAvg].touched(i))
    touched = runs[FedAvg].history[-1]["cohort"][0]
    w0 = runs[FedAvg].task.initial()
    fedavg, control, local = runs[FedAvg], runs[FedAvgLocal], runs[Local]
    assert torch.equal(fedavg.server["w"], control.server["w"])
    for i in (touched, untouched):
        assert torch.equal(fedavg.personal_model(i), fedavg.server["w"])
    for run in (control, local):
        assert torch.equal(run.personal_model(untouched), w0)
        assert torch.equal(run.personal_model(touched), run.state(touched)["w"])
        assert not torch.equal(run.personal_model(touched), w0)
    assert torch.equal(local.global_model(), w0)
    assert torch.equal(control.global_model(), fedavg.server["w"])
    for run in runs.values():
        for i in (touched, untouched):
            data = run.federation.test(i)
            found = run.task.score(run.personal_model(i), data)
            assert run.score[i] == found.score
            assert run.loss[i] == pytest.approx(found.loss / len(data))


# -- Q10, Q11, Q12 -----------------------------------------------------------------------------


def test_q10_alone_fedavg_is_local() -> None:
    train = TrainConfig(epochs=2, batch_size=4, lr=0.05)
    runs = [make_run(m(train=train), PROBLEM[:1], cohort=1, rounds=4) for m in METHODS]
    for _ in range(4):
        for run in runs:
            run.step()
        local, fedavg, control = (run.personal_model(0) for run in runs)
        assert torch.equal(local, fedavg)
        assert torch.equal(local, control)


def test_q10_equal_sizes_make_the_weighted_mean_uniform() -> None:
    draw = torch.Generator().manual_seed(0)
    updates = {i: {"w": torch.randn(50, generator=draw), "n": 30} for i in (4, 1, 6)}
    assert torch.equal(Mean()(updates, "w"), Mean()(updates, "w", uniform=True))
    uneven = {i: {**u, "n": 10 + i} for i, u in updates.items()}
    assert not torch.allclose(Mean()(uneven, "w"), Mean()(uneven, "w", uniform=True))
    # The order in which replies arrive does not show.
    assert torch.equal(Mean()(updates, "w"), Mean()(dict(reversed(updates.items())), "w"))


def test_q10_one_full_step_each_is_one_step_on_the_mean_risk() -> None:
    train = TrainConfig(epochs=1, batch_size=0, lr=0.5, momentum=0.0)
    run = make_run(FedAvg(train=train), PROBLEM, cohort=M, rounds=1)
    start = run.task.initial().double().numpy()
    cohort = run.step()["cohort"]
    # sum of p_i f_i is the mean risk over the pooled samples
    x = np.concatenate([PROBLEM[i][0] for i in cohort])
    y = np.concatenate([PROBLEM[i][1] for i in cohort])
    close(run.server["w"], start - 0.5 * NET.gradient(start, x, y))


@by_method
def test_q11_bytes_follow_the_formula(method: type[Algorithm]) -> None:
    run = make_run(method(), PROBLEM, cohort=M, rounds=T)
    d = run.task.d
    for _ in range(T):
        record = run.step()
        each = 0 if method is Local else 4 * M * d
        assert record["bytes_down"] == record["bytes_up"] == each
        assert record["bytes_by_key"] == {
            "down": {"w": each} if each else {},
            "up": {"w": each} if each else {},
        }
        # Only the sample counts travel beside the models; scoring FedAvg takes a push to everyone.
        assert record["overhead_up"] == (0 if method is Local else 8 * M)
        assert record["bytes_eval"] == (4 * N * d if method is FedAvg else 0)


@by_method
def test_q12_scoring_has_no_side_effect(method: type[Algorithm]) -> None:
    runs = [
        make_run(method(), PROBLEM, cohort=M, rounds=100, evaluate_every=every)
        for every in (1, 100)
    ]
    for _ in range(T):
        for run in runs:
            record = run.step()
        runs[0].personal_model(1)
        runs[0].global_model()
    assert record["mean_score"] is None
    assert runs[0].history[0]["mean_score"] is not None
    identical(runs[0].server, runs[1].server)
    for i in range(N):
        identical(runs[0].state(i), runs[1].state(i))
