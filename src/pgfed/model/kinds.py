"""The kinds of tasks: what is minimised in each, and what it is judged by.

`make` gives the objective that the [task] table of an experiment describes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pgfed.errors import UserError, unknown
from pgfed.model import scoring
from pgfed.model.metrics import ACCURACY, Kind
from pgfed.model.objectives import BuiltIn, Objective, Pairs
from pgfed.modules import load_object

Weights = Literal["none", "balanced"] | list[float]


class Classes(BuiltIn):
    """One of K classes: cross-entropy, judged by accuracy."""

    kind: Kind = "classes"
    classifies = True

    def __init__(
        self,
        outputs: Sequence[str] = (),
        metric: str | None = None,
        also: Sequence[str] | None = None,
        weights: Weights = "none",
    ) -> None:
        super().__init__(outputs, metric, also)
        self.balanced = weights == "balanced"
        if isinstance(weights, list):
            self.class_weights = _weights(weights, self.outputs)

    @property
    def positive(self) -> int | None:
        """The class that binary metrics are about."""
        return None

    @property
    def cross_entropy(self) -> bool:  # type: ignore[override]
        return type(self) in (Classes, Binary)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.class_weights is None:
            return F.cross_entropy(outputs, targets)
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # A weight multiplies its sample's loss. torch's own mean divides by the weights' sum over
        # the batch: then the mean over batches would not be the mean over samples.
        return F.cross_entropy(outputs, targets, weight=self._on(outputs), reduction="none")

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Not the sum of `losses`, which adds up in another order.
        return F.cross_entropy(outputs, targets, weight=self._on(outputs), reduction="sum")

    def _on(self, outputs: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(outputs)

    def at(self, targets: Tensor) -> Self:
        if not self.balanced:
            return self
        own = copy.copy(self)
        counts = torch.bincount(targets.reshape(-1), minlength=len(self.outputs))
        present = counts > 0
        # As scikit-learn's "balanced": n / (classes * count). A class that is not here weighs 1.
        share = targets.numel() / (present.sum() * counts.clamp(min=1))
        own.class_weights = torch.where(present, share, 1.0).float()
        return own

    def score(self, pairs: Pairs) -> float | None:
        if self._primary is not ACCURACY:
            return super().score(pairs)
        # One number from the device, and exact: how many are right.
        right = sum_of(outputs.argmax(1) == targets for outputs, targets in pairs)
        samples = sum(len(targets) for _, targets in pairs)
        return right / samples if samples else None

    def facts(self, pairs: Pairs) -> dict[str, float]:
        """Share of the largest class, and how many classes are ever predicted."""
        if not pairs:
            return {}
        targets = torch.cat([y for _, y in pairs])
        predicted = torch.cat([outputs.argmax(1) for outputs, _ in pairs])
        largest = int(torch.bincount(targets).max())
        return {
            "majority": largest / len(targets),
            "predicted": float((torch.bincount(predicted) > 0).sum()),
        }

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == targets

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    def _computed(
        self, names: Sequence[str], predicted: NDArray[Any], targets: NDArray[Any]
    ) -> dict[str, float | None]:
        return scoring.of_classes(names, predicted, targets, self.positive)


class Binary(Classes):
    """One of two classes, one of which is looked for: judged by AUC."""

    kind = "binary"

    def __init__(
        self,
        outputs: Sequence[str],
        metric: str | None = None,
        also: Sequence[str] | None = None,
        weights: Weights = "none",
        positive: str | None = None,
    ) -> None:
        if len(outputs) != 2:
            raise UserError(
                f"task.kind: 'binary' needs two classes, the data has {len(outputs)}; use 'classes'"
            )
        super().__init__(outputs, metric, also, weights)
        if positive is not None and positive not in outputs:
            raise unknown("task.positive", positive, outputs)
        self._positive = len(outputs) - 1 if positive is None else list(outputs).index(positive)

    @property
    def positive(self) -> int:
        return self._positive


class MultiLabel(BuiltIn):
    """Any number of K labels: binary cross-entropy of each, judged by their mean AUC."""

    kind = "multilabel"
    targets = "labels"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of its labels that is right."""
        return ((outputs > 0) == (targets > scoring.HALF)).double().mean(1)

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)

    def _computed(
        self, names: Sequence[str], predicted: NDArray[Any], targets: NDArray[Any]
    ) -> dict[str, float | None]:
        return scoring.of_labels(names, predicted, targets, self.outputs)


class Regression(BuiltIn):
    """One or several numbers: squared error, judged by R².

    Targets are standardised by constants that all clients have in common, so that a model's outputs
    are of the order of one whatever the unit; metrics and predictions are in the targets' units.
    """

    kind = "regression"
    targets = "values"

    def __init__(
        self,
        outputs: Sequence[str],
        metric: str | None = None,
        also: Sequence[str] | None = None,
        means: Sequence[float] | None = None,
        scales: Sequence[float] | None = None,
    ) -> None:
        super().__init__(outputs, metric, also)
        self.means = torch.tensor(_per_target("target_means", means, self.outputs, 0.0))
        self.scales = torch.tensor(_per_target("target_scales", scales, self.outputs, 1.0))
        if not bool((self.scales > 0).all()):
            raise UserError("task.target_scales: found 0 or less; allowed: above 0")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = (targets - self.means.to(targets)) / self.scales.to(targets)
        return (outputs - wanted).square().mean(1)

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The absolute error, in the target's unit; of several targets their mean."""
        return (self.predictions(outputs) - targets).abs().mean(1)

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs * self.scales.to(outputs) + self.means.to(outputs)

    def _computed(
        self, names: Sequence[str], predicted: NDArray[Any], targets: NDArray[Any]
    ) -> dict[str, float | None]:
        return scoring.of_values(names, predicted, targets)


class Segmentation(Classes):
    """A class for every pixel: cross-entropy over pixels, judged by the images' mean Dice."""

    kind = "segmentation"
    targets = "masks"
    classifies = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets).flatten(1).mean(1)

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).sum()

    def reduced(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def score(self, pairs: Pairs) -> float | None:
        return self._scores([self.metric], pairs)[self.metric]

    def facts(self, pairs: Pairs) -> dict[str, float]:
        return {}

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The image's Dice, of outputs that are reduced."""
        return torch.from_numpy(self._each(outputs, targets)["dice"])

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def _scores(self, names: Sequence[str], pairs: Pairs) -> dict[str, float | None]:
        if not pairs:
            return dict.fromkeys(names)
        each = [self._each(masks, targets) for masks, targets in pairs]
        return {name: float(np.concatenate([e[name] for e in each]).mean()) for name in names}

    def _each(self, masks: Tensor, targets: Tensor) -> dict[str, NDArray[np.float64]]:
        """Of each image all metrics."""
        predicted, y = masks.cpu().numpy(), targets.cpu().numpy()
        dice, iou = scoring.overlap(predicted, y, len(self.outputs))
        right: NDArray[np.float64] = (predicted == y).reshape(len(y), -1).mean(1)
        return {"dice": dice, "iou": iou, "accuracy": right}


KINDS: dict[str, type[BuiltIn]] = {
    cls.kind: cls for cls in (Classes, Binary, MultiLabel, Regression, Segmentation)
}
OWN = "package.module:Objective"


def class_of(kind: str) -> type[Objective]:
    """The objective of a kind of task, or one of the user's own."""
    if ":" in kind:
        found = load_object("task.kind", kind)
        if not (isinstance(found, type) and issubclass(found, Objective)):
            raise UserError(f"task.kind: {kind!r} is not a subclass of pgfed.Objective")
        return found
    if kind not in KINDS:
        raise unknown("task.kind", kind, [*KINDS, OWN])
    return KINDS[kind]


def make(
    kind: str,
    outputs: Sequence[str],
    *,
    metric: str | None = None,
    also: Sequence[str] | None = None,
    weights: Weights = "none",
    positive: str | None = None,
    means: Sequence[float] | None = None,
    scales: Sequence[float] | None = None,
) -> Objective:
    """The objective of a task; ``outputs`` are the names of the model's outputs.

    What makes no sense for this kind is refused, naming the key of [task].
    """
    cls = class_of(kind)
    given: dict[str, tuple[str, Any]] = {
        "class_weights": ("weights", None if weights == "none" else weights),
        "positive": ("positive", positive),
        "target_means": ("means", means),
        "target_scales": ("scales", scales),
    }
    if not issubclass(cls, BuiltIn):
        given |= {"metric": ("metric", metric), "metrics": ("also", also)}
    takes = _TAKES.get(cls, ())
    options = {}
    for key, (name, value) in given.items():
        if value is None:
            continue
        if key not in takes:
            raise UserError(f"task.{key}: makes no sense with task.kind = {kind!r}; leave it out")
        options[name] = value
    return cls(outputs, metric, also, **options) if issubclass(cls, BuiltIn) else cls()


_TAKES: dict[type[Objective], tuple[str, ...]] = {
    Classes: ("class_weights",),
    Binary: ("class_weights", "positive"),
    Segmentation: ("class_weights",),
    Regression: ("target_means", "target_scales"),
}


def _weights(weights: Sequence[float], outputs: Sequence[str]) -> Tensor:
    if len(weights) != len(outputs) or not all(weight > 0 for weight in weights):
        raise UserError(
            f"task.class_weights: found {weights}; allowed: none, balanced, or a number above 0 "
            f"for each of the {len(outputs)} classes"
        )
    return torch.tensor(weights, dtype=torch.float32)


def _per_target(
    key: str, values: Sequence[float] | None, outputs: Sequence[str], default: float
) -> list[float]:
    if values is None:
        return [default] * len(outputs)
    if len(values) != len(outputs):
        raise UserError(
            f"task.{key}: found {len(values)} numbers; allowed: one for each of the "
            f"{len(outputs)} targets"
        )
    return [float(value) for value in values]


def sum_of(values: Iterable[Tensor]) -> int:
    """How many are true; the device is asked once."""
    counts = [value.sum() for value in values]
    return int(torch.stack(counts).sum()) if counts else 0


CLASSES = Classes()
