"""With neither noise nor bound, privacy changes nothing; with them, only what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pgfed.data.federation import Federation, Shard
from pgfed.engine.backends.base import Serial
from pgfed.engine.privacy import Protection
from pgfed.methods import fedala
from pgfed.methods.registry import METHODS, get
from pgfed.methods.settings import PersonalConfig
from pgfed.model.private import view
from pgfed.model.private.view import PrivateTask, Ticket
from pgfed.testing import TRAIN, make, outcome, small_model, started, trivial_federation
from pgfed.testing.private import allowed, protect
from privacy.material import mlp, noisy_gradient, policy, samples

WHOLE = replace(TRAIN, batch_size=0)
# Per-FedAvg draws its two portions anew; the held-out slots of FedFomo are compared below.
PLAIN_EQUAL = [name for name in METHODS if name not in ("per-fedavg",)]


@pytest.mark.parametrize("method", PLAIN_EQUAL)
def test_without_noise_and_bound_it_is_the_plain_method_on_whole_batches(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # FedALA's first passes go on until losses settle, which are not told under privacy.
    monkeypatch.setattr(fedala, "MOST", 1)
    cls, fields = get(method), {"train": WHOLE}
    if not allowed(cls, fields):
        pytest.skip("nothing of it leaves, or it is refused")
    found = []
    for private in (False, True):
        algorithm, backend = make(cls, fields), Serial(other(49, 1), small_model)
        federation = backend.federation
        protection = None
        if private:
            sizes = {i: federation.trains_on(i) for i in range(len(federation))}
            protection = protect(
                algorithm,
                backend.task(3),
                federation,
                sigma=0.0,
                clip=math.inf,
                loss_scale=1e9,
                sizes=sizes,
            )
        with started(algorithm, backend, protection=protection, rounds=3) as run:
            found.append(outcome(run))
    for key, value in found[0].items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.allclose(value, found[1][key], rtol=1e-4, atol=1e-5), key


# A step takes one gradient: draws can be put in the place of batches one by one.
ONE_GRADIENT = ["fedavg", "fedprox", "scaffold", "feddyn", "fedper", "ditto", "mr-mtl", "fedamp"]


@pytest.mark.parametrize("method", ONE_GRADIENT)
def test_with_plain_batches_for_draws_it_is_the_plain_method(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty records in batches of eight: nothing is dropped, and q times size is a batch."""
    asked: list[Ticket] = []
    ticket = PrivateTask._ticket

    def remembered(self: PrivateTask, x: object) -> Ticket:
        asked.append(ticket(self, x))
        return asked[-1]

    def batch(source: object, n: int, q: float) -> Any:
        one = asked[-1]
        order = one.rng.permutation(n, one.purpose, one.epoch).numpy()
        return order[one.place * one.batch :][: one.batch]

    monkeypatch.setattr(PrivateTask, "_ticket", remembered)
    monkeypatch.setattr(view, "drawn", batch)
    found = []
    for private in (False, True):
        algorithm, backend = make(get(method), {}), Serial(other(49, 1), small_model)
        protection = private and protect(
            algorithm,
            backend.task(3),
            backend.federation,
            sigma=0.0,
            clip=math.inf,
            sizes=dict.fromkeys(range(6), 40),
        )
        with started(algorithm, backend, protection=protection or None, rounds=2) as run:
            found.append(outcome(run))
    assert asked, "nothing was drawn"
    for key, value in found[0].items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.allclose(value, found[1][key], rtol=1e-4, atol=1e-5), key


@pytest.mark.parametrize("frame", ["training", "serving"])
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_frames_are_of_the_counts_that_were_released(method: str, frame: str) -> None:
    """With no noise the counts are those of all records, and everything is as without privacy;
    with noise nothing is made of the exact ones."""
    fields = {"train": WHOLE, "personal": PersonalConfig(frame=frame)}
    found = []
    for sigma in (None, 0.0, 3.0):
        algorithm, backend = make(get(method), fields), Serial(other(49, 1), small_model)
        federation = backend.federation
        sizes = {i: federation.trains_on(i) for i in range(len(federation))}
        protection = sigma is not None and protect(
            algorithm, backend.task(3), federation, sigma=sigma, clip=1e6, sizes=sizes
        )
        with started(algorithm, backend, protection=protection or None, rounds=2) as run:
            exact = run.federation.train(0).class_counts(3)
            if sigma:
                assert not torch.equal(run._side.class_counts(0), exact)
                assert torch.equal(run._side.class_counts(0), run._side.class_counts(0))
                continue
            found.append(outcome(run))
    for key, value in found[0].items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.allclose(value, found[1][key], rtol=1e-4, atol=1e-5), key


def test_fedala_learns_its_weights_in_one_pass_where_no_losses_are_told() -> None:
    """The same number of releases in every round that mixes: five batches of eight, of which four
    hold four fifths of the data."""
    algorithm, backend = make(get("fedala"), {}), Serial(trivial_federation(), small_model)
    sizes = dict.fromkeys(range(6), 40)
    protection = protect(algorithm, backend.task(3), backend.federation, sizes=sizes)
    steps = TRAIN.epochs * math.ceil(40 / TRAIN.batch_size)
    mixing = round(0.8 * 40 / TRAIN.batch_size)
    (planned,) = protection.policies[0].releases.values()
    assert planned == steps + mixing


def test_per_fedavg_by_hand() -> None:
    """Both gradients over everything: u = w - alpha g(w); w <- w - eta g(u), twice."""
    cls, fields = get("per-fedavg"), {"train": replace(WHOLE, momentum=0.0), "alpha": 0.3}
    algorithm, backend = make(cls, fields), Serial(trivial_federation(), small_model)
    sizes = {i: backend.federation.trains_on(i) for i in range(6)}

    class Everyone(Protection):
        """Whoever could be drawn is."""

        def source(self, key: int, *purpose: object) -> Any:
            class Zeros:
                def words(self, n: int) -> Any:
                    return np.zeros(n, dtype=np.uint64)

            return Zeros()

    protection = protect(
        algorithm,
        backend.task(3),
        backend.federation,
        sigma=0.0,
        clip=math.inf,
        sizes=sizes,
        kind=Everyone,
    )
    with started(algorithm, backend, protection=protection) as run:
        task, data = run.task, run.federation.train(0)
        w = task.initial()
        state, update, _ = run._side.call("train", 0, 1, None, {"w": w})
        # With q = 1/2 and all drawn, a step is twice the mean gradient.
        x, y = data.batch(slice(0, len(data)))
        expected = w.clone()
        for _ in range(2):
            u = expected - 0.3 * 2 * task.gradient(expected, x, y)
            expected = expected - TRAIN.lr * 2 * task.gradient(u, x, y)
        assert torch.allclose(update["w"], expected, rtol=1e-4, atol=1e-5)
        assert state.keys() == {"v"}


def test_twice_the_clip_is_twice_the_noise_and_nothing_else() -> None:
    task, shard = mlp(), samples(20)
    quiet = noisy_gradient(task, shard, policy(30, 0.0, 100.0))
    noise = [noisy_gradient(task, shard, policy(30, 3.0, c)) - quiet for c in (100.0, 200.0)]
    assert torch.allclose(2 * noise[0], noise[1], rtol=1e-4, atol=1e-4)


def test_the_divisor_is_the_expected_batch_of_the_declared_size() -> None:
    """By hand: the mean over all would divide by 20, the drawn batch by how many were drawn."""
    task, shard = mlp(), samples(20)
    out = noisy_gradient(task, shard, policy(30, 0.0, math.inf))
    x, y = shard.batch(slice(0, 20))
    assert torch.allclose(out, task.gradient(task.initial(), x, y) * 20 / 30, atol=1e-6)


def test_the_order_of_records_does_not_matter() -> None:
    task, shard = mlp(), samples(20)
    turned = Shard(shard.x.flip(0), shard.y.flip(0))
    one, two = (noisy_gradient(task, s, policy(30, 0.0, 0.1)) for s in (shard, turned))
    assert torch.allclose(one, two, atol=1e-6)


def test_a_patient_counts_once_however_many_rows_it_has() -> None:
    """Units by hand: the gradient of each group's mean loss, clipped, summed, over 30."""
    task, shard = mlp(), samples(9)
    group = np.array([0, 0, 0, 0, 1, 1, 2, 3, 3])
    found = noisy_gradient(task, shard, policy(30, 0.0, 0.4), group=group)
    total = torch.zeros(task.d)
    for g in range(4):
        rows = torch.from_numpy(np.flatnonzero(group == g))
        gradient = task.gradient(task.initial(), *shard.batch(rows))
        total += gradient * min(1.0, 0.4 / float(gradient.norm()))
    assert torch.allclose(found, total / 30, atol=1e-5)


def other(n: int, seed: int) -> Federation:
    """The trivial federation with other samples, and other numbers of them, at every client."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(6), n)
    x = rng.normal(size=(len(client), 8)).astype(np.float32) * (1 + seed)
    test = np.arange(len(client)) % n >= n - 9
    return Federation.from_arrays(
        x,
        rng.integers(0, 3, len(client)),
        client=client,
        split=test,
        name="other",
        class_names=["0", "1", "2"],
    )


@pytest.mark.parametrize("method", [name for name in METHODS if name != "local"])
def test_nothing_but_values_depends_on_the_records(method: str) -> None:
    """Two sites of the same declared size, 40 and 43 records: same steps, releases and keys."""
    cls = get(method)
    if not allowed(cls, {}):
        pytest.skip("nothing of it leaves, or it is refused")
    seen = []
    for n, seed in ((49, 1), (52, 8)):
        algorithm, backend = make(cls, {}), Serial(other(n, seed), small_model)
        sizes = dict.fromkeys(range(6), 40)
        protection = protect(algorithm, backend.task(3), backend.federation, sizes=sizes)
        found: dict[str, Any] = {}
        meters: list[Any] = []
        _watch(protection, meters)
        with started(algorithm, backend, protection=protection, rounds=2) as run:
            while not run.finished:
                record = run.step()
                found[str(run.round)] = (record["samples"], record["bytes_up"], record["dropped"])
        seen.append((found, meters))
    assert seen[0] == seen[1]


def _watch(protection: Protection, meters: list[Any]) -> None:
    view = protection.view

    def watched(*args: Any) -> Any:
        private, data = view(*args)
        meters.append(private.meter.releases)
        return private, data

    object.__setattr__(protection, "view", watched)
