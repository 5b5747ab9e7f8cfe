"""Simulated attacks: what attackers send, who they are, what they do to a mean and to a defence."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pgfed.data import datasets
from pgfed.data.federation import Federation, Shard, build
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.exchange.attacks import ATTACKS, Attack
from pgfed.engine.exchange.robust import make_mean
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.randomness import Rng
from pgfed.methods.registry import get
from pgfed.methods.settings import TrainConfig
from pgfed.methods.values import Kind
from pgfed.testing import TRAIN, check_equal, outcome, small_model, started, trivial_federation

LEAVES: dict[str, Kind] = {
    "w": "model",
    "gradient": "gradient",
    "r": "scalar",
    "alpha": "row",
    "n": "count",
}
START = torch.tensor([10.0, 0.0])
UPDATE = {
    "w": torch.tensor([11.0, -2.0]),
    "gradient": torch.tensor([3.0, 4.0]),
    "r": 0.5,
    "alpha": torch.tensor([0.25, 0.75]),
    "n": 7,
}
RNG = Rng(0, 1, 2)


# -- what an attacker sends ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "w", "gradient", "r"),
    [("sign-flip", [7.0, 6.0], [-9.0, -12.0], -1.5), ("scale", [13.0, -6.0], [9.0, 12.0], 1.5)],
)
def test_false_updates_by_hand(kind: str, w: list[float], gradient: list[float], r: float) -> None:
    sent = Attack(kind, strength=3).update(UPDATE, LEAVES, {"w": START}, RNG)
    assert sent["w"].tolist() == w
    assert sent["gradient"].tolist() == gradient
    assert sent["r"] == r
    assert sent["alpha"] is UPDATE["alpha"]
    assert sent["n"] == 7
    assert sent.keys() == UPDATE.keys()


def test_noise_is_as_long_as_told_and_keyed() -> None:
    start = torch.zeros(10_000)
    update = {"w": torch.full((10_000,), 0.02), "n": 7}  # a step of length 2
    attack = Attack("noise", strength=5)
    sent = attack.update(update, LEAVES, {"w": start}, RNG)["w"]
    assert float(sent.norm()) == pytest.approx(10, rel=0.05)
    assert abs(float(torch.dot(sent, update["w"]))) < 2  # it points anywhere
    assert torch.equal(sent, attack.update(update, LEAVES, {"w": start}, RNG)["w"])
    other = attack.update(update, LEAVES, {"w": start}, Rng(0, 1, 3))["w"]
    assert not torch.equal(sent, other)


def test_label_flip_trains_on_mirrored_classes() -> None:
    data = Shard(torch.zeros(4, 2), torch.tensor([0, 1, 2, 9]))
    assert Attack("label-flip").data(data, 10).y.tolist() == [9, 8, 7, 0]
    assert Attack("scale").data(data, 10) is data
    assert Attack("label-flip").update(UPDATE, LEAVES, {"w": START}, RNG) is UPDATE
    assert data.y.tolist() == [0, 1, 2, 9]


# -- who attacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "size"), [(0.2, 10, 2), (0.3, 10, 3), (0.01, 10, 1), (0.999, 3, 2)]
)
def test_share_of_attackers(share: float, clients: int, size: int) -> None:
    drawn = Attack("scale", share).attackers(0, clients)
    assert len(drawn) == size
    assert drawn <= set(range(clients))
    assert drawn == Attack("noise", share).attackers(0, clients)
    assert len({Attack("scale", share).attackers(seed, clients) for seed in range(20)}) > 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "signflip"}, "attack.kind: unknown 'signflip' (did you mean 'sign-flip'?)"),
        ({"kind": "scale", "share": 1.0}, "attack.share: must be between 0 and 1, found 1"),
        ({"kind": "scale", "strength": 0.0}, "attack.strength: must be > 0"),
        ({"kind": "scale", "strength": float("nan")}, "attack.strength: must be > 0"),
    ],
)
def test_wrong_options_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Attack(**values)
    assert str(caught.value).startswith(message)


# -- in the engine ---------------------------------------------------------------------------------


def test_an_attack_is_the_same_on_every_engine() -> None:
    attack = Attack("noise", 0.34)
    algorithm = get("pgfed")(train=TRAIN)
    with started(algorithm, attack=attack) as run:
        expected = outcome(run)
        assert len(run.attackers) == 2
    pool = Process(trivial_federation(), small_model, workers=2)
    with started(algorithm, pool, attack=attack) as run:
        check_equal(expected, outcome(run), "serial and process")
    with started(algorithm) as run:
        assert not run.attackers
        assert not torch.equal(run.server["w"], expected["server w"])


@pytest.mark.parametrize("kind", ATTACKS)
def test_attackers_pass_for_honest(kind: str) -> None:
    """Their replies are well-formed: the server cannot refuse them."""
    with started(get("pgfed")(train=TRAIN), attack=Attack(kind, 0.34, strength=2)) as run:
        while not run.finished:
            assert not run.step()["dropped"]


def test_means_are_over_the_honest_clients() -> None:
    with started(get("fedavg-local")(train=TRAIN), attack=Attack("label-flip", 0.34)) as run:
        while not run.finished:
            record = run.step()
        honest = [i for i in range(6) if i not in run.attackers]
        assert record["mean_score"] == pytest.approx(np.nanmean(run.score[honest]))
        assert record["mean_loss"] == pytest.approx(np.nanmean(run.loss[honest]))
        assert record["mean_score"] != pytest.approx(np.nanmean(run.score))
        assert run.best_score == max(r["mean_score"] for r in run.history)


# -- a plain mean falls, a defence holds -----------------------------------------------------------


@cache
def digits() -> Federation:
    dataset = datasets.load("digits", Path(), image_size=None)
    return build(dataset, partition="dirichlet", clients=15, alpha=1.0, min_samples=30)


@cache
def accuracy(method: str, aggregation: str, kind: str | None, strength: float = 10.0) -> float:
    """Of the honest clients; four of the fifteen attack, twelve are drawn each round."""
    cls, federation = get(method), digits()
    attack = None if kind is None else Attack(kind, 0.27, strength)
    mean = make_mean(aggregation, cls.leaves, attackers=0.3)
    with Serial(federation, "mlp") as backend:
        run = Run(
            cls(train=TrainConfig(epochs=2, batch_size=16, lr=0.05)),
            federation,
            backend,
            seed=1,
            rounds=7,
            cohort=12,
            mean=mean,
            attack=attack,
        )
        while not run.finished:
            run.step()
    assert len(run.attackers) == (4 if attack else 0)
    reached: float = run.history[-1]["mean_score"]
    return reached


@pytest.mark.parametrize("defence", ["median", "trimmed-mean", "krum", "norm-clip"])
def test_sign_flip(defence: str) -> None:
    assert accuracy("fedavg", "mean", None) > 0.85
    assert accuracy("fedavg", "mean", "sign-flip") < 0.3
    assert accuracy("fedavg", defence, "sign-flip") > 0.6


@pytest.mark.parametrize(
    ("kind", "strength", "defence"), [("scale", 10, "norm-clip"), ("noise", 100, "trimmed-mean")]
)
def test_other_false_updates(kind: str, strength: float, defence: str) -> None:
    assert accuracy("fedavg", "mean", kind, strength) < 0.6
    assert accuracy("fedavg", defence, kind, strength) > 0.8


def test_label_flip() -> None:
    """The mildest attack: what it costs depends on whose labels are flipped. Under seeds 0, 1, 2
    the mean reaches 0.91, 0.69, 0.67 and the median 0.92, 0.88, 0.88."""
    fallen = accuracy("fedavg", "mean", "label-flip")
    assert fallen < 0.8
    assert accuracy("fedavg", "median", "label-flip") > fallen + 0.1


@pytest.mark.parametrize("defence", ["trimmed-mean", "krum", "norm-clip"])
def test_pgfed_is_protected_too(defence: str) -> None:
    """Its gradients as well as its model."""
    assert accuracy("pgfed", "mean", "sign-flip") < 0.4
    assert accuracy("pgfed", defence, "sign-flip") > 0.75
