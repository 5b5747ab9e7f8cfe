"""IFCA against its paper's rule in float64, its limits, and what happens when models collapse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.reference import Array
from numerics.setup import float64, held
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    DRAWN,
    NET,
    TRAIN,
    N,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.errors import NOTES
from pgfed.methods.averaging import Mean
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.ifca import IFCA
from pgfed.methods.randomness import ServerRng
from pgfed.results.runs import exported

SERVER = ServerRng(0, 1)


def models_of(server: dict, k: int) -> list[Array]:
    return [float64(server[f"model_{j}"]) for j in range(k)]


def assert_models(server: dict, expected: list[Array]) -> None:
    for found, model in zip(models_of(server, len(expected)), expected, strict=True):
        np.testing.assert_allclose(found, model, rtol=0, atol=1e-5)


def best(models: list[Array], x: Array, y: Array) -> int:
    return int(np.argmin([NET.loss_gradient(w, x, y)[0] for w in models]))


@pytest.mark.parametrize("k", [2, 3])
def test_rounds(k: int) -> None:
    run, _ = start(IFCA(train=TRAIN, clusters=k, redraws=0))
    models = models_of(run.server, k)
    data = held(run)
    speed: dict[int, tuple[int, Array | None]] = {}
    chosen = np.full(CLIENTS, -1)
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        trained: list[dict[int, Array]] = [{} for _ in range(k)]
        for i in answered:
            c = best(models, *data[i])
            before = speed[i][1] if i in speed and speed[i][0] == c else None
            trained[c][i], v = descend(models[c], before, minibatches(run, t, i))
            speed[i], chosen[i] = (c, v), c
        models = [average(own) if own else w for own, w in zip(trained, models, strict=True)]
        assert_models(run.server, models)
        assert run.server["chosen"].tolist() == chosen.tolist()
        for i in range(CLIENTS):
            expected = models[best(models, *data[i])]
            np.testing.assert_allclose(float64(run.personal_model(i)), expected, rtol=0, atol=1e-5)
    assert len(set(chosen[chosen >= 0])) > 1
    sizes = [sum(N[i] for i in range(CLIENTS) if chosen[i] == c) for c in range(k)]
    expected = models[int(np.argmax(sizes))]
    np.testing.assert_allclose(float64(run.global_model()), expected, rtol=0, atol=1e-5)
    kept = exported(run)
    assert kept is not None
    assert kept["cluster"].tolist() == chosen.tolist()
    counts = np.bincount(chosen[chosen >= 0], minlength=k)
    assert kept["cluster_clients"].tolist() == counts.tolist()


def test_with_one_model_it_is_fedavg() -> None:
    (ifca, _), (fedavg, _) = start(IFCA(train=TRAIN, clusters=1)), start(FedAvg(train=TRAIN))
    for _ in ANSWERED:
        ifca.step()
        fedavg.step()
        assert torch.equal(ifca.server["model_0"], fedavg.server["w"])


def test_of_equal_starts_all_take_the_first_as_in_fedavg() -> None:
    (ifca, w0), (fedavg, _) = (
        start(IFCA(train=TRAIN, clusters=3, redraws=0)),
        start(FedAvg(train=TRAIN)),
    )
    ifca.server |= {f"model_{k}": ifca.task.initial() for k in range(3)}
    ifca.step()
    fedavg.step()
    assert torch.equal(ifca.server["model_0"], fedavg.server["w"])
    for k in (1, 2):  # nobody chose them: they are what they were
        np.testing.assert_array_equal(float64(ifca.server[f"model_{k}"]), w0)


def test_names_of_clusters_do_not_matter() -> None:
    """With the starts exchanged all models are the same, under other names."""
    (one, _), (two, _) = (start(IFCA(train=TRAIN, clusters=2, redraws=0)) for _ in range(2))
    two.server |= {"model_0": one.server["model_1"], "model_1": one.server["model_0"]}
    for _ in ANSWERED:
        one.step()
        two.step()
    assert torch.equal(one.server["model_0"], two.server["model_1"])
    assert torch.equal(one.server["model_1"], two.server["model_0"])
    for i in range(CLIENTS):
        assert torch.equal(one.personal_model(i), two.personal_model(i))


def test_while_all_take_one_model_starts_are_drawn_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    method = IFCA(train=TRAIN, clusters=2, redraws=2)
    run, _ = start(method)
    server = run.server
    starts = [float64(w) for w in (server["model_0"], server["model_1"], *server["starts"])]
    assert len({tuple(s) for s in starts}) == 4
    w = torch.ones(NET.d)
    same = {i: {"w": w, "cluster": 1, "n": N[i]} for i in (0, 3)}
    with caplog.at_level("WARNING", NOTES.name):
        for draw in (1, 2):
            server = method.aggregate(server, same, Mean(), SERVER)
            assert server["draw"] == draw
            assert_models(server, [starts[0], starts[1 + draw]])
            assert server["chosen"].tolist() == [-1] * CLIENTS
    assert "ifca: all clients took the same of 2 models in 2 draws" in caplog.text
    # No start is left: the next round counts, whatever is chosen.
    server = method.aggregate(server, same, Mean(), SERVER)
    assert_models(server, [starts[0], np.ones(NET.d)])
    assert server["chosen"][[0, 3]].tolist() == [1, 1]


def test_a_choice_that_differs_ends_the_drawing() -> None:
    method = IFCA(train=TRAIN, clusters=2, redraws=5)
    run, _ = start(method)
    w = torch.ones(NET.d)
    updates = {i: {"w": w, "cluster": i % 2, "n": 4} for i in (0, 3)}
    server = method.aggregate(run.server, updates, Mean(), SERVER)
    assert not len(server["starts"])
    assert_models(server, [np.ones(NET.d)] * 2)


def test_bytes() -> None:
    """k models down, one up."""
    run, _ = start(IFCA(train=replace(TRAIN), clusters=3))
    for drawn, answered in zip(DRAWN, ANSWERED, strict=True):
        record = run.step()
        assert record["bytes_down"] == 3 * 4 * NET.d * len(drawn)
        assert record["bytes_up"] == 4 * NET.d * len(answered)
