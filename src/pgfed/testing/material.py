"""What methods are checked with: a small federation, and models of every make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from pgfed.data.federation import Federation


def trivial_federation(seed: int = 0) -> Federation:
    """Three well separated classes over six clients, of which one has a single training sample
    and one has no test data."""
    rng = np.random.default_rng(seed)
    centres = 3 * np.eye(3, 8)
    sizes = [30, 24, 20, 26, 1, 18]
    x, y, client, test = [], [], [], []
    for i, n in enumerate(sizes):
        held_out = 0 if i == 3 else 9
        labels = rng.integers(0, 3, size=n + held_out)
        x.append(centres[labels] + 0.3 * rng.normal(size=(n + held_out, 8)))
        y.append(labels)
        client += [i] * (n + held_out)
        test += [False] * n + [True] * held_out
    return Federation.from_arrays(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y),
        client=np.array(client),
        split=np.array(test),
        name="trivial",
    )


def small_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """With a layer that normalises, as in every model here: some methods need one."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, classes)
    )


def batch_norm_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(input_shape[0], 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, classes)
    )


def frozen_and_tied_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A frozen backbone with statistics, and a layer that is used twice."""
    backbone = nn.Sequential(nn.Linear(input_shape[0], 12), nn.BatchNorm1d(12), nn.Tanh())
    layer = nn.Linear(12, 12)
    head = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, classes))
    return nn.Sequential(backbone.requires_grad_(False), layer, nn.Tanh(), layer, nn.Tanh(), *head)


def text_federation() -> Federation:
    """The same with tokens for inputs: 8 words of 16."""
    federation = trivial_federation()
    words = 2 * torch.arange(8) + (federation.x > 1.5)
    return replace(federation, x=words)


def text_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    width = 4 * input_shape[0]
    norm, head = nn.LayerNorm(width), nn.Linear(width, classes)
    return nn.Sequential(nn.Embedding(16, 4), nn.Flatten(), norm, nn.Tanh(), head)
