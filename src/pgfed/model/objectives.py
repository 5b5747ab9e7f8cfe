"""What is minimised, and by which numbers the result is judged. Methods never see this.

An objective knows the loss and the metrics of a task; a method knows neither classes nor accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pgfed.data.dataset import Targets
from pgfed.model import metrics
from pgfed.model.metrics import Kind, Metric

Pairs = Sequence[tuple[Tensor, Tensor]]  # (outputs, targets) of batches, all of one client's set


class Outputs:
    """What a model gave for many batches, in one place.

    Kept batch by batch, it would lie between their inputs, whose memory glibc could then not give
    to the next ones: a large test set would end up in memory.
    """

    def __init__(self, n: int) -> None:
        self._n, self._end = n, 0
        self._all: Tensor | None = None

    def add(self, outputs: Tensor) -> None:
        if self._all is None:
            self._all = outputs.new_empty((self._n, *outputs.shape[1:]))
        self._all[self._end : self._end + len(outputs)] = outputs
        self._end += len(outputs)

    def beside(self, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [] if self._all is None else [(self._all, targets)]


class Objective:
    """The base of all objectives; what one of your own must say is `loss`, `scores` and `metric`.

    ``metric`` is the primary one: a key of what `scores` gives. `outputs` of a model are passed
    through `reduced` before they are scored.
    """

    targets: ClassVar[Targets] = "classes"  # the form that the data's targets must have
    classifies: ClassVar[bool] = False  # outputs are one number for each class
    metric: str = "loss"
    more_is_better: bool = False
    bounds: tuple[float, float] = (float("-inf"), float("inf"))  # of the primary metric
    unit: metrics.Unit = "number"  # of the primary metric; "share": a fraction, shown in percent

    @property
    def primary(self) -> Metric:
        """The primary metric as reports know it."""
        low, high = self.bounds
        return Metric(self.metric, self.metric, self.more_is_better, low, high, self.unit)

    @property
    def names(self) -> list[str]:
        """The metrics that are scored, the primary one first."""
        return [self.metric]

    # -- what is minimised

    # The loss is the mean over the batch of just that, times the weights of the samples' classes.
    cross_entropy: bool = False
    class_weights: Tensor | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One number per sample. Privacy needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no losses per sample")

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over the batch."""
        return self.losses(outputs, targets).sum()

    def at(self, targets: Tensor) -> Objective:
        """This objective for a client with these training targets."""
        return self

    # -- how it is judged

    def reduced(self, outputs: Tensor) -> Tensor:
        """As much of a batch's outputs as scoring needs."""
        return outputs

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        """Every metric over one client's whole set; None where it is undefined."""
        raise NotImplementedError

    def score(self, pairs: Pairs) -> float | None:
        """The primary metric alone."""
        return self.scores(pairs)[self.metric]

    def facts(self, pairs: Pairs) -> dict[str, float]:
        """What else a reader should know of a model on a client's set."""
        return {}

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What each sample came to, for evidence: right or wrong, an error."""
        return self.losses(outputs, targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        """What the model says in terms of the data: probabilities, values, masks."""
        return outputs


class BuiltIn(Objective):
    """What the kinds of `pgfed.model.kinds` have in common: metrics and outputs by name."""

    kind: Kind

    def __init__(
        self, outputs: Sequence[str], metric: str | None = None, also: Sequence[str] | None = None
    ) -> None:
        standard = metrics.BY_KIND[self.kind]
        self.outputs = tuple(outputs)
        self._primary = metrics.check("task.metric", metric or standard[0], self.kind)
        for name in also or ():
            metrics.check("task.metrics", name, self.kind)
        metrics.check_unique(also or ())
        self.metric = self._primary.name
        self.more_is_better = self._primary.more_is_better
        self.bounds = (self._primary.low, self._primary.high)
        self.unit = self._primary.unit
        others = standard if also is None else also
        self._names = [self.metric, *(name for name in others if name != self.metric)]

    @property
    def primary(self) -> Metric:
        return self._primary

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        return self._scores(self._names, pairs)

    def score(self, pairs: Pairs) -> float | None:
        return self._scores([self.metric], pairs)[self.metric]

    def _scores(self, names: Sequence[str], pairs: Pairs) -> dict[str, float | None]:
        predicted, targets = self._joined(pairs)
        return self._computed(names, predicted, targets)

    def _joined(self, pairs: Pairs) -> tuple[NDArray[Any], NDArray[Any]]:
        """All predictions, and all targets, as arrays of double precision."""
        if not pairs:
            return np.zeros((0, len(self.outputs))), np.zeros(0)
        predicted = torch.cat([self.predictions(outputs.double()) for outputs, _ in pairs])
        return predicted.cpu().numpy(), torch.cat([y for _, y in pairs]).cpu().numpy()

    def _computed(
        self, names: Sequence[str], predicted: NDArray[Any], targets: NDArray[Any]
    ) -> dict[str, float | None]:
        raise NotImplementedError
