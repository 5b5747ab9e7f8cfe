"""FedAvg-FT against its definition: FedAvg, and a copy fine-tuned to be scored."""

from __future__ import annotations

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
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.fedavg_ft import FedAvgFT


@pytest.mark.parametrize(("epochs", "lr"), [(1, None), (3, 0.02)])
def test_rounds(epochs: int, lr: float | None) -> None:
    run, w = start(FedAvgFT(train=TRAIN, ft_epochs=epochs, ft_lr=lr))
    v = dict.fromkeys(range(CLIENTS))
    for t, answered in enumerate(ANSWERED, 1):
        run.step()
        trained = {}
        for i in answered:
            trained[i], v[i] = descend(w, v[i], minibatches(run, t, i))
        w = average(trained)
        assert_close(run.server["w"], w)
        for i in range(CLIENTS):
            order = minibatches(run, t, i, epochs=epochs, purpose="evaluate")
            expected, _ = descend(w, None, order, lr=lr or TRAIN.lr)
            assert_close(run.personal_model(i), expected)
    assert_close(run.global_model(), w)


def test_only_the_score_differs_from_fedavg() -> None:
    tuned, _ = start(FedAvgFT(train=TRAIN))
    plain, _ = start(FedAvg(train=TRAIN))
    for _ in range(ROUNDS):
        tuned.step()
        plain.step()
        assert torch.equal(tuned.server["w"], plain.server["w"])
    assert tuned.loss.mean() < plain.loss.mean()


def test_without_fine_tuning_it_is_fedavg() -> None:
    tuned, _ = start(FedAvgFT(train=TRAIN, ft_epochs=0))
    plain, _ = start(FedAvg(train=TRAIN))
    tuned.step()
    plain.step()
    for i in range(CLIENTS):
        assert torch.equal(tuned.personal_model(i), plain.personal_model(i))


def test_bytes() -> None:
    assert_bytes(FedAvgFT(train=TRAIN), NET.d)


def test_scoring_has_no_effect() -> None:
    assert_scoring_has_no_effect(FedAvgFT(train=TRAIN))


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"ft_epochs": -2}, r"^method\.fedavg-ft\.ft_epochs: must be >= 0, found -2$"),
        ({"ft_lr": 0.0}, r"^method\.fedavg-ft\.ft_lr: must be > 0, found 0$"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, float], line: str) -> None:
    with pytest.raises(UserError, match=line):
        FedAvgFT(**wrong)
