"""LG-FedAvg against its definition: only the head is averaged, momentum starts anew."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from numerics.reference import Array
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    NEVER,
    TRAIN,
    Batch,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    descend,
    minibatches,
    start,
)
from pgfed.methods.lg_fedavg import LGFedAvg

B = NET.b


def together(w: Array, batches: Iterable[Batch]) -> Array:
    return descend(w, None, batches)[0]


def in_turns(w: Array, batches: Iterable[Batch]) -> Array:
    """Per batch a step of the base, then, at the base so found, a step of the head."""
    v_base = v_head = None
    for batch in batches:
        w, v_base = descend(w, v_base, [batch], part=slice(0, B))
        w, v_head = descend(w, v_head, [batch], part=slice(B, NET.d))
    return w


@pytest.mark.parametrize("two_pass", [False, True], ids=["joint", "two_pass"])
def test_rounds(two_pass: bool) -> None:
    run, w0 = start(LGFedAvg(train=TRAIN, lg_two_pass=two_pass))
    train = in_turns if two_pass else together
    head = w0[B:]
    bodies = dict.fromkeys(range(CLIENTS), w0[:B])
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        heads = {}
        for i in answered:
            w = train(np.append(bodies[i], head), minibatches(run, t, i))
            bodies[i], heads[i] = w[:B], w[B:]
        head = average(heads)
        assert_close(run.server["w"], head)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), np.append(bodies[i], head))
    assert_close(run.global_model(), np.append(average(bodies), head))


def test_two_passes_differ_from_one() -> None:
    joint, _ = start(LGFedAvg(train=TRAIN))
    turns, _ = start(LGFedAvg(train=TRAIN, lg_two_pass=True))
    joint.step()
    turns.step()
    assert (joint.server["w"] - turns.server["w"]).abs().max() > 1e-3


def test_a_client_never_drawn_has_the_first_base() -> None:
    run, w0 = start(LGFedAvg(train=TRAIN))
    run.step()
    for i in NEVER:
        body = run.personal_model(i)[:B]
        np.testing.assert_array_equal(body.double().numpy(), w0[:B])


def test_global_model_without_shares_has_the_first_base() -> None:
    run, w0 = start(LGFedAvg(train=TRAIN))
    run.step()
    w = run.algorithm.global_model(run.task, run.server, {})
    np.testing.assert_array_equal(w[:B].double().numpy(), w0[:B])
    np.testing.assert_array_equal(w[B:].numpy(), run.server["w"].numpy())


def test_the_reply_holds_the_head_only() -> None:
    run, _ = start(LGFedAvg(train=TRAIN))
    assert run.step()["bytes_by_key"]["up"] == {"w": 4 * 3 * (NET.d - B)}
    assert set(run.state(ANSWERED[0][0])) == {"own"}  # no momentum buffer is kept


@pytest.mark.parametrize("two_pass", [False, True], ids=["joint", "two_pass"])
def test_bytes(two_pass: bool) -> None:
    assert_bytes(LGFedAvg(train=TRAIN, lg_two_pass=two_pass), NET.d - B)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(LGFedAvg(train=TRAIN))
