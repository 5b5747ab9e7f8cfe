"""The shape of an objective, tried with tasks that are no classification: methods know of neither.

Regression (one number, squared error, R² that can be undefined, and less is better for its error)
and several labels at once. Whole methods run on them unchanged, on one process and on two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from any_model import ANY_MODEL
from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.registry import get
from pgfed.methods.settings import TrainConfig
from pgfed.model.kinds import CLASSES
from pgfed.model.objectives import Objective, Pairs
from pgfed.model.task import Task

FEATURES, CLIENTS, COHORT, ROUNDS = 6, 5, 3, 6
TRAIN = TrainConfig(epochs=2, batch_size=5, lr=0.05)


class Regression(Objective):
    metric = "rmse"
    more_is_better = False
    bounds = (0.0, float("inf"))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(1)

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        outputs = torch.cat([o for o, _ in pairs])
        targets = torch.cat([y for _, y in pairs])
        error = float((outputs - targets).square().mean())
        spread = float((targets - targets.mean(0)).square().mean())
        return {"rmse": error**0.5, "r2": 1 - error / spread if spread else None}


class Multilabel(Objective):
    metric = "exact"
    more_is_better = True
    bounds = (0.0, 1.0)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        right = torch.cat([self.outcomes(o, y) for o, y in pairs])
        return {"exact": float(right.float().mean())}

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs > 0) == (targets > 0.5)).all(1)


TASKS: dict[str, tuple[Objective, int]] = {
    "regression": (Regression(), 1),
    "multilabel": (Multilabel(), 3),
}


def federation(kind: str, seed: int = 0) -> Federation:
    """A linear world with noise, a little different at each client."""
    _, outputs = TASKS[kind]
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(FEATURES, outputs))
    x, y, sizes = [], [], []
    for _ in range(CLIENTS):
        n = int(rng.integers(24, 40))
        inputs = rng.normal(size=(n, FEATURES))
        values = inputs @ (common + 0.2 * rng.normal(size=common.shape))
        values += 0.05 * rng.normal(size=values.shape)
        x.append(inputs)
        y.append(values > 0 if kind == "multilabel" else values)
        sizes.append((n - 8, n))
    starts = np.cumsum([0, *(n for _, n in sizes)])
    bounds = [[s, s + k, s + k, s + n] for s, (k, n) in zip(starts, sizes, strict=False)]
    return Federation(
        name=kind,
        x=torch.tensor(np.concatenate(x), dtype=torch.float32),
        y=torch.tensor(np.concatenate(y), dtype=torch.float32),
        bounds=np.array(bounds),
        input_shape=(FEATURES,),
        class_names=tuple(f"output {k}" for k in range(outputs)),
    )


def network(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))


def finished(method: str, kind: str, backend: type[Serial] | type[Process] = Serial) -> Run:
    data, options = federation(kind), {"objective": TASKS[kind][0]}
    if backend is Process:
        options["workers"] = 2
    with backend(data, network, **options) as place:  # type: ignore[arg-type]
        run = Run(get(method)(train=TRAIN), data, place, seed=1, rounds=ROUNDS, cohort=COHORT)
        while not run.finished:
            assert run.step()["dropped"] == []
        list(run.personal_models())  # while there are workers
        return run


CLASSES_ONLY = {"fedrod": "balances classes", "fedpac": "needs classes"}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("method", [name for name in ANY_MODEL if name not in CLASSES_ONLY])
def test_every_method_learns_it(method: str, kind: str) -> None:
    run = finished(method, kind)
    objective = TASKS[kind][0]
    start = run.task.initial()
    data = run.federation
    before = [run.task.loss(start, data.test(i)) for i in range(CLIENTS)]
    assert np.mean(run.loss) < 0.98 * np.mean(before)
    means = [record["mean_score"] for record in run.history]
    best = max(means) if objective.more_is_better else min(means)
    assert run.best_score == (means[-1] if run.algorithm.scored_last else best)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("method", ["fedper", "pgfed"])
def test_worker_processes_give_the_same_bits(method: str, kind: str) -> None:
    serial, pool = finished(method, kind), finished(method, kind, Process)
    for key, value in serial.server.items():
        same = torch.equal(value, pool.server[key]) if isinstance(value, Tensor) else True
        assert same, key
    assert [r["mean_score"] for r in serial.history] == [r["mean_score"] for r in pool.history]


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("method", CLASSES_ONLY)
def test_a_method_that_needs_classes_says_so(method: str, kind: str) -> None:
    objective, outputs = TASKS[kind]
    task = Task(network((FEATURES,), outputs), (FEATURES,), objective=objective)
    said = f"'{method}' {CLASSES_ONLY[method]}, and the task has none"
    with pytest.raises(UserError, match=said):
        get(method)().check_model(task)


def test_scores_are_over_the_whole_set_and_may_be_undefined() -> None:
    """R² of batches is not the mean of theirs; of equal targets it does not exist."""
    data, objective = federation("regression"), Regression()
    torch.manual_seed(0)
    task = Task(network((FEATURES,), 1), (FEATURES,), objective=objective)
    theta = task.initial()
    shard = data.train(0)
    outputs = task.logits(theta, shard.x)
    error = float((outputs - shard.y).square().mean())
    found = task.score(theta, shard)
    assert found.score == pytest.approx(error**0.5, rel=1e-4)
    assert found.loss == pytest.approx(error * len(shard), rel=1e-4)
    r2 = objective.scores(task.predictions(theta, shard))["r2"]
    assert r2 == pytest.approx(1 - error / float(shard.y.var(correction=0)), rel=1e-4, abs=1e-5)
    same = shard.rows(0, 1)
    assert objective.scores(task.predictions(theta, same))["r2"] is None


@pytest.mark.parametrize("objective", [CLASSES, Regression(), Multilabel()])
def test_the_loss_is_the_mean_and_the_total_the_sum_of_the_losses(objective: Any) -> None:
    torch.manual_seed(0)
    outputs = torch.randn(7, 3)
    targets: Tensor = torch.randint(0, 3, (7,)) if objective is CLASSES else torch.rand(7, 3)
    losses = objective.losses(outputs, targets)
    assert losses.shape == (7,)
    torch.testing.assert_close(objective.loss(outputs, targets), losses.mean())
    torch.testing.assert_close(objective.total(outputs, targets), losses.sum())
    assert objective.outcomes(outputs, targets).shape == (7,)
