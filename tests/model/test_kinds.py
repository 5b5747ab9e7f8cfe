"""The kinds of tasks: what each minimises, what it is judged by, and what it refuses."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.config.tables import Task as Table
from pgfed.data.federation import Federation, Shard
from pgfed.engine.objective import completed, make_objective, targets_of
from pgfed.errors import UserError
from pgfed.methods.randomness import Rng
from pgfed.model import metrics, task
from pgfed.model.kinds import Binary, Classes, MultiLabel, Regression, Segmentation, make
from pgfed.model.objectives import BuiltIn, Objective, Pairs
from pgfed.model.task import Task

N = 9


def objectives() -> dict[str, Objective]:
    abc = ("a", "b", "c")
    return {
        "classes": Classes(abc),
        "classes, weights": Classes(abc, weights=[0.5, 2.0, 3.0]),
        "classes, balanced": Classes(abc, weights="balanced").at(torch.tensor([0, 0, 0, 1, 2, 2])),
        "binary": Binary(abc[:2]),
        "binary, weights": Binary(abc[:2], weights=[0.5, 2.0]),
        "multilabel": MultiLabel(abc),
        "regression": Regression(abc, means=[5.0, -1.0, 0.0], scales=[2.0, 0.1, 30.0]),
        "segmentation": Segmentation(abc),
        "segmentation, weights": Segmentation(abc, weights=[0.5, 2.0, 3.0]),
    }


def sample(objective: Objective, n: int = N) -> tuple[Tensor, Tensor]:
    """Outputs and targets as the objective takes them."""
    assert isinstance(objective, BuiltIn)
    streams = torch.Generator().manual_seed(n)
    k = len(objective.outputs)
    match objective.targets:
        case "classes":
            shape: tuple[int, ...] = (n, k)
            y = torch.randint(0, k, (n,), generator=streams)
        case "labels":
            shape, y = (n, k), (torch.rand(n, k, generator=streams) < 0.4).float()
        case "values":
            shape, y = (n, k), 5 + torch.randn(n, k, generator=streams)
        case "masks":
            shape, y = (n, k, 4, 3), torch.randint(0, k, (n, 4, 3), generator=streams)
    return torch.randn(*shape, generator=streams), y


@pytest.fixture(params=objectives().values(), ids=objectives().keys())
def objective(request: pytest.FixtureRequest) -> Objective:
    return request.param  # type: ignore[no-any-return]


# -- what is minimised -------------------------------------------------------------------------


def test_the_loss_is_the_mean_and_the_total_the_sum_of_the_losses(objective: Objective) -> None:
    outputs, y = sample(objective)
    losses = objective.losses(outputs, y)
    assert losses.shape == (N,)
    torch.testing.assert_close(objective.loss(outputs, y), losses.mean())
    torch.testing.assert_close(objective.total(outputs, y), losses.sum())
    # A sample's loss is its own: it does not depend on the others of its batch.
    alone = torch.cat([objective.losses(outputs[i : i + 1], y[i : i + 1]) for i in range(N)])
    torch.testing.assert_close(losses, alone)


def by_hand(objective: Objective, outputs: Tensor, y: Tensor, weights: list[float]) -> list[float]:
    """The losses, sample by sample in plain Python."""
    found = []
    for o, t in zip(outputs.double().tolist(), y.tolist(), strict=True):
        match objective.targets:
            case "classes":
                found.append(weights[t] * cross_entropy(o, t))
            case "labels":
                each = [
                    -math.log(1 / (1 + math.exp(-v if k else v))) for v, k in zip(o, t, strict=True)
                ]
                found.append(float(np.mean(each)))
            case "values":
                means, scales = [5.0, -1.0, 0.0], [2.0, 0.1, 30.0]
                parts = zip(o, t, means, scales, strict=True)
                found.append(float(np.mean([(v - (k - m) / s) ** 2 for v, k, m, s in parts])))
            case "masks":
                places = list(np.ndindex(len(t), len(t[0])))
                pixels = [
                    weights[t[i][j]] * cross_entropy([plane[i][j] for plane in o], t[i][j])
                    for i, j in places
                ]
                found.append(sum(pixels) / len(places))
    return found


def cross_entropy(outputs: list[float], target: int) -> float:
    return math.log(sum(math.exp(v - outputs[target]) for v in outputs))


WEIGHTS = {
    "classes, weights": [0.5, 2.0, 3.0],
    "classes, balanced": [6 / (3 * 3), 6 / (3 * 1), 6 / (3 * 2)],
    "binary, weights": [0.5, 2.0],
    "segmentation, weights": [0.5, 2.0, 3.0],
}


@pytest.mark.parametrize("name", objectives())
def test_losses_by_hand(name: str) -> None:
    found = objectives()[name]
    outputs, y = sample(found)
    expected = by_hand(found, outputs, y, WEIGHTS.get(name, [1.0] * 3))
    assert found.losses(outputs, y).tolist() == pytest.approx(expected, rel=1e-5)


def test_without_weights_the_loss_of_classes_is_torchs_own() -> None:
    """Bit for bit: all results of 0.1 hang on it."""
    outputs, y = sample(Classes(("a", "b", "c")), 37)
    found = Classes(("a", "b", "c"))
    assert torch.equal(found.loss(outputs, y), F.cross_entropy(outputs, y))
    assert torch.equal(found.total(outputs, y), F.cross_entropy(outputs, y, reduction="sum"))


def test_weights_are_not_divided_by_their_sum() -> None:
    """torch's own mean is: with all weights 2 it would change nothing."""
    outputs, y = sample(Classes(("a", "b", "c")))
    double = Classes(("a", "b", "c"), weights=[2.0, 2.0, 2.0])
    torch.testing.assert_close(double.loss(outputs, y), 2 * F.cross_entropy(outputs, y))


def test_balanced_weights_are_those_of_a_clients_own_training_data() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    general = Classes(("a", "b", "c"), weights="balanced")
    y = torch.tensor([0] * 6 + [1] * 3)  # the third class is not here
    own = general.at(y)
    theirs = compute_class_weight("balanced", classes=np.array([0, 1]), y=y.numpy())
    zeros = torch.zeros(3, 3)
    assert own.losses(zeros, torch.arange(3)).tolist() == pytest.approx(
        [*(math.log(3) * theirs), math.log(3)]
    )
    # The common one is as it was.
    assert general.losses(zeros, torch.arange(3)).tolist() == pytest.approx([math.log(3)] * 3)
    assert Classes(("a", "b", "c")).at(y).class_weights is None


def test_balanced_weights_of_masks_count_pixels() -> None:
    y = torch.zeros(2, 2, 2, dtype=torch.int64)
    y[0, 0, 0] = 1
    own = Segmentation(("a", "b"), weights="balanced").at(y)
    flat = torch.zeros(1, 2, 1, 1)
    found = [float(own.losses(flat, torch.tensor([[[k]]]))) for k in (0, 1)]
    assert found == pytest.approx([math.log(2) * 8 / (2 * 7), math.log(2) * 8 / 2])


def test_the_gradient_in_pieces_is_that_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under weights too: were they divided by their sum per piece, it would not be."""
    torch.manual_seed(0)
    found = Classes(("a", "b", "c"), weights=[0.1, 1.0, 9.0])
    model = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,), objective=found)
    y = torch.sort(torch.randint(0, 3, (30,))).values
    data = Shard(torch.randn(30, 4), y)
    theta = model.initial()
    whole = model.mean_gradient(theta, data, Rng(0, 0, 1), 30)
    monkeypatch.setattr(task, "GRADIENT_BATCH", 7)
    loss, gradient = model.mean_gradient(theta, data, Rng(0, 0, 1), 30)
    assert loss == pytest.approx(whole[0], rel=1e-6)
    torch.testing.assert_close(gradient, whole[1])
    once = model.gradient(theta, *data.batch(slice(None)), training=False)
    torch.testing.assert_close(gradient, once)


# -- how it is judged --------------------------------------------------------------------------


def test_scores_do_not_depend_on_the_batches(objective: Objective) -> None:
    outputs, y = sample(objective, 24)
    small = objective.reduced(outputs)
    whole = objective.scores([(small, y)])
    parts: Pairs = [(small[:5], y[:5]), (small[5:6], y[5:6]), (small[6:], y[6:])]
    assert objective.scores(parts) == pytest.approx(whole)
    assert objective.score(parts) == pytest.approx(whole[objective.metric])
    assert next(iter(whole)) == objective.metric == objective.names[0]
    assert set(objective.names) <= set(whole)
    assert objective.outcomes(small, y).shape == (24,)


def test_no_samples_no_score(objective: Objective) -> None:
    assert objective.score([]) is None
    assert objective.scores([]) == dict.fromkeys(objective.names)


@pytest.mark.parametrize("kind", ["classes", "binary", "multilabel", "regression", "segmentation"])
def test_every_metric_of_a_kind_can_be_the_primary_one(kind: metrics.Kind) -> None:
    outputs = ("a", "b")
    for name in metrics.BY_KIND[kind]:
        found = make(kind, outputs, metric=name)
        known = metrics.find(name)
        assert found.primary == known
        assert (found.metric, found.more_is_better) == (name, known.more_is_better)
        assert (found.bounds, found.unit) == ((known.low, known.high), known.unit)
        assert sorted(found.names) == sorted(metrics.BY_KIND[kind])
        score = found.score([(found.reduced(sample(found, 40)[0]), sample(found, 40)[1])])
        assert score is not None
        assert known.low <= score <= known.high
    only = make(kind, outputs, also=[])
    assert only.names == [metrics.BY_KIND[kind][0]]


def test_the_positive_class_is_the_last_unless_said() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    y = torch.tensor([0, 0, 1, 1])
    names = ["f1", "recall@precision=1"]

    def scores(positive: str | None) -> dict[str, float | None]:
        return Binary(("no", "yes"), "auc", names, positive=positive).scores([(logits, y)])

    assert scores(None) == scores("yes")
    # yes: ranks 3 > 1 > -1 > -2 by logit; the right ones are first and third.
    assert scores("yes") == pytest.approx({"auc": 3 / 4, "f1": 1 / 2, "recall@precision=1": 1 / 2})
    # no: ranks 2 > 1 > -1 > -3; the right ones are first and third.
    assert scores("no") == pytest.approx({"auc": 3 / 4, "f1": 1 / 2, "recall@precision=1": 1 / 2})
    more = Binary(("no", "yes"), "recall@precision=1", positive="no")
    shifted = logits + torch.tensor([[0.0, 0.0], [0.0, -9.0], [0.0, 0.0], [0.0, 0.0]])
    assert more.score([(shifted, y)]) == 1.0  # both of "no" come first
    assert Binary(("no", "yes"), "recall@precision=1").score([(shifted, y)]) == pytest.approx(1.0)


def test_facts_of_classes() -> None:
    outputs = torch.eye(3)[[0, 0, 1, 0, 0]]
    found = Classes(("a", "b", "c")).facts([(outputs, torch.tensor([0, 2, 2, 2, 1]))])
    assert found == {"majority": 3 / 5, "predicted": 2.0}


# -- regression --------------------------------------------------------------------------------


def test_regression_learns_in_standard_units_and_is_judged_in_the_targets() -> None:
    found = Regression(("height", "mass"), "mae", means=[170.0, 70.0], scales=[10.0, 15.0])
    outputs = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    y = torch.tensor([[180.0, 70.0], [170.0, 70.0]])
    said = found.predictions(outputs)
    assert said.tolist() == [[170.0, 70.0], [180.0, 55.0]]
    assert found.losses(outputs, y).tolist() == pytest.approx([0.5 * 1, 0.5 * (1 + 1)])
    scores = found.scores([(outputs, y)])
    assert scores["mae"] == pytest.approx((10 + 0 + 10 + 15) / 4)
    assert scores["rmse"] == pytest.approx((10 + math.sqrt(15**2 / 2)) / 2)
    assert scores["r2"] is None  # one of the targets does not vary
    assert found.outcomes(outputs, y).tolist() == [5.0, 12.5]


def values(y: list[float]) -> Federation:
    n = len(y)
    return Federation.from_arrays(
        np.zeros((n, 2), np.float32),
        np.array(y),
        client=np.arange(n) % 2,
        split=(np.arange(n) >= n - 2).astype(int),
        targets="values",
    )


def test_standardisation_is_that_of_all_training_data(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgfed.notes")
    data = values([1.0, 2.0, 3.0, 6.0, 1000.0, -1000.0])
    table = completed(Table(kind="regression"), data)
    (line,) = caplog.messages
    assert line.startswith("targets are standardised by mean 3 and scale 1.87083, of all training")
    assert table.target_means == pytest.approx([3.0])
    assert table.target_scales == pytest.approx([np.std([1, 2, 3, 6])], rel=1e-5)
    made = make_objective(table, data.class_names)
    assert isinstance(made, Regression)
    assert made.means.tolist() == table.target_means
    said = Table(kind="regression", target_means=[1.0], target_scales=[2.0])
    assert completed(said, data) == said
    assert completed(Table(kind="binary"), data) == Table(kind="binary")
    with pytest.raises(UserError, match="a target has the same value everywhere"):
        completed(Table(kind="regression"), values([4.0] * 6))


# -- segmentation ------------------------------------------------------------------------------


def test_segmentation_scores_images_not_pixels() -> None:
    found = Segmentation(("back", "a", "b"))
    y = torch.zeros(2, 2, 4, dtype=torch.int64)
    y[0, 0, :2] = 1
    y[1, 1] = 2
    said = torch.zeros_like(y)
    said[0, 0, 1:3] = 1  # one of two, and one beside
    said[1, 1] = 2  # all
    said[1, 0, 0] = 1  # of a class that is not there
    scores = found.scores([(said[:1], y[:1]), (said[1:], y[1:])])
    assert scores == pytest.approx(
        {
            "dice": (0.5 + (1.0 + 0.0) / 2) / 2,
            "iou": (1 / 3 + (1.0 + 0.0) / 2) / 2,
            "accuracy": (6 / 8 + 7 / 8) / 2,
        }
    )
    assert found.outcomes(said, y).tolist() == [0.5, 0.5]
    outputs = F.one_hot(said, 3).permute(0, 3, 1, 2).float()
    assert torch.equal(found.reduced(outputs), said)


# -- what is refused ---------------------------------------------------------------------------


class Own(Objective):
    metric = "surprise"

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        return {"surprise": float(len(pairs))}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a metric of another kind": (
        {"kind": "classes", "metric": "r2"},
        r"^task\.metric: unknown 'r2'.*allowed: .*accuracy",
    ),
    "a further metric of another kind": (
        {"kind": "regression", "metrics": ["mae", "auc"]},
        r"^task\.metrics: unknown 'auc'.*allowed: .*mae",
    ),
    "recall at a precision without a positive class": (
        {"kind": "classes", "metric": "recall@precision=0.9"},
        r"^task\.metric: unknown 'recall@precision=0.9'",
    ),
    "a metric twice": (
        {"kind": "binary", "metrics": ["f1", "f1"]},
        r"^task\.metrics: found 'f1' twice; allowed: each metric once$",
    ),
    "an unknown positive class": (
        {"kind": "binary", "positive": "maybe"},
        r"^task\.positive: unknown 'maybe'; allowed: a, b$",
    ),
    "too few weights": (
        {"kind": "classes", "class_weights": [1.0]},
        r"^task\.class_weights: found \[1\.0\]; allowed: .*each of the 2 classes$",
    ),
    "a weight of zero": (
        {"kind": "binary", "class_weights": [1.0, 0.0]},
        r"^task\.class_weights: found \[1\.0, 0\.0\]; allowed: .*above 0",
    ),
    "too many means": (
        {"kind": "regression", "target_means": [1.0, 2.0, 3.0]},
        r"^task\.target_means: found 3 numbers; allowed: one for each of the 2 targets$",
    ),
    "a scale of zero": (
        {"kind": "regression", "target_scales": [1.0, 0.0]},
        r"^task\.target_scales: found 0 or less; allowed: above 0$",
    ),
    **{
        f"{key} of {kind}": (
            {"kind": kind, key: value},
            rf"^task\.{key}: makes no sense with task\.kind = '{kind}'; leave it out$",
        )
        for kind, key, value in (
            ("classes", "positive", "a"),
            ("multilabel", "class_weights", "balanced"),
            ("regression", "class_weights", [1.0, 1.0]),
            ("segmentation", "positive", "a"),
            ("binary", "target_means", [1.0, 1.0]),
            ("multilabel", "target_scales", [1.0, 1.0]),
            ("model.test_kinds:Own", "metric", "auc"),
            ("model.test_kinds:Own", "metrics", ["auc"]),
            ("model.test_kinds:Own", "class_weights", "balanced"),
        )
    },
    "no objective": (
        {"kind": "model.test_kinds:N"},
        r"^task\.kind: 'model\.test_kinds:N' is not a subclass of pgfed\.Objective$",
    ),
}


@pytest.mark.parametrize(("table", "said"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_one_line(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        make_objective(Table(**table), ("a", "b"))
    assert "\n" not in str(refused.value)


def test_binary_needs_two_classes() -> None:
    with pytest.raises(UserError, match=r"^task\.kind: 'binary' needs two classes, .* has 3"):
        make("binary", ("a", "b", "c"))


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    with pytest.raises(
        UserError, match=r"^task\.kind: unknown 'ranking'; allowed: .*segmentation$"
    ):
        Table(kind="ranking")


def test_own_objectives_are_found_by_name() -> None:
    found = make_objective(Table(kind="model.test_kinds:Own"), ("a", "b"))
    assert type(found).__name__ == "Own"
    assert found.primary == metrics.Metric("surprise", "surprise", False, -math.inf, math.inf)
    assert targets_of(Table(kind="model.test_kinds:Own")) == "classes"
    assert targets_of(Table(kind="regression")) == "values"
