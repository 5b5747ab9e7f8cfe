"""FedRoD against its definition: balanced for the generic model, plain for the own head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from numerics.reference import Array, TorchNet
from numerics.stepping import (
    ANSWERED,
    CLIENTS,
    NET,
    NEVER,
    PROBLEM,
    ROUNDS,
    TRAIN,
    Batch,
    assert_bytes,
    assert_close,
    assert_scoring_has_no_effect,
    average,
    minibatches,
    start,
)
from pgfed.errors import UserError
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedrod import FedRoD
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.model.task import Task

B, K, H = NET.b, NET.k, NET.h
# Every other client has no sample of class 2.
SKEWED: list[Batch] = [(x, y % 2 if i % 2 else y) for i, (x, y) in enumerate(PROBLEM)]


def log_prior(y: np.ndarray) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.bincount(y, minlength=K) / len(y))


@pytest.mark.parametrize(
    ("policy", "reset", "momentum"),
    [("paper", False, 0.9), ("paper", True, 0.9), ("official", False, 0.0)],
)
def test_rounds(policy: str, reset: bool, momentum: float) -> None:
    train = replace(TRAIN, momentum_policy=policy, reset_momentum=reset)
    run, w = start(FedRoD(train=train), clients=SKEWED)
    q = dict.fromkeys(range(CLIENTS), w[B:])
    zero = (np.zeros(NET.d), np.zeros(NET.d - B))
    buffers = dict.fromkeys(range(CLIENTS), zero)
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        trained = {}
        for i in answered:
            u, prior = w.copy(), log_prior(SKEWED[i][1])
            v, v_q = buffers[i]
            for x, y in minibatches(run, t, i):
                # o + q(z) is the output of the model whose head is h + q; both gradients are
                # taken before either step.
                g_q = NET.gradient(np.append(u[:B], u[B:] + q[i]), x, y)[B:]
                v = momentum * v + NET.loss_gradient(u, x, y, shift=prior)[1]
                v_q = momentum * v_q + g_q
                u = u - TRAIN.lr * v
                q[i] = q[i] - TRAIN.lr * v_q
            trained[i] = u
            buffers[i] = zero if reset else (v, v_q)
        w = average(trained)
        assert_close(run.server["w"], w)
        for i in range(CLIENTS):
            assert_close(run.state(i)["q"], q[i])
            assert_close(run.personal_model(i), np.append(w[:B], w[B:] + q[i]))
    assert_close(run.global_model(), w)


def test_a_client_never_drawn_adds_the_first_head() -> None:
    run, w0 = start(FedRoD(train=TRAIN))
    run.step()
    for i in NEVER:
        head = run.server["w"][B:].double().numpy() + w0[B:]
        assert_close(run.personal_model(i)[B:], head)


def test_personal_model_adds_the_outputs_of_both_heads() -> None:
    run, _ = start(FedRoD(train=TRAIN))
    run.step()
    client = ANSWERED[0][0]
    x, _ = run.federation.train(client).batch(slice(None))
    z = run.task.features(run.server["w"], x)
    own = torch.cat([run.server["w"][:B], run.state(client)["q"]])
    both = run.task.head(run.server["w"], z) + run.task.head(own, z)
    torch.testing.assert_close(run.task.logits(run.personal_model(client), x), both)


def test_balanced_classes_give_fedavg() -> None:
    """Q9: a uniform prior shifts all outputs alike."""
    balanced = [(x[: len(y) // K * K], np.arange(len(y) // K * K) % K) for x, y in PROBLEM]
    rod, _ = start(FedRoD(train=TRAIN), clients=balanced)
    avg, _ = start(FedAvg(train=TRAIN), clients=balanced)
    for _ in range(ROUNDS):
        rod.step()
        avg.step()
    torch.testing.assert_close(rod.server["w"], avg.server["w"], rtol=0, atol=1e-5)


def update(run_state: dict[str, Tensor], client: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    run, _ = start(FedRoD(train=TRAIN), clients=SKEWED)
    state = {**run.state(client), **run_state}
    message = run.algorithm.messages(run.server, [client], ServerRng(0, 1))[client]
    data = run.federation.train(client)
    new, reply = run.algorithm.local_update(run.task, state, message, data, Rng(0, client, 1))
    return new, message["w"], reply["w"]


def test_the_personal_head_does_not_reach_the_generic_model() -> None:
    """Q9: whatever q_i is and does, the generic model takes the same steps, bit for bit."""
    zeros, _, with_zeros = update({"q": torch.zeros(NET.d - B)}, client=1)
    large, _, with_large = update({"q": torch.full((NET.d - B,), 7.0).cumsum(0)}, client=1)
    assert not torch.equal(zeros["q"], large["q"])
    assert torch.equal(with_zeros, with_large)


def test_classes_the_client_lacks_get_no_generic_gradient() -> None:
    """Q9: weights and bias of class 2 stay, those of the others move; q_i moves in all."""
    state, before, after = update({}, client=1)
    weights = slice(B, B + K * H)
    moved = (before != after)[weights].view(K, H).any(1)
    assert moved.tolist() == [True, True, False]
    assert (before != after)[B + K * H :].tolist() == [True, True, False]
    assert bool(torch.isfinite(after).all())
    assert (before[B:] != state["q"])[-K:].all()


def test_a_head_without_bias() -> None:
    class NoBias(TorchNet):
        def __init__(self) -> None:
            super().__init__(4, H, K)
            self.head = nn.Linear(H, K, bias=False)

    run, _ = start(FedRoD(train=TRAIN))
    torch.manual_seed(0)
    task = Task(NoBias(), (4,))
    w = task.initial()
    q = w[task.layout.head]
    data = run.federation.train(0)
    state, _ = run.algorithm.local_update(task, {"q": q}, {"w": w}, data, Rng(0, 0, 1))
    assert state["q"].shape == (K * H,)
    assert not torch.equal(state["q"], q)


def test_a_head_of_several_layers_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, H), nn.Sequential(nn.Tanh(), nn.Linear(H, K)))
    task = Task(module, (4,), head="1")
    with pytest.raises(UserError, match=r"^methods: 'fedrod' .* single nn\.Linear .*; '1' is not$"):
        FedRoD(train=TRAIN).check_model(task)


def test_one_forward_pass_through_the_base_per_batch() -> None:
    run, _ = start(FedRoD(train=TRAIN))
    calls = []
    run.task.module.get_submodule("base").register_forward_hook(lambda *_: calls.append(1))
    client = ANSWERED[0][0]
    message = run.algorithm.messages(run.server, [client], ServerRng(0, 1))[client]
    data = run.federation.train(client)
    run.algorithm.local_update(run.task, run.state(client), message, data, Rng(0, client, 1))
    assert len(calls) == TRAIN.epochs * (len(data) // TRAIN.batch_size)


def test_bytes() -> None:
    assert_bytes(FedRoD(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedRoD(train=TRAIN))
