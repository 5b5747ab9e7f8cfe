"""How good a model is on a set of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pgfed.data.federation import Shard

BATCH = 256
BINS = 15  # of the calibration error

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """What cannot be said (a class without samples) is None."""

    samples: int
    accuracy: float
    balanced_accuracy: float  # mean recall of the classes that occur
    auc: float | None  # one class against the rest, mean over the classes where it is defined
    ece: float  # expected calibration error, 15 bins of equal width
    recall: list[float | None]  # by class
    confusion: list[list[int]]  # true class (rows) by predicted class


@torch.no_grad()
def probabilities(module: nn.Module, data: Shard) -> tuple[Floats, NDArray[np.int64]]:
    """Each sample's probabilities of the classes, and the true classes."""
    outputs, labels = [], []
    for start in range(0, len(data), BATCH):
        x, y = data.batch(slice(start, start + BATCH))
        outputs.append(torch.softmax(module(x).double(), dim=1))
        labels.append(y)
    return torch.cat(outputs).numpy(), torch.cat(labels).numpy()


def score(probability: Floats, y: NDArray[np.int64]) -> Scores:
    """From probabilities (samples x classes) and true classes."""
    n, classes = probability.shape
    predicted = probability.argmax(1)
    confusion = np.bincount(y * classes + predicted, minlength=classes**2).reshape(classes, classes)
    of_class = confusion.sum(1)
    recall = [float(confusion[k, k] / of_class[k]) if of_class[k] else None for k in range(classes)]
    return Scores(
        samples=n,
        accuracy=float(np.mean(predicted == y)),
        balanced_accuracy=float(np.mean([r for r in recall if r is not None])),
        auc=_auc(probability, y),
        ece=_ece(probability.max(1), predicted == y),
        recall=recall,
        confusion=confusion.tolist(),
    )


def _auc(probability: Floats, y: NDArray[np.int64]) -> float | None:
    from sklearn.metrics import roc_auc_score

    defined = [k for k in np.unique(y) if not (y == k).all()]
    areas = [float(roc_auc_score(y == k, probability[:, k])) for k in defined]
    return float(np.mean(areas)) if areas else None


def _ece(confidence: Floats, correct: NDArray[Any]) -> float:
    """Mean distance of confidence and accuracy over bins of confidence, weighted by their size."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bins, confidence - correct, minlength=BINS)
    return float(np.abs(gap).sum() / len(confidence))
