"""A small U-Net: one output per class and pixel.

Ronneberger, Fischer, Brox. U-Net: convolutional networks for biomedical image segmentation. MICCAI
2015. A quarter of its channels, two levels fewer, group norm, and images of any size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pgfed.errors import UserError

CHANNELS = (16, 32, 64)


def _twice(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        conv = nn.Conv2d(channels, after, 3, padding=1, bias=False)
        layers += [conv, nn.GroupNorm(8, after), nn.ReLU()]
    return nn.Sequential(*layers)


class SmallUNet(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise UserError(
                f"model.name: 'unet-small' needs images (channels x height x width), the data is "
                f"{input_shape} a sample"
            )
        one, two, three = CHANNELS
        self.down1 = _twice(input_shape[0], one)
        self.down2 = _twice(one, two)
        self.bottom = _twice(two, three)
        self.up2 = _twice(three + two, two)
        self.up1 = _twice(two + one, one)
        self.head = nn.Conv2d(one, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        # Odd sizes are rounded up, and brought back to the size of what they are joined with.
        middle = self.down2(F.max_pool2d(fine, 2, ceil_mode=True))
        coarse = self.bottom(F.max_pool2d(middle, 2, ceil_mode=True))
        middle = self.up2(_joined(coarse, middle))
        out: Tensor = self.head(self.up1(_joined(middle, fine)))
        return out


def _joined(small: Tensor, large: Tensor) -> Tensor:
    return torch.cat([F.interpolate(small, size=large.shape[2:], mode="nearest"), large], dim=1)
