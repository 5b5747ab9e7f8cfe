"""Every method with models of every make: nothing but a head."""

from __future__ import annotations

import pytest
from torch import nn

from pgfed.engine.backends.base import Serial
from pgfed.errors import UserError
from pgfed.methods.registry import METHODS, get
from pgfed.testing import make, outcome, started, trivial_federation

NEED_BASE = {"fedper", "fedrep", "fedbabu", "lg-fedavg"}


def head_only(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(input_shape[0], outputs)


@pytest.mark.parametrize("method", METHODS)
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
