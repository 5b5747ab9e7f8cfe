"""FedBABU against its definition: the base alone is trained, a copy is fine-tuned to be scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    ROUNDS,
    TRAIN,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.fedbabu import FedBABU

B = NET.b


@pytest.mark.parametrize("zero_head", [False, True], ids=["h0", "zero_head"])
def test_rounds(zero_head: bool) -> None:
    run, w0 = start(FedBABU(train=TRAIN, ft_epochs=2, ft_lr=0.05, babu_zero_head=zero_head))
    body, head = w0[:B], w0[B:]
    tuned_from = np.zeros_like(head) if zero_head else head
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        bodies = {}
        for i in answered:  # with a fresh buffer
            w, _ = descend(np.append(body, head), None, minibatches(run, t, i), part=slice(0, B))
            bodies[i] = w[:B]
        body = average(bodies)
        assert_close(run.server["w"], body)
        for i in range(CLIENTS):  # those never drawn, too
            order = minibatches(run, t, i, epochs=2, purpose="evaluate")
            expected, _ = descend(np.append(body, tuned_from), None, order, lr=0.05)
            assert_close(run.personal_model(i), expected)
    assert_close(run.global_model(), np.append(body, tuned_from))


def test_the_head_is_never_trained() -> None:
    """Q5: on the server and on all clients, in all rounds."""
    run, w0 = start(FedBABU(train=TRAIN))
    for _ in range(ROUNDS):
        run.step()
        for holder in (run.server, *map(run.state, range(CLIENTS))):
            np.testing.assert_array_equal(holder["own"].double().numpy(), w0[B:])


def test_without_fine_tuning_the_common_model_is_scored() -> None:
    """Q5: E_ft = 0."""
    run, w0 = start(FedBABU(train=TRAIN, ft_epochs=0))
    run.step()
    for i in range(CLIENTS):
        w = run.personal_model(i)
        assert torch.equal(w[:B], run.server["w"])
        np.testing.assert_array_equal(w[B:].double().numpy(), w0[B:])
        assert torch.equal(w, run.global_model())


def test_momentum_is_never_kept() -> None:
    kept, _ = start(FedBABU(train=TRAIN))
    reset, _ = start(FedBABU(train=replace(TRAIN, reset_momentum=True)))
    for _ in range(ROUNDS):
        kept.step()
        reset.step()
    assert torch.equal(kept.server["w"], reset.server["w"])


def test_defaults_are_those_of_the_released_example() -> None:
    method = FedBABU()
    assert (method.ft_epochs, method.ft_lr, method.babu_zero_head) == (1, 0.001, False)


def test_bytes() -> None:
    assert_bytes(FedBABU(train=TRAIN), B)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedBABU(train=TRAIN))


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"ft_epochs": -1}, r"^method\.fedbabu\.ft_epochs: must be >= 0, found -1$"),
        ({"ft_lr": 0.0}, r"^method\.fedbabu\.ft_lr: must be > 0, found 0$"),
        ({"ft_lr": float("nan")}, r"^method\.fedbabu\.ft_lr: must be > 0, found nan$"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, float], line: str) -> None:
    with pytest.raises(UserError, match=line):
        FedBABU(**wrong)
