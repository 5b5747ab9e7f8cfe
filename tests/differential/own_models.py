"""Models of our own, which experiment files name as own_models:FACTORY."""

from __future__ import annotations

import torch
from torch import nn


def normed(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Batch norm, whose buffers methods must carry along, and dropout, whose draws are keyed.

    The norm is over whole images: Per-FedAvg trains a client of three samples one by one.
    """
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(4 * (height - 2) * (width - 2), classes),
    )


def baseless(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """All head: a method that trains the base by itself refuses it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), classes))


def two_layer_head(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """With model.head = "head" the head is no nn.Linear: FedRoD refuses it."""
    layers = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))
    model = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), 16), nn.ReLU())
    model.add_module("head", layers)
    return model
