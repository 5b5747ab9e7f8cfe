"""The studies, against numpy and against a loop by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import small_runs
from experiments.commands import contrary, pgfed
from numerics.reference import Array, Net
from numerics.setup import network
from pgfed.config.experiment import from_dict, of_run
from pgfed.data.federation import Federation
from pgfed.engine.setup import load_federation, prepare
from pgfed.errors import UserError
from pgfed.methods.randomness import Rng
from pgfed.methods.settings import TrainConfig
from pgfed.model.networks import make_task
from pgfed.model.task import Task
from pgfed.paper import explicit, new_clients
from pgfed.report.images.explicit import kernel_density
from pgfed.results.recording import record

FEATURES, HIDDEN, CLASSES, CLIENTS = 4, 5, 3, 5
NET = Net(FEATURES, HIDDEN, CLASSES)
Ints = NDArray[np.int64]


def small_federation(
    test: int = 60, validation: float = 0.0, clients: int = CLIENTS, seed: int = 3
) -> Federation:
    """Clients with 270 to 30 training samples (more than one batch of a gradient pass)."""
    rng = np.random.default_rng(seed)
    x, y, client, split = [], [], [], []
    for i in range(clients):
        n = 30 + 240 * (i == 0) + 7 * i
        labels = rng.integers(0, CLASSES, size=n + test)
        centres = rng.normal(size=(CLASSES, FEATURES))
        x.append(centres[labels] + 0.8 * rng.normal(size=(n + test, FEATURES)))
        y.append(labels)
        client += [i] * (n + test)
        split += [0] * n + [1] * test
    return Federation.from_arrays(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y),
        client=np.array(client),
        split=np.array(split),
        validation_share=validation,
    )


def small_task(seed: int = 0) -> Task:
    return make_task(partial(network, hidden=HIDDEN), (FEATURES,), CLASSES, seed=seed)


def arrays(shard: Any) -> tuple[Array, Ints]:
    return shard.x.double().numpy(), shard.y.numpy()


def accuracy(w: Array, shard: Any) -> float:
    x, y = arrays(shard)
    return float((NET.logits(w, x).argmax(1) == y).mean())


# -- explicit against implicit -----------------------------------------------------------------


def by_hand(
    federation: Federation, i: int, w0: Array, mu: float, lr: float, steps: int
) -> tuple[Array, list[float]]:
    """f_i + mu / (N - 1) sum_{j != i} f_j, in float64."""
    n = len(federation)
    w, scores = w0, [accuracy(w0, federation.test(i))]
    for _ in range(steps):
        gradient = NET.gradient(w, *arrays(federation.train(i)))
        for j in range(n):
            if j != i:
                gradient = gradient + mu / (n - 1) * NET.gradient(w, *arrays(federation.train(j)))
        w = w - lr * gradient
        scores.append(accuracy(w, federation.test(i)))
    return w, scores


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_gradient_of_the_explicit_objective(mu: float) -> None:
    federation, task = small_federation(), small_task()
    theta = task.initial()
    for i in range(CLIENTS):
        found = explicit.objective_gradient(task, theta, federation, i, mu)
        w, _ = by_hand(federation, i, theta.double().numpy(), mu, 1.0, 1)
        expected = theta.double().numpy() - w
        assert np.abs(found.double().numpy() - expected).max() < 1e-6


def test_every_arm_equals_numpy() -> None:
    federation, task = small_federation(test=200), small_task()
    start = task.initial()
    clients, rates, mus = [0, 2, 4], [0.5, 0.05], [0.5, 1.0]
    found = explicit.study(task, federation, start, clients, steps=4, rates=rates, mus=mus)
    assert [(arm.mu, arm.lr) for arm in found.arms] == [
        (mu, lr) for mu in (0.0, 0.5, 1.0) for lr in rates
    ]
    for arm in found.arms:
        expected = [
            by_hand(federation, i, start.double().numpy(), arm.mu, arm.lr, 4)[1] for i in clients
        ]
        assert np.array_equal(arm.test, expected)
        assert np.array_equal(arm.curve, np.mean(expected, axis=0))
        assert arm.gains == pytest.approx([e[-1] - e[0] for e in expected])
    assert torch.equal(start, task.initial())
    # The example bites: the objective and the step length both matter.
    assert len({arm.test.tobytes() for arm in found.arms}) == len(found.arms)


def test_each_arm_takes_its_own_best_step_length() -> None:
    federation, task = small_federation(validation=0.3), small_task()
    found = explicit.study(
        task,
        federation,
        task.initial(),
        range(CLIENTS),
        steps=3,
        rates=[0.01, 0.3, 20.0],
        mus=[1.0],
    )
    assert found.chosen_on == "validation"
    for mu in (0.0, 1.0):
        arms = [arm for arm in found.arms if arm.mu == mu]
        best = max(arms, key=lambda arm: arm.validation[:, -1].mean())
        assert found.chosen[mu] is best
    assert found.explicit.mu == 1.0
    assert found.implicit.mu == 0.0
    difference = found.difference()
    assert difference.mean == pytest.approx((found.explicit.gains - found.implicit.gains).mean())
    assert difference.low <= difference.mean <= difference.high


def test_validation_data_chooses_even_where_test_data_disagrees(tmp_path: Path) -> None:
    data = {"dataset": f"npz:{contrary(tmp_path / 'contrary.npz')}", "validation_share": 0.25}
    federation, _ = load_federation(from_dict({"data": data}), Path())
    task = make_task("mlp", federation.input_shape, 2, seed=0)
    found = explicit.study(
        task, federation, task.initial(), range(4), steps=6, rates=[0.0001, 0.5], mus=[0.5]
    )
    assert {arm.lr for arm in found.chosen.values()} == {0.5}
    tests = {arm.lr: arm.test[:, -1].mean() for arm in found.arms if arm.mu == 0}
    assert tests[0.0001] > tests[0.5] + 0.2


def test_without_validation_data_it_says_so() -> None:
    federation, task = small_federation(), small_task()
    found = explicit.study(task, federation, task.initial(), [1], steps=1, rates=[0.1], mus=[0.1])
    assert found.chosen_on == "test"
    assert explicit.document(found)["chosen_on"] == "test"


def test_side_by_side_equals_one_by_one() -> None:
    federation, task = small_federation(), small_task()
    results = [
        explicit.study(
            task, federation, task.initial(), [0, 1, 3], steps=2, rates=[0.3], mus=[1.0], jobs=jobs
        )
        for jobs in (1, 2)
    ]
    for one, two in zip(results[0].arms, results[1].arms, strict=True):
        assert np.array_equal(one.test, two.test)


def test_clients_are_drawn_among_those_with_test_data() -> None:
    federation = small_federation(clients=9)
    bounds = federation.bounds.copy()
    bounds[3, 3] = bounds[3, 2]  # client 3 has no test data
    object.__setattr__(federation, "bounds", bounds)
    assert explicit.choose_clients(federation, None, 0) == [0, 1, 2, 4, 5, 6, 7, 8]
    drawn = explicit.choose_clients(federation, 4, 0)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 4
    assert explicit.choose_clients(federation, 4, 0) == drawn
    assert {tuple(explicit.choose_clients(federation, 4, seed)) for seed in range(5)} > {
        tuple(drawn)
    }
    assert not any(3 in explicit.choose_clients(federation, 4, seed) for seed in range(20))


def test_density_is_one_in_all() -> None:
    for values in (np.random.default_rng(0).normal(size=50), np.full(7, 0.25)):
        grid, density = kernel_density(values)
        assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=0.01)


def test_the_command_explicit(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    words = ["--smoke", "--set", "rounds=2", "--set", "engine.backend=serial"]
    options = ["--clients", 3, "--steps", 2, "--mu", "0.5,1", "--lr", "0.1,0.01"]
    pgfed("study", "explicit", *words, "--set", "data.clients=5", "--out", out, *options)
    printed = capsys.readouterr().out
    assert "After 2 steps: explicit, mu = " in printed
    assert "chosen on validation data" in printed
    content = json.loads((out / "explicit.json").read_text())
    assert (len(content["clients"]), content["steps"]) == (3, 2)
    assert [(arm["mu"], arm["lr"]) for arm in content["arms"]] == [
        (mu, lr) for mu in (0.0, 0.5, 1.0) for lr in (0.1, 0.01)
    ]
    assert sum(arm["chosen"] for arm in content["arms"]) == 3
    with (out / "explicit.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, arm in zip(rows, content["arms"], strict=True):
        assert float(row["accuracy_after"]) == arm["accuracy"][-1]
        assert float(row["gain_mean"]) == pytest.approx(np.mean(arm["gains"]))
    assert (out / "explicit.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "explicit.svg").stat().st_size > 1000
    assert "explicit" in (out / "report.html").read_text(encoding="utf-8")

    # The FedAvg model is that of an ordinary run, which the study can take up again.
    before = (out / "explicit.json").read_bytes()
    (out / "explicit.json").unlink()
    pgfed("study", "explicit", "--from", out, *options, "--quiet")
    assert (out / "explicit.json").read_bytes() == before
    assert capsys.readouterr().out == ""
    pgfed("study", "explicit", "--from", out, *options, "--json")
    assert json.loads(capsys.readouterr().out) == content

    # So can a run of fedavg-local, whose common model is FedAvg's.
    experiment = replace(of_run(out), methods=["fedavg-local"])
    record(prepare(experiment, tmp_path), tmp_path / "local", [])
    pgfed("study", "explicit", "--from", tmp_path / "local", *options, "--quiet")
    assert (tmp_path / "local" / "explicit.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "0.1,no"], "--lr: found '0.1,no'"),
        (["--mu", "0"], "--mu: found '0'"),
        (["--from", "nowhere"], "nowhere: no such folder"),
        (["--from", "nowhere", "--set", "rounds=3"], "--from: the run is already there"),
        (["--smoke", "--set", "task.metric=auc"], "task: found classes, judged by auc; allowed"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        pgfed("study", "explicit", *words)
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())


# -- new clients -------------------------------------------------------------------------------


def tuned_by_hand(
    federation: Federation,
    i: int,
    w0: Array,
    train: TrainConfig,
    *,
    client_id: int,
    epochs: int,
    restart: bool = True,
) -> list[float]:
    x, y = arrays(federation.train(i))
    w, v = w0, np.zeros_like(w0)
    scores = [accuracy(w, federation.test(i))]
    for epoch in range(1, epochs + 1):
        order = Rng(7, client_id, epoch).permutation(len(y), "new-client").numpy()
        if restart:
            v = np.zeros_like(w0)
        for k in range(len(y) // train.batch_size):
            batch = order[k * train.batch_size : (k + 1) * train.batch_size]
            v = train.momentum * v + NET.gradient(w, x[batch], y[batch])
            w = w - train.lr * v
        scores.append(accuracy(w, federation.test(i)))
    return scores


def test_fine_tuning_equals_a_loop_by_hand() -> None:
    federation, task = small_federation(test=400), small_task()
    start, train = task.initial(), TrainConfig(batch_size=8, lr=0.02, momentum=0.9)
    w0 = start.double().numpy()
    for i in range(CLIENTS):
        found = new_clients.fine_tune(task, federation, i, 40 + i, start, train, 7, 6)
        expected = tuned_by_hand(federation, i, w0, train, client_id=40 + i, epochs=6)
        assert found == expected
        without = tuned_by_hand(federation, i, w0, train, client_id=40 + i, epochs=6, restart=False)
        assert found != without
    assert torch.equal(start, task.initial())


def test_curves_are_means_over_clients_and_seeds() -> None:
    federation, task = small_federation(), small_task()
    train = TrainConfig(batch_size=8, lr=0.02)
    starts: dict[tuple[str, int], Tensor] = {
        (method, seed): small_task(seed + shift).initial()
        for method, shift in (("a", 0), ("b", 10))
        for seed in (0, 1)
    }
    curves = [
        new_clients.study(task, federation, 40, starts, train, epochs=3, jobs=jobs)
        for jobs in (1, 2)
    ]
    for one, two in zip(*curves, strict=True):
        assert one.method == two.method
        assert np.array_equal(one.accuracy, two.accuracy)
    a = curves[0][0]
    assert a.by_seed.keys() == {0, 1}
    for seed in (0, 1):
        for i in range(CLIENTS):
            expected = new_clients.fine_tune(
                task, federation, i, 40 + i, starts["a", seed], train, seed, 3
            )
            assert a.by_seed[seed][i].tolist() == expected
    assert a.accuracy == pytest.approx(np.mean([a.by_seed[s].mean(0) for s in (0, 1)], axis=0))
    content = new_clients.document(curves[0], 0.02)
    assert list(content) == ["a", "b"]
    assert content["a"]["epochs"] == [0, 1, 2, 3]
    assert content["a"]["accuracy"] == a.accuracy.tolist()
    assert content["b"]["by_seed"].keys() == {"0", "1"}


def test_new_clients_take_no_part(tmp_path: Path) -> None:
    data = {"clients": 10, "new_clients": 0.25}
    experiment = from_dict({"data": data})
    table = experiment.data
    assert [table.first_new(n) for n in (10, 100, 1, 3)] == [8, 75, 0, 2]
    some, resolved = load_federation(experiment, Path())
    all_of_them = replace(experiment, data=replace(table, new_clients=0.0))
    everyone, _ = load_federation(all_of_them, Path())
    assert (len(some), len(everyone)) == (8, 10)
    assert (resolved.clients, resolved.new_clients) == (10, 0.25)
    assert len(some.y) == everyone.bounds[7, 3]
    new = everyone.between(8, 10)
    for mine, theirs, shift in ((some, everyone, 0), (new, everyone, 8)):
        for i in range(len(mine)):
            for part in ("train", "validation", "test"):
                a, b = getattr(mine, part)(i), getattr(theirs, part)(i + shift)
                assert torch.equal(a.x, b.x)
                assert torch.equal(a.y, b.y)
    assert some.counts().sum() == len(some.y)
    with pytest.raises(UserError, match=r"data\.new_clients: 0\.5 of 1 clients leaves none"):
        load_federation(from_dict({"data": {"clients": 1, "new_clients": 0.5}}), Path())


def test_the_domains_of_new_clients_go_along() -> None:
    federation = Federation.from_arrays(
        np.eye(12, dtype=np.float32),
        np.arange(12) % 2,
        client=np.arange(12) // 3,
        domain=np.repeat(["a", "b"], 6),
    )
    last = federation.between(3, 4)
    assert last.domains is not None
    assert last.client_labels is not None
    assert (last.domains.tolist(), last.client_labels.tolist()) == (["b"], ["3"])
    assert torch.equal(last.train(0).x, federation.train(3).x)
    assert len(last.y) == 3


def test_the_command_new_clients(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    words = ["--smoke", "--set", "rounds=2", "--set", "engine.backend=serial"]
    methods = ["--set", 'methods=["local", "fedavg"]', "--set", "data.clients=5"]
    pgfed("study", "new-clients", *words, *methods, "--epochs", 3, "--lr", 0.02, "--out", out)
    printed = capsys.readouterr().out
    assert "Means over 1 new client that took no part" in printed
    content = json.loads((out / "new_clients.json").read_text())
    assert list(content) == ["local", "fedavg"]
    assert content["fedavg"]["epochs"] == [0, 1, 2, 3]

    again = ["--from", out, "--epochs", 3, "--lr", 0.02, "--json"]
    pgfed("study", "new-clients", *again)
    assert json.loads(capsys.readouterr().out) == content

    # The new client is the last of five; it starts from the global model of the other four's run.
    environment = json.loads((out / "environment.json").read_text())
    assert environment["data"]["clients"] == 4
    division = {"clients": 5, "min_samples": 40, "test_share": 0.7}
    result = small_runs.run(
        **division, new_clients=0.2, rounds=2, methods=["fedavg"], backend="serial"
    )
    everyone, _ = load_federation(from_dict({"data": division}), Path())
    test = everyone.test(4)
    x, y = test.batch(slice(None))
    model = result.global_model("fedavg")
    with torch.no_grad():
        before = float((model(x).argmax(1) == y).float().mean())
    assert content["fedavg"]["accuracy"][0] == pytest.approx(before)

    # A run without new clients has nothing to study.
    plain = tmp_path / "plain"
    small_runs.run(clients=5, rounds=1, methods=["fedavg"], backend="serial", out=plain)
    with pytest.raises(UserError, match="the run has no new clients"):
        pgfed("study", "new-clients", "--from", plain)
    gone = tmp_path / "gone"
    small_runs.run(
        clients=5, new_clients=0.2, rounds=1, methods=["fedavg"], backend="serial", models="none",
        out=gone,
    )  # fmt: skip
    with pytest.raises(UserError, match="the study needs a finished run of fedavg"):
        pgfed("study", "new-clients", "--from", gone)
