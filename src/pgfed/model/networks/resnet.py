"""ResNet-18 for images.

He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. With group norm (Wu,
He, ECCV 2018) by default: the statistics of batch norm are those of whoever trained last, which
clients with different data do not share.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.errors import UserError

Norm = Literal["group", "batch"]
SMALLEST = 8  # pixels a side
LARGE = 64  # from this size on images are shrunk four times at once, as the paper's are
GROUPS = 32


def _norm(kind: Norm, channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels) if kind == "group" else nn.BatchNorm2d(channels)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, after)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            shrunk = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shrunk, _norm(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], outputs: int, norm: Norm = "group") -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
            raise UserError(
                f"model.name: 'resnet18' needs images of at least {SMALLEST}x{SMALLEST}, the data "
                f"is {input_shape}"
            )
        channels, height, width = input_shape
        if min(height, width) < LARGE:
            first = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), _norm(norm, 64), nn.ReLU()]
        else:
            conv = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
            first = [conv, _norm(norm, 64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        self.stem = nn.Sequential(*first)
        blocks: list[nn.Module] = []
        before = 64
        for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [_Block(before, after, stride, norm), _Block(after, after, 1, norm)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.blocks(self.stem(x)).mean((2, 3)))
        return out
