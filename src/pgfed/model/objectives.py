"""What is minimised, and by which numbers the result is judged. Methods never see this.

An objective knows the loss and the metrics of a task; a method knows neither classes nor accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Pairs = Sequence[tuple[Tensor, Tensor]]  # (outputs, targets) of batches, all of one client's set


class Objective:
    """The base of all objectives; what a subclass must say is `loss`, `scores` and `metric`."""

    metric: str = "loss"  # the primary one: a key of what `scores` gives
    more_is_better: bool = False
    bounds: tuple[float, float] = (float("-inf"), float("inf"))  # of the primary metric
    unit: str = ""  # of the primary metric; "share": a fraction, shown in percent
    classifies: bool = False  # outputs are one number for each class, targets the classes' numbers

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One number per sample. Privacy needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no losses per sample")

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over the batch."""
        return self.losses(outputs, targets).sum()

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        """Every metric over one client's whole set; None where it is undefined."""
        raise NotImplementedError

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What each sample came to, for evidence: right or wrong, an error."""
        return self.losses(outputs, targets)


class Classes(Objective):
    """One of K classes: cross-entropy, judged by accuracy."""

    metric = "accuracy"
    more_is_better = True
    bounds = (0.0, 1.0)
    unit = "share"
    classifies = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Not the sum of `losses`, which adds up in another order.
        return F.cross_entropy(outputs, targets, reduction="sum")

    def scores(self, pairs: Pairs) -> dict[str, float | None]:
        right = sum_of(self.outcomes(outputs, targets) for outputs, targets in pairs)
        samples = sum(len(targets) for _, targets in pairs)
        return {self.metric: right / samples if samples else None}

    def outcomes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == targets


def sum_of(values: Iterable[Tensor]) -> int:
    """How many are true; the device is asked once."""
    counts = [value.sum() for value in values]
    return int(torch.stack(counts).sum()) if counts else 0


CLASSES = Classes()
