"""What methods are held against: training alone to the end, and on everybody's data together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pgfed.data.augment import augmentation
from pgfed.data.federation import Federation, Shard
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.rounds import Run
from pgfed.methods.randomness import Rng
from pgfed.methods.registry import REFERENCES, get
from pgfed.methods.settings import TrainConfig
from pgfed.methods.to_the_end import _folds, trained_to_the_end
from pgfed.model.networks import make_task
from pgfed.model.task import Task

TRAIN = TrainConfig(epochs=1, batch_size=4, lr=0.05)
CLIENTS, SEED = 4, 2


def federation(spread: float = 0.0) -> Federation:
    rng = np.random.default_rng(1)
    common = rng.normal(size=(5, 3))
    x = rng.normal(size=(CLIENTS * 40, 5)).astype(np.float32)
    client = np.arange(len(x)) % CLIENTS
    own = spread * rng.normal(size=(CLIENTS, 5, 3))
    y = np.einsum("nf,nfk->nk", x, common + own[client]).argmax(1)
    return Federation.from_arrays(x, y, client, seed=1)


def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, outputs))


def finished(name: str, data: Federation, backend: Any = Serial, **settings: Any) -> Run:
    method = get(name)(train=TRAIN, **settings)
    with backend(data, network) as place:
        run = Run(method, data, place, seed=SEED, rounds=30, cohort=2)
        while not run.finished:
            assert run.step()["dropped"] == []
        run.kept = dict(run.personal_models())  # type: ignore[attr-defined]
    return run


def by_hand(task: Task, data: Shard, client: int, most: int, patience: int) -> Tensor:
    """`alone` with torch's own modules and optimizers, a fifth held out at a time."""
    rng = Rng(SEED, client, 1)
    folds = rng.permutation(len(data), "held out").tensor_split(5)
    start = task.named(task.initial())

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        module = network((5,), 3)
        module.load_state_dict(start)
        steps = torch.optim.SGD(module.parameters(), lr=TRAIN.lr, momentum=TRAIN.momentum)
        return module, steps

    def epoch_on(module: nn.Module, steps: Any, index: Tensor, purpose: str) -> None:
        drawn = index[rng.permutation(len(index), purpose)]
        for first in range(0, len(drawn) - 3, 4):
            batch = drawn[first : first + 4]
            steps.zero_grad()
            loss = nn.functional.cross_entropy(module(data.x[batch]), data.y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()

    trained = [fresh() for _ in folds]
    rest = [torch.cat([f for f in folds if f is not fold]) for fold in folds]

    def judged() -> tuple[int, float]:
        right, loss = 0, 0.0
        with torch.no_grad():
            for (module, _), fold in zip(trained, folds, strict=True):
                out = module(data.x[fold])
                right += int((out.argmax(1) == data.y[fold]).sum())
                loss += float(nn.functional.cross_entropy(out, data.y[fold], reduction="sum"))
        return right, -loss

    best, top = 0, judged()
    for epoch in range(1, most + 1):
        for (module, steps), index in zip(trained, rest, strict=True):
            epoch_on(module, steps, index, f"choose {epoch}")
        if (now := judged()) > top:
            best, top = epoch, now
        if epoch - best >= patience:
            break
    module, steps = fresh()
    for epoch in range(1, max(best, 1) + 1):
        epoch_on(module, steps, torch.arange(len(data)), f"to the end {epoch}")
    return task.flat(module.state_dict())


def test_alone_is_as_many_epochs_as_were_best_on_what_was_held_out() -> None:
    data = federation()
    run = finished("alone", data, max_epochs=12, patience=3)
    for i, theta in run.kept.items():  # type: ignore[attr-defined]
        expected = by_hand(run.task, data.train(i), i, 12, 3)
        assert torch.allclose(theta, expected, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.1, "clip": 0.5}, {"optimizer": "adamw"}, {"augment": "flip-crop"}],
    ids=str,
)
# Folds of one step, as all of it; of as many steps; of four and of five.
@pytest.mark.parametrize("samples", [14, 48, 52])
@pytest.mark.parametrize("told", [0, 80])  # by the samples of their class; nothing: best is early
def test_folds_and_all_side_by_side_have_the_bits_of_one_after_the_other(
    settings: dict[str, Any], samples: int, told: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(samples) % 3
    x = torch.randint(90, (samples, 6, 6, 1), generator=draw) + told * y[:, None, None, None]
    data = Shard(x.byte(), y)
    train = TrainConfig(epochs=1, batch_size=10, lr=0.02, **settings)
    found = []
    for chain in (True, False):
        task = make_task("mlp", (1, 6, 6), 3, seed=0)
        task.augment = augmentation(train.augment)
        if not chain:
            task._chain = None
        theta = trained_to_the_end(
            task, task.initial(), data, Rng(SEED, 0, 1), train, most=12, patience=4
        )
        found.append(theta)
    assert torch.equal(*found)
    assert not torch.equal(found[0], task.initial())


@pytest.mark.parametrize("name", REFERENCES)
def test_one_round_and_nothing_is_sent(name: str) -> None:
    run = finished(name, federation(), max_epochs=4)
    assert len(run.history) == 1
    assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 0
    assert not np.isnan(run.score).any()


@pytest.mark.parametrize("name", REFERENCES)
def test_the_same_on_two_processes(name: str) -> None:
    one = finished(name, federation(), max_epochs=4)
    two = finished(
        name, federation(), lambda data, net: Process(data, net, workers=2), max_epochs=4
    )
    for i, theta in one.kept.items():  # type: ignore[attr-defined]
        assert torch.equal(theta, two.kept[i])  # type: ignore[attr-defined]


def test_pooled_sees_everybodys_training_data_and_no_other() -> None:
    data = federation()
    pooled = data.pooled()
    expected = torch.cat([data.train(i).x for i in range(CLIENTS)])
    assert torch.equal(pooled.x, expected)
    assert len(pooled) == int(data.n_train.sum())
    run = finished("pooled", data, max_epochs=40)
    first, *others = run.kept.values()  # type: ignore[attr-defined]
    assert all(torch.equal(first, other) for other in others)
    assert run.score.mean() > finished("alone", data, max_epochs=40).score.mean()


def test_fine_tuning_what_is_pooled_helps_where_clients_differ() -> None:
    data = federation(spread=3.0)
    scores = {name: finished(name, data, max_epochs=25).score.mean() for name in REFERENCES}
    assert scores["pooled-ft"] > scores["pooled"]


def test_few_samples_are_not_divided() -> None:
    data = federation()
    few = replace(data, bounds=np.array([[0, 3, 3, 40]]))
    run = finished("alone", few, max_epochs=5, patience=2)
    assert not np.isnan(run.score).any()


def patients(n: int, each: int, *, together: bool) -> Federation:
    """One client; each patient's samples are nearly the same, and whether it is ill is by lot."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(n), each)
    x = rng.normal(size=(n, 5))[who] + 0.01 * rng.normal(size=(n * each, 5))
    return Federation.from_arrays(
        x.astype(np.float32),
        rng.integers(0, 2, n)[who],
        np.zeros(len(who), dtype=np.int64),
        class_names=["well", "ill"],
        group=who if together else None,
        test_share=0.0,
    )


def test_what_is_held_out_holds_whole_patients() -> None:
    data = patients(11, 4, together=True).train(0)
    folds = _folds(data, Rng(SEED, 0, 1))
    assert len(folds) == 5
    assert sorted(torch.cat(folds).tolist()) == list(range(len(data)))
    assert data.group is not None
    whose = [set(data.group[fold].tolist()) for fold in folds]
    assert sum(map(len, whose)) == len(set.union(*whose)) == 11
    assert all(abs(len(fold) - len(data) / 5) <= 4 for fold in folds)
    assert len(_folds(patients(3, 4, together=True).train(0), Rng(SEED, 0, 1))) == 3
    assert len(_folds(patients(1, 9, together=True).train(0), Rng(SEED, 0, 1))) == 1


def test_alone_does_not_train_longer_for_patients_it_knows() -> None:
    """Apart from its own samples nothing tells whether a patient is ill: to learn more is to know
    patients by heart, which pays only where they are on both sides."""
    far = {}
    for together in (True, False):
        run = finished("alone", patients(12, 6, together=together), max_epochs=60, patience=20)
        (theta,) = run.kept.values()  # type: ignore[attr-defined]
        far[together] = float((theta - run.task.initial()).norm())
    assert far[True] < 0.5 * far[False]


def test_clients_patients_of_the_same_name_are_two() -> None:
    x, y = np.arange(8.0, dtype=np.float32)[:, None], np.arange(8) % 2
    who = ["p", "p", "q", "q"] * 2
    data = Federation.from_arrays(x, y, np.repeat([0, 1], 4), group=who, test_share=0.5)
    assert data.group is not None
    assert len(np.unique(data.group)) == 4
    assert torch.equal(data.pooled().group, torch.cat([data.train(i).group for i in (0, 1)]))
    assert np.array_equal(data.between(1, 2).group, data.group[4:])
