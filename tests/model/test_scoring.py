"""Every metric against a derivation of its own: counted pairs, thresholds tried, sets of pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from sklearn import metrics as theirs

from pgfed.errors import UserError
from pgfed.model import metrics
from pgfed.model.scoring import calibration_error, of_classes, of_labels, of_values, overlap

# As with real models, probabilities are often equal: ties are where definitions differ.
STEPS = 12


def probabilities(rng: np.random.Generator, y: np.ndarray, classes: int) -> np.ndarray:
    drawn = rng.integers(1, STEPS, size=(len(y), classes)) + 5 * np.eye(classes)[y]
    return drawn / drawn.sum(1, keepdims=True)


def area(y: np.ndarray, score: np.ndarray) -> float:
    """The share of pairs that are in the right order; half of a tie."""
    pairs = list(itertools.product(score[y], score[~y]))
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


def precision_and_recall(y: np.ndarray, score: np.ndarray) -> list[tuple[float, float]]:
    """At every threshold that calls somebody positive, from the strictest on."""
    found = []
    for threshold in sorted(set(score.tolist()), reverse=True):
        called = score >= threshold
        right = int((called & y).sum())
        found.append((right / int(called.sum()), right / int(y.sum())))
    return found


def mean_precision(y: np.ndarray, score: np.ndarray) -> float:
    total, before = 0.0, 0.0
    for precision, recall in precision_and_recall(y, score):
        total += precision * (recall - before)
        before = recall
    return total


def recall_at(y: np.ndarray, score: np.ndarray, wanted: float) -> float:
    reached = [r for p, r in precision_and_recall(y, score) if p >= wanted - 1e-12]
    return max(reached, default=0.0)


def f1(y: np.ndarray, called: np.ndarray) -> float:
    right, wrong = int((y & called).sum()), int((y != called).sum())
    return 2 * right / (2 * right + wrong) if right else 0.0


# -- classes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("positive", [0, 1])
def test_binary(seed: int, positive: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 60)
    p = probabilities(rng, y, 2)
    names = [*metrics.BY_KIND["binary"], "recall@precision=.75", "recall@precision=1"]
    found = of_classes(names, p, y, positive)
    truth, score, predicted = y == positive, p[:, positive], p.argmax(1)
    assert list(found) == names
    assert found == pytest.approx(
        {
            "auc": area(truth, score),
            "accuracy": np.mean([a == b for a, b in zip(predicted, y, strict=True)]),
            "balanced-accuracy": np.mean([np.mean(predicted[y == k] == k) for k in (0, 1)]),
            "average-precision": mean_precision(truth, score),
            "recall@precision=0.9": recall_at(truth, score, 0.9),
            "recall@precision=.75": recall_at(truth, score, 0.75),
            "recall@precision=1": recall_at(truth, score, 1.0),
            "f1": f1(truth, predicted == positive),
            "log-loss": -np.mean([math.log(row[k]) for row, k in zip(p, y, strict=True)]),
            "calibration-error": by_bins(p.max(1), predicted == y),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_classes_each_against_the_rest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, 90)
    p = probabilities(rng, y, 4)
    found = of_classes(metrics.BY_KIND["classes"], p, y)
    predicted = p.argmax(1)
    one_hot = np.eye(4)[y]
    assert found["auc"] == pytest.approx(np.mean([area(y == k, p[:, k]) for k in range(4)]))
    assert found["auc"] == pytest.approx(theirs.roc_auc_score(y, p, multi_class="ovr"))
    ranked = [mean_precision(y == k, p[:, k]) for k in range(4)]
    assert found["average-precision"] == pytest.approx(np.mean(ranked))
    assert found["average-precision"] == pytest.approx(theirs.average_precision_score(one_hot, p))
    assert found["f1"] == pytest.approx(np.mean([f1(y == k, predicted == k) for k in range(4)]))
    assert found["balanced-accuracy"] == pytest.approx(theirs.balanced_accuracy_score(y, predicted))
    assert found["f1"] == pytest.approx(theirs.f1_score(y, predicted, average="macro"))
    assert found["log-loss"] == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean())
    certain = one_hot[:, [1, 0, 2, 3]]  # of some classes: infinitely wrong, but for a bound
    (bounded,) = of_classes(["log-loss"], certain, y).values()
    assert bounded == pytest.approx(theirs.log_loss(y, certain, labels=range(4)))


def test_classes_that_are_not_there_have_no_say() -> None:
    """Four classes are known, two occur, and a third is predicted."""
    y = np.array([0, 0, 1, 1, 1])
    p = np.array(
        [
            [0.7, 0.1, 0.1, 0.1],
            [0.4, 0.3, 0.2, 0.1],
            [0.3, 0.5, 0.1, 0.1],
            [0.1, 0.2, 0.6, 0.1],
            [0.5, 0.3, 0.1, 0.1],
        ]
    )
    found = of_classes(metrics.BY_KIND["classes"], p, y)
    both = [area(y == k, p[:, k]) for k in (0, 1)]
    assert found["auc"] == pytest.approx(np.mean(both))
    assert found["balanced-accuracy"] == pytest.approx((1 + 1 / 3) / 2)
    # Of F1 the class that is only predicted has: 0, as in scikit-learn.
    assert found["f1"] == pytest.approx((4 / 5 + 2 / 4 + 0) / 3)
    assert found["log-loss"] == pytest.approx(-np.log([0.7, 0.4, 0.5, 0.2, 0.3]).mean())


@pytest.mark.parametrize("positive", [None, 0, 1])
def test_one_class_only_leaves_ranks_undefined(positive: int | None) -> None:
    p = np.array([[0.9, 0.1], [0.4, 0.6]])
    names = [n for n in metrics.BY_KIND["binary"] if positive is not None or "@" not in n]
    found = of_classes(names, p, np.array([0, 0]), positive)
    assert found["accuracy"] == found["balanced-accuracy"] == 0.5
    undefined = {name for name, value in found.items() if value is None}
    assert undefined == {"auc", "average-precision", "recall@precision=0.9"} & set(names)


def test_without_samples_nothing_is_defined() -> None:
    none, names = np.zeros((0, 2)), ["accuracy", "auc"]
    assert of_classes(names, none, np.zeros(0, int)) == {"accuracy": None, "auc": None}
    assert of_labels(names, none, none, ["a", "b"]) == {"accuracy": None, "auc": None}
    assert of_values(["r2", "mae"], none, none) == {"r2": None, "mae": None}


def test_of_a_model_that_diverged_only_what_needs_no_numbers_is_defined() -> None:
    y = np.array([0, 1, 1])
    p = np.array([[0.2, 0.8], [np.nan, np.nan], [0.1, 0.9]])
    found = of_classes(metrics.BY_KIND["binary"], p, y, 1)
    defined = {name: value for name, value in found.items() if value is not None}
    assert list(defined) == ["accuracy", "balanced-accuracy", "f1"]
    labels = of_labels(metrics.BY_KIND["multilabel"], p, np.eye(2)[y], ["a", "b"])
    assert [name for name, value in labels.items() if value is not None] == ["f1", "accuracy"]
    values = of_values(metrics.BY_KIND["regression"], np.array([[1.0], [np.inf]]), np.eye(2)[:, :1])
    assert values == dict.fromkeys(metrics.BY_KIND["regression"])


# -- calibration -------------------------------------------------------------------------------


def by_bins(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """The definition of Guo et al. (2017), with bins that are closed below."""
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [
            (c, r)
            for c, r in zip(confidence, right, strict=True)
            if low <= c < high or (b == bins - 1 and c == 1)
        ]
        if inside:
            of_bin = np.mean([r for _, r in inside]) - np.mean([c for c, _ in inside])
            total += len(inside) / len(confidence) * abs(of_bin)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_calibration_error_by_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = np.append(rng.uniform(0.3, 1, 200), 1.0)
    right = rng.random(201) < 0.6
    assert calibration_error(confidence, right) == pytest.approx(by_bins(confidence, right))


# -- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = (rng.random((50, 3)) < [0.2, 0.5, 0.7]).astype(np.float32)
    p = np.clip((rng.integers(1, STEPS, y.shape) + 4 * y) / (STEPS + 4), 0.01, 0.99)
    names = metrics.BY_KIND["multilabel"]
    found = of_labels(names, p, y, ["a", "b", "c"])
    truth, called = y > 0.5, p >= 0.5
    each = [area(truth[:, k], p[:, k]) for k in range(3)]
    alone = dict(zip(("auc:a", "auc:b", "auc:c"), each, strict=True))
    likely = [math.log(q if t else 1 - q) for q, t in zip(p.ravel(), truth.ravel(), strict=True)]
    assert found == pytest.approx(
        {
            "auc": np.mean(each),
            **alone,
            "average-precision": np.mean([mean_precision(truth[:, k], p[:, k]) for k in range(3)]),
            "f1": np.mean([f1(truth[:, k], called[:, k]) for k in range(3)]),
            "accuracy": np.mean(truth == called),
            "log-loss": -np.mean(likely),
        }
    )


def test_a_label_that_all_or_nobody_has_is_left_out_of_the_mean() -> None:
    y = np.array([[1, 0, 0], [1, 0, 1], [1, 0, 1.0]])
    p = np.array([[0.9, 0.1, 0.6], [0.9, 0.2, 0.7], [0.4, 0.3, 0.2]])
    found = of_labels(["auc", "average-precision", "f1"], p, y, ["all", "none", "some"])
    assert (found["auc:all"], found["auc:none"]) == (None, None)
    assert found["auc"] == found["auc:some"] == 0.5
    assert found["average-precision"] == pytest.approx(mean_precision(y[:, 2] > 0, p[:, 2]))
    # "none" neither occurs nor is predicted.
    assert found["f1"] == pytest.approx((2 * 2 / (2 + 3) + 2 * 1 / (2 + 2)) / 2)
    assert of_labels(["f1", "auc"], p[:, 1:2], y[:, 1:2], ["none"]) == dict.fromkeys(
        ["f1", "auc", "auc:none"]
    )


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [1, 3])
def test_values(targets: int) -> None:
    rng = np.random.default_rng(targets)
    y = 50 + 10 * rng.normal(size=(40, targets))
    predicted = y + rng.normal(size=y.shape)
    found = of_values(["r2", "mae", "rmse", "median-error"], predicted, y)
    error = predicted - y
    columns = range(targets)
    assert found == pytest.approx(
        {
            "mae": np.mean(np.abs(error)),
            "rmse": np.mean([math.sqrt(np.mean(error[:, k] ** 2)) for k in columns]),
            "median-error": np.mean([np.median(np.abs(error[:, k])) for k in columns]),
            "r2": np.mean(
                [1 - (error[:, k] ** 2).sum() / (len(y) * y[:, k].var()) for k in columns]
            ),
        }
    )


def test_targets_that_do_not_vary_leave_r2_undefined() -> None:
    same, one = np.full((4, 1), 2.0), np.array([[3.0]])
    assert of_values(["r2", "mae"], same + 1, same) == {"r2": None, "mae": 1.0}
    assert of_values(["r2", "mae"], one + 1, one) == {"r2": None, "mae": 1.0}


# -- masks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
def test_overlap_by_sets(classes: int) -> None:
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, (6, 5, 4))
    predicted = np.where(rng.random(y.shape) < 0.6, y, rng.integers(0, classes, y.shape))
    y[0], predicted[0] = 0, 0  # nothing to find, and nothing found
    y[1] = 0  # nothing to find
    predicted[2] = 0  # nothing found
    y[3][y[3] == classes - 1] = 0  # a class that is not there
    dice, iou = overlap(predicted, y, classes)
    for n in range(len(y)):
        shares: list[tuple[float, float]] = []
        for k in range(1, classes):
            a = {at for at in np.ndindex(y[n].shape) if y[n][at] == k}
            b = {at for at in np.ndindex(y[n].shape) if predicted[n][at] == k}
            if a | b:
                shares.append((2 * len(a & b) / (len(a) + len(b)), len(a & b) / len(a | b)))
        expected = np.mean(shares, axis=0) if shares else (1.0, 1.0)
        assert (dice[n], iou[n]) == pytest.approx(tuple(expected))
    assert (dice[0], dice[1]) == (1.0, 0.0)


# -- what they are called ------------------------------------------------------------------------


def test_which_way_is_better() -> None:
    less = {name for name, metric in metrics.METRICS.items() if not metric.more_is_better}
    assert less == {"log-loss", "calibration-error", "mae", "rmse", "median-error"}
    mae = metrics.METRICS["mae"]
    assert (mae.sign, mae.bounded, mae.better(1.0, 2.0), mae.better(2.0, 2.0)) == (
        *(-1, False, True, False),
    )
    assert metrics.find("recall@precision=.95").title == "recall at a precision of 0.95"
    assert metrics.described("my own").title == "my own"


@pytest.mark.parametrize("name", ["AUC", "recall@precision=2", "recall@precision=", "accuracyy"])
def test_unknown_metrics_are_named(name: str) -> None:
    with pytest.raises(UserError, match=r"^task\.metric: unknown"):
        metrics.find(name)
