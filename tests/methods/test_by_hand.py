"""The framework-free twin, examples/pgfed_by_hand.py, and pgfed give the same models."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.methods.contract import Algorithm
from pgfed.methods.fedavg_local import FedAvgLocal
from pgfed.methods.pgfed import PGFed
from pgfed.methods.pgfed_mo import PGFedMo
from pgfed.methods.randomness import Rng, draw_cohort
from pgfed.methods.settings import TrainConfig

FILE = Path(__file__).parents[2] / "examples" / "pgfed_by_hand.py"
N, M, ROUNDS, SEED = 10, 4, 5, 3


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = spec_from_file_location("pgfed_by_hand", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["pgfed_by_hand"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 20), nn.ReLU(), nn.Linear(20, classes))


def federation(by_hand: ModuleType) -> Federation:
    clients = by_hand.digits(N, nn.Identity())
    parts = [
        (i, k, x, y)
        for i, c in enumerate(clients)
        for k, x, y in ((0, c.x, c.y), (1, c.x_test, c.y_test))
    ]
    return Federation.from_arrays(
        np.concatenate([x for *_, x, _ in parts]),
        np.concatenate([y for *_, y in parts]),
        client=np.concatenate([np.full(len(y), i) for i, _, _, y in parts]),
        split=np.concatenate([np.full(len(y), k) for _, k, _, y in parts]),
    )


TRAIN = TrainConfig(epochs=2, batch_size=10, lr=0.02, momentum=0.9)
METHODS: dict[str, tuple[Algorithm, dict[str, float]]] = {
    "pgfed": (PGFed(train=TRAIN, mu=0.5, alpha_lr=0.02), {"mu": 0.5, "eta_2": 0.02}),
    "pgfed-mo": (
        PGFedMo(train=TRAIN, mu=0.5, alpha_lr=0.02, beta=0.5),
        {"mu": 0.5, "eta_2": 0.02, "beta": 0.5},
    ),
    "control": (FedAvgLocal(train=TRAIN), {"mu": 0.0}),
}


@pytest.mark.parametrize("name", METHODS)
def test_same_models(by_hand: ModuleType, name: str) -> None:
    algorithm, symbols = METHODS[name]
    data = federation(by_hand)
    run = Run(algorithm, data, Serial(data, network), seed=SEED, rounds=ROUNDS, cohort=M)
    task = run.task
    module = network((64,), 10)
    module.load_state_dict(task.named(task.initial()))
    clients = []
    for i in range(N):
        train, test = data.train(i), data.test(i)
        clients.append(by_hand.Client(train.x, train.y, test.x, test.y, copy.deepcopy(module)))

    def order(i: int, t: int, purpose: str, epoch: int) -> Tensor:
        return Rng(SEED, i, t).permutation(len(clients[i].y), purpose, epoch)

    cohorts = [draw_cohort(SEED, t, N, M) for t in range(1, ROUNDS + 1)]
    settings = by_hand.Settings(
        M, eta_1=TRAIN.lr, epochs=TRAIN.epochs, batch_size=TRAIN.batch_size, **symbols
    )
    start = by_hand.flat(module.parameters())
    for theta in by_hand.pgfed(clients, start, cohorts, order, settings):
        run.step()
        torch.testing.assert_close(run.server["w"], theta, rtol=0, atol=1e-5)
        for i, client in enumerate(clients):
            own = by_hand.flat(client.model.parameters())
            torch.testing.assert_close(run.personal_model(i), own, rtol=0, atol=1e-5)
            assert run.score[i] == pytest.approx(client.accuracy())
        if name != "control":
            alpha = run.alpha()
            assert alpha is not None
            rows = [[c.alpha.get(j, 1 / M) for j in range(N)] for c in clients]
            np.testing.assert_allclose(alpha["alpha"], rows, rtol=0, atol=1e-5)


def test_it_needs_nothing_of_pgfed() -> None:
    names: list[str] = []
    for node in ast.walk(ast.parse(FILE.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    roots = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert roots == {"numpy", "sklearn", "torch"}


def test_it_prints_a_table(by_hand: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    by_hand.main(rounds=2)
    *_, head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "round"
    assert "PGFedMo" in head
    t, control, pgfed, pgfed_mo = map(float, first.split())
    assert (t, control) == (1, pgfed) == (1, pgfed_mo)  # nothing is known of others in round 1
    assert all(0 <= float(value) <= 100 for value in second.split()[1:])
