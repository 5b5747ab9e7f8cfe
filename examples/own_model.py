"""A model of your own: any function (input_shape, outputs) -> nn.Module.

pgfed run --module-path . --set model.name=own_model:make     (in this folder)

The last nn.Linear is taken as the head, which FedPer, FedRep and others treat apart; set
model.head to name another layer. Batch-norm statistics are averaged along with the weights.
"""

from __future__ import annotations

from torch import nn


def make(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    channels = input_shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 16, outputs),
    )
