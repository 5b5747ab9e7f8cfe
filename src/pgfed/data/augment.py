"""Training samples changed at random, for steps alone: `flip-crop`, or a function of one's own.

Such a function, ``package.module:function``, is called as ``function(x, y, generator)`` with a
batch and a torch.Generator that is keyed by client and round; it gives (x, y) of the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pgfed.data.federation import Federation
from pgfed.errors import UserError, first_line
from pgfed.modules import load_object

KEY = "train.augment"
NONE, FLIP_CROP = "none", "flip-crop"
SHIFT = 8  # a crop is shifted by up to this part of an image's side: 4 pixels of 32

Augment = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


def flip_crop(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shift each image a little, its border mirrored, and turn half of them left to right.

    Masks go with their images.
    """
    n, _, height, width = x.shape
    rows = _shifted(n, height, generator)
    columns = _shifted(n, width, generator)
    flip = torch.rand(n, generator=generator) < 0.5
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    at = torch.arange(n)[:, None, None]
    rows, columns = rows[:, :, None], columns[:, None, :]
    # Channels come last, and lie last in memory as in every batch.
    x = x.permute(0, 2, 3, 1)[at, rows, columns].permute(0, 3, 1, 2)
    return x, y[at, rows, columns] if y.ndim == 3 else y


def _shifted(n: int, side: int, generator: torch.Generator) -> Tensor:
    """For each image the rows (or columns) that are taken in place of 0, 1, 2, ..."""
    most = side // SHIFT
    by = torch.randint(-most, most + 1, (n, 1), generator=generator)
    place = (torch.arange(side) + by).abs()  # mirrored at either end
    return torch.where(place < side, place, 2 * (side - 1) - place)


@cache
def augmentation(name: str) -> Augment | None:
    """What [train] augment names; None: nothing is changed."""
    if name == NONE:
        return None
    if name == FLIP_CROP:
        return flip_crop
    if ":" not in name:
        raise UserError(
            f"{KEY}: found {name!r}; allowed: {NONE}, {FLIP_CROP}, package.module:function"
        )
    own = load_object(KEY, name)
    if not callable(own):
        raise UserError(f"{KEY}: {name!r} is not callable")

    def checked(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        found = own(x, y, generator)
        forms = [(t.shape, t.dtype) for t in found if isinstance(t, Tensor)]
        if forms != [(t.shape, t.dtype) for t in (x, y)]:
            raise UserError(f"{KEY}: {name!r} must give (x, y) of the same shapes and types")
        return found  # type: ignore[no-any-return]

    return checked


def check_augment(name: str, federation: Federation) -> None:
    """Refuse what cannot be done to this data; a function of one's own is tried once."""
    change = augmentation(name)
    if name == FLIP_CROP and len(federation.input_shape) != 3:
        raise UserError(
            f"{KEY}: {FLIP_CROP!r} needs images, the data is {federation.input_shape} a sample"
        )
    if change is not None and len(federation.y):
        x, y = federation.train(int(federation.n_train.argmax())).batch(slice(0, 2))
        try:
            change(x, y, torch.Generator().manual_seed(0))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{KEY}: {name!r} failed: {first_line(error)}") from error
