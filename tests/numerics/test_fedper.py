"""FedPer against its definition: only the base is averaged, base and head step together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    NEVER,
    TRAIN,
    N,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.methods.fedper import FedPer

B = NET.b


@pytest.mark.parametrize("reset", [False, True], ids=["kept", "reset"])
def test_rounds(reset: bool) -> None:
    run, w0 = start(FedPer(train=replace(TRAIN, reset_momentum=reset)))
    body = w0[:B]
    heads = dict.fromkeys(range(CLIENTS), w0[B:])
    v = dict.fromkeys(range(CLIENTS))
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        bodies = {}
        for i in answered:
            w, v_i = descend(np.append(body, heads[i]), v[i], minibatches(run, t, i))
            bodies[i], heads[i] = w[:B], w[B:]
            v[i] = None if reset else v_i
        body = average(bodies)
        assert_close(run.server["w"], body)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), np.append(body, heads[i]))
    assert_close(run.global_model(), np.append(body, average(heads)))


def test_a_client_never_drawn_has_the_first_head() -> None:
    run, w0 = start(FedPer(train=TRAIN))
    run.step()
    for i in NEVER:
        head = run.personal_model(i)[B:]
        np.testing.assert_array_equal(head.double().numpy(), w0[B:])


def test_global_model_without_shares_has_the_first_head() -> None:
    run, w0 = start(FedPer(train=TRAIN))
    run.step()
    w = run.algorithm.global_model(run.task, run.server, {})
    assert torch.equal(w[:B], run.server["w"])
    np.testing.assert_array_equal(w[B:].double().numpy(), w0[B:])


def test_clients_keep_no_more_than_their_part() -> None:
    run, _ = start(FedPer(train=TRAIN))
    run.step()
    head = run.state(ANSWERED[0][0])["own"]
    assert head.untyped_storage().nbytes() == 4 * (NET.d - B)


def test_bytes() -> None:
    assert_bytes(FedPer(train=TRAIN), B)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedPer(train=TRAIN))


def test_heads_are_weighted_by_samples() -> None:
    run, _ = start(FedPer(train=TRAIN))
    run.step()
    shares = {i: {"own": torch.full((NET.d - B,), float(i)), "n": N[i]} for i in (1, 4)}
    expected = (N[1] + 4 * N[4]) / (N[1] + N[4])
    w = run.algorithm.global_model(run.task, run.server, shares)
    assert_close(w[B:], np.full(NET.d - B, expected))
