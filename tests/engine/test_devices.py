"""Workers that start afresh, as beside a GPU and on macOS; and a GPU, where there is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pgfed.engine.backends import process
from pgfed.engine.backends.base import Serial
from pgfed.methods.registry import get
from pgfed.testing.material import small_model, trivial_federation
from pgfed.testing.running import check_equal, make, outcome, started

METHODS = ("fedavg", "pgfed", "fedrep", "apfl")


def test_workers_that_start_afresh_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(make(get("pgfed"), {}), rounds=2) as run:
        expected = outcome(run)
    # What decides it; the workers themselves see the real one.
    monkeypatch.setattr(process, "sys", SimpleNamespace(platform="darwin"))
    pool = process.Process(trivial_federation(), small_model, workers=1)
    assert pool._context.get_start_method() == "spawn"
    with started(make(get("pgfed"), {}), pool, rounds=2) as run:
        check_equal(outcome(run), expected, "workers that start afresh")


@pytest.mark.parametrize(
    ("workers", "device", "expected"),
    [(0, "cpu", process.available_cores()), (0, "cuda", 3), (5, "cuda", 5), (5, "cpu", 5)],
)
def test_workers_beside_a_gpu_are_as_many_as_share_it(
    workers: int, device: str, expected: int
) -> None:
    assert process.worker_count(workers, device, per_device=3) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_gives_nearly_the_numbers_of_the_cpu(method: str) -> None:
    models = []
    for device in ("cpu", "cuda"):
        backend = Serial(trivial_federation(), small_model, device=device)
        with started(make(get(method), {}), backend) as run:
            while not run.finished:
                run.step()
            models.append({i: w.cpu() for i, w in run.personal_models()})
    for i, model in models[0].items():
        torch.testing.assert_close(models[1][i], model, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", METHODS)
def test_workers_on_a_gpu_give_the_same_bits_as_no_workers(method: str) -> None:
    with started(
        make(get(method), {}), Serial(trivial_federation(), small_model, device="cuda")
    ) as run:
        expected = {i: w.cpu() for i, w in outcome(run).items() if isinstance(w, torch.Tensor)}
    pool = process.Process(trivial_federation(), small_model, workers=2, device="cuda")
    with started(make(get(method), {}), pool) as run:
        found = {i: w.cpu() for i, w in outcome(run).items() if isinstance(w, torch.Tensor)}
    check_equal(found, expected, "workers on a GPU")
