"""Models of every make: nothing but a head, frozen and tied parts, tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from any_model import ANY_MODEL
from pgfed.data.federation import Federation
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.errors import UserError
from pgfed.methods.registry import get
from pgfed.model.networks import Factory
from pgfed.testing import (
    check_equal,
    frozen_and_tied_model,
    make,
    outcome,
    started,
    text_federation,
    text_model,
    trivial_federation,
)

NEED_BASE = {"fedper", "fedrep", "fedbabu", "lg-fedavg", "fedpac"}


def head_only(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(input_shape[0], outputs)


@pytest.mark.parametrize("method", ANY_MODEL)
def test_a_model_that_is_nothing_but_a_head(method: str) -> None:
    algorithm = make(get(method), {})
    if method in NEED_BASE:
        with (
            pytest.raises(UserError, match=f"'{method}' needs a model with layers before its head"),
            started(algorithm, Serial(trivial_federation(), head_only)),
        ):
            pass
        return
    with started(algorithm, Serial(trivial_federation(), head_only)) as run:
        outcome(run)
        assert all(not record["dropped"] for record in run.history)
        assert run.info.layout.b == 0


@pytest.mark.parametrize(
    ("federation", "model"),
    [(trivial_federation, frozen_and_tied_model), (text_federation, text_model)],
)
@pytest.mark.parametrize("method", ["fedrep", "pgfed"])
def test_worker_processes_give_the_same_bits(
    method: str, federation: Callable[[], Federation], model: Factory
) -> None:
    with started(make(get(method), {}), Serial(federation(), model)) as run:
        expected = outcome(run)
    with started(make(get(method), {}), Process(federation(), model, workers=2)) as run:
        check_equal(expected, outcome(run), "serial and process")
