"""Which method a sweep chose, and why: the words hold what the clients' validation scores carry."""

from __future__ import annotations

import pytest

from pgfed.methods.roles import Role
from pgfed.model.metrics import ACCURACY, METRICS, Metric
from pgfed.tuning.choice import Choice, Tried

ROLES: dict[str, Role] = {
    "alone": "baseline",
    "fedavg": "method",
    "ditto": "method",
    "pooled": "bound",
}
BASE = [0.5, 0.6, 0.7, 0.8, 0.6, 0.7, 0.5, 0.9] * 2


def tried(method: str, clients: list[float] | None, mean: float | None = None) -> Tried:
    if mean is None:
        assert clients is not None
        mean = sum(clients) / len(clients)
    known = None if clients is None else list(clients)
    return Tried(method, {"lr": 0.1}, mean, 1.0, method, known)  # type: ignore[arg-type]


def choice(metric: Metric = ACCURACY, **clients: list[float]) -> Choice:
    return Choice({m: tried(m, values) for m, values in clients.items()}, ROLES, metric)


def moved(by: list[float]) -> list[float]:
    return [a + b for a, b in zip(BASE, by, strict=True)]


def test_a_lead_at_every_client_is_clear_and_one_that_swings_is_not() -> None:
    made = choice(
        alone=BASE,
        fedavg=moved([0.06, 0.05, 0.04, 0.06, 0.05, 0.05, 0.04, 0.05] * 2),
        ditto=moved([0.2, -0.1, 0.1, -0.05, 0.2, -0.15, 0.1, 0.05] * 2),
    )
    assert made.ranked == ["fedavg", "ditto", "alone"]
    lines = made.lines(["framed"])
    assert lines[0] == (
        "Chosen on validation data: fedavg (lr = 0.1), accuracy 71.2 %: the best of 3 methods."
    )
    assert lines[1].startswith("Clearly better than alone (+5.0 [+4.")
    assert lines[2].startswith("Not clearly better than ditto (+0.63 [")
    assert "framed (variants follow their base" in lines[-1]


def test_of_a_few_clients_no_lead_is_called_clear() -> None:
    lines = choice(alone=BASE[:3], fedavg=[a + 0.2 for a in BASE[:3]]).lines()
    assert lines[1].startswith("Its lead over alone (+20.0 [")
    assert lines[1].endswith("no more than a hint.")
    assert "Clearly" not in " ".join(lines)


def test_of_errors_the_smaller_is_better() -> None:
    made = choice(METRICS["mae"], alone=moved([0.3] * 16), fedavg=BASE)
    assert made.method == "fedavg"
    assert made.lines()[1] == "Clearly better than alone (+0.3 [+0.3, +0.3])."


def test_where_training_alone_is_best_it_is_said() -> None:
    lines = choice(alone=moved([0.1] * 16), fedavg=BASE).lines()
    assert "alone (lr = 0.1)" in lines[0]
    assert lines[1] == "It trains alone: no federated method that was tried is better here."


def test_a_bound_is_never_chosen() -> None:
    assert choice(pooled=moved([0.1] * 16), fedavg=BASE).method == "fedavg"
    assert choice(pooled=BASE).lines() == []


@pytest.mark.parametrize("other", [None, [float("nan")] * 16])
def test_without_the_clients_scores_there_is_a_choice_and_no_interval(
    other: list[float] | None,
) -> None:
    best = {"fedavg": tried("fedavg", BASE), "ditto": tried("ditto", other, 0.1)}
    made = Choice(best, ROLES, ACCURACY)
    assert made.lead("ditto") is None
    assert len(made.lines()) == 1
