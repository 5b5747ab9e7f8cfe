"""FedRep against its definition: the head on a frozen base, then the base under a frozen head."""

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
from pgfed.methods.fedrep import FedRep
from pgfed.methods.randomness import Rng, ServerRng

B = NET.b
BASE, HEAD = slice(0, B), slice(B, NET.d)


@pytest.mark.parametrize(
    ("policy", "reset", "momentum"),
    [("paper", False, 0.9), ("paper", True, 0.9), ("official", False, 0.0)],
)
def test_rounds(policy: str, reset: bool, momentum: float) -> None:
    train = replace(TRAIN, momentum_policy=policy, reset_momentum=reset)
    run, w0 = start(FedRep(train=train, head_epochs=3))
    body = w0[:B]
    heads = dict.fromkeys(range(CLIENTS), w0[B:])
    v_base = dict.fromkeys(range(CLIENTS))
    v_head = dict.fromkeys(range(CLIENTS))
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        bodies = {}
        for i in answered:
            w = np.append(body, heads[i])
            first = minibatches(run, t, i, epochs=3, purpose="head")
            w, v_h = descend(w, v_head[i], first, part=HEAD, momentum=momentum)
            w, v_b = descend(w, v_base[i], minibatches(run, t, i), part=BASE, momentum=momentum)
            bodies[i], heads[i] = w[:B], w[B:]
            if not reset:
                v_base[i], v_head[i] = v_b, v_h
        body = average(bodies)
        assert_close(run.server["w"], body)
        for i in range(CLIENTS):
            assert_close(run.personal_model(i), np.append(body, heads[i]))
    assert_close(run.global_model(), np.append(body, average(heads)))


def test_without_head_epochs_it_is_fedbabu() -> None:
    """Q4: under the same rule for momentum the bases are the same bits, the heads never move."""
    train = replace(TRAIN, reset_momentum=True)
    rep, w0 = start(FedRep(train=train, head_epochs=0))
    babu, _ = start(FedBABU(train=train))
    for _ in range(ROUNDS):
        rep.step()
        babu.step()
        assert torch.equal(rep.server["w"], babu.server["w"])
    for i in range(CLIENTS):
        np.testing.assert_array_equal(rep.state(i)["own"].double().numpy(), w0[B:])


def test_without_base_epochs_the_base_stays() -> None:
    """Q4: the heads train on fixed features; phase 1 leaves the base unchanged."""
    run, w0 = start(FedRep(train=replace(TRAIN, epochs=0)))
    for _ in ANSWERED:
        run.step()
        # Up to the rounding of the mean of equal vectors.
        np.testing.assert_allclose(run.server["w"].double().numpy(), w0[:B], rtol=1e-6)
    trained = set().union(*ANSWERED)
    for i in range(CLIENTS):
        moved = not np.array_equal(run.state(i)["own"].double().numpy(), w0[B:])
        assert moved == (i in trained)


def test_phases_leave_the_other_part_alone() -> None:
    """Q4, bit for bit at one client: what each phase must not touch, it does not."""
    first, w0 = start(FedRep(train=replace(TRAIN, epochs=0)))
    both, _ = start(FedRep(train=TRAIN))
    client = ANSWERED[0][0]
    message = first.algorithm.messages(first.server, [client], ServerRng(0, 1))[client]
    data = first.federation.train(client)
    found = {}
    for name, run in (("first", first), ("both", both)):
        state, rng = run.state(client), Rng(0, client, 1)
        found[name] = run.algorithm.local_update(run.task, state, message, data, rng)
    state, update = found["first"]
    assert torch.equal(update["w"], message["w"])
    assert not np.array_equal(state["own"].double().numpy(), w0[B:])
    assert torch.equal(found["both"][0]["own"], state["own"])
    assert not torch.equal(found["both"][1]["w"], message["w"])


def test_a_client_never_drawn_has_the_first_head() -> None:
    run, w0 = start(FedRep(train=TRAIN))
    run.step()
    for i in NEVER:
        np.testing.assert_array_equal(run.personal_model(i)[B:].double().numpy(), w0[B:])


def test_global_model_without_shares_has_the_first_head() -> None:
    run, w0 = start(FedRep(train=TRAIN))
    run.step()
    w = run.algorithm.global_model(run.task, run.server, {})
    assert torch.equal(w[:B], run.server["w"])
    np.testing.assert_array_equal(w[B:].double().numpy(), w0[B:])


def test_clients_keep_no_more_than_their_part() -> None:
    run, _ = start(FedRep(train=TRAIN))
    run.step()
    head = run.state(ANSWERED[0][0])["own"]
    assert head.untyped_storage().nbytes() == 4 * (NET.d - B)


def test_bytes() -> None:
    assert_bytes(FedRep(train=TRAIN), B)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedRep(train=TRAIN))


def test_negative_head_epochs_are_refused() -> None:
    with pytest.raises(UserError, match=r"^method\.fedrep\.head_epochs: must be >= 0, found -1$"):
        FedRep(head_epochs=-1)
