"""Folders of images, by class, site and split (`tree`), as arrays."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from pgfed.data.dataset import Options, Samples
from pgfed.data.files.limits import MAX_PIXELS, check_size
from pgfed.data.files.tree import Sample, few, scan
from pgfed.errors import NOTES, UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_GREY_MODES = {"1", "L", "LA"}
COLOUR_MODES = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}


class BadImage(UserError):
    """A file that holds no image, or a damaged one."""


@dataclass(frozen=True)
class Images:
    """What a folder holds, in sorted order of site, split and class."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    site: NDArray[np.str_] | None
    split: NDArray[np.str_] | None
    left_out: str | None  # what `skip_bad` did, a line
    ignored: str | None  # what does not belong there, a line


def samples(name: str, place: Path, options: Options) -> Samples:
    """The images of a folder; sites are clients, and domains. What was left out is said."""
    if not place.is_dir():
        raise UserError(f"{name}: {place} is not a folder")
    images = read(place, options.image_size, skip_bad=options.skip_bad)
    for line in (images.left_out, images.ignored):
        if line is not None:
            NOTES.warning(line)
    return Samples(
        images.x,
        images.y,
        class_names=images.class_names,
        client=images.site,
        domain=images.site,
        split=images.split,
    )


def read(folder: Path, image_size: int | None, *, skip_bad: bool = False) -> Images:
    """All images; `image_size` resizes them to a square, otherwise they must agree in size.

    Files that cannot be read are refused, all in one line; `skip_bad` leaves them out.
    """
    tree = scan(folder)
    class_names = tuple(sorted({sample.label for sample in tree.samples}))
    number = {name: k for k, name in enumerate(class_names)}
    reader = _Reader(folder, image_size)
    sizes, mode = reader.headers(tree.samples)
    if reader.bad and not skip_bad:
        for sample in reader.good(tree.samples):  # so that the line has all of them
            reader.pixels(sample, mode)
        raise reader.refusal()
    if not sizes:
        raise UserError(f"{folder}: none of its {len(tree.samples)} files is an image")
    width, height = reader.common_size(sizes)
    samples, x = reader.decode(reader.good(tree.samples), height, width, mode)
    if reader.bad and not skip_bad:
        raise reader.refusal()
    if not samples:
        raise UserError(f"{folder}: all of its {len(tree.samples)} images are damaged")
    sites = [sample.site for sample in samples if sample.site is not None]
    splits = [sample.split for sample in samples if sample.split is not None]
    return Images(
        x=x,
        y=np.array([number[sample.label] for sample in samples], dtype=np.int64),
        class_names=class_names,
        site=np.array(sites) if sites else None,
        split=np.array(splits) if splits else None,
        left_out=_note(folder, "left out (no image that can be read)", sorted(reader.bad)),
        ignored=_note(folder, "ignored (no place in the layout)", tree.strays),
    )


def _note(folder: Path, what: str, paths: list[Path]) -> str | None:
    names = [str(path.relative_to(folder)) for path in paths]
    return f"{folder}: {len(names)} {what}: {few(names)}" if names else None


class _Reader:
    """Reads images in two passes, headers first, and remembers the bad ones."""

    def __init__(self, folder: Path, image_size: int | None) -> None:
        self.folder = folder
        self.image_size = image_size
        self.bad: dict[Path, BadImage] = {}

    def good(self, samples: list[Sample]) -> list[Sample]:
        return [sample for sample in samples if sample.path not in self.bad]

    def refusal(self) -> UserError:
        """All bad files in one line."""
        way_out = "--skip-bad (data.skip_bad = true)"
        if len(self.bad) == 1:
            return UserError(f"{next(iter(self.bad.values()))}; {way_out} leaves it out")
        names = [str(path.relative_to(self.folder)) for path in sorted(self.bad)]
        return UserError(
            f"{self.folder}: {len(names)} images cannot be read: {few(names)}; mend or remove "
            f"them, or leave them out with {way_out}"
        )

    def headers(self, samples: list[Sample]) -> tuple[dict[tuple[int, int], Path], str]:
        """The sizes there are, each with the first file that has it; RGB if any is in colour."""
        sizes: dict[tuple[int, int], Path] = {}
        mode = "L"
        for sample in samples:
            try:
                with opened(sample.path) as image:
                    sizes.setdefault(image.size, sample.path)
                    if image.mode in COLOUR_MODES:
                        mode = "RGB"
            except BadImage as error:
                self.bad[sample.path] = error
        return sizes, mode

    def common_size(self, sizes: dict[tuple[int, int], Path]) -> tuple[int, int]:
        """Width and height of all images."""
        if self.image_size is not None:
            return self.image_size, self.image_size
        if len(sizes) > 1:
            two = [
                f"{path.relative_to(self.folder)} is {width}x{height}"
                for (width, height), path in sizes.items()
            ][:2]
            raise UserError(
                f"{self.folder}: images differ in size: {', '.join(two)}; set data.image_size to "
                "resize them all"
            )
        return next(iter(sizes))

    def decode(
        self, samples: list[Sample], height: int, width: int, mode: str
    ) -> tuple[list[Sample], NDArray[np.uint8]]:
        """The pixels; of bad ones no row is left."""
        channels = 3 if mode == "RGB" else 1
        check_size(str(self.folder), len(samples) * channels * height * width)
        x = np.empty((len(samples), channels, height, width), dtype=np.uint8)
        kept: list[Sample] = []
        for sample in samples:
            converted = self.pixels(sample, mode)
            if converted is None:
                continue
            if self.image_size is not None:
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted).reshape(height, width, channels)
            x[len(kept)] = pixels.transpose(2, 0, 1)
            kept.append(sample)
        return kept, x[: len(kept)]

    def pixels(self, sample: Sample, mode: str) -> Image.Image | None:
        try:
            with opened(sample.path) as image:
                return image.convert(mode)
        except BadImage as error:
            self.bad[sample.path] = error
            return None


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image that is small enough and of a kind that 8 bits per channel can hold."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limit below refuses them.
            warnings.simplefilter("ignore")
            with _File(path) as file, Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise BadImage(
                        f"{path}: {image.width}x{image.height} pixels; "
                        f"allowed: {MAX_PIXELS:,} in all"
                    )
                if image.mode not in _GREY_MODES | COLOUR_MODES:
                    raise UserError(
                        f"{path}: pixels of mode {image.mode!r} do not fit 8 bits; convert the "
                        "image, or use npz: with a float array"
                    )
                yield image
    except UnidentifiedImageError:
        raise BadImage(
            f"{path}: not an image that can be read; allowed: {', '.join(FORMATS)}"
        ) from None
    except Image.DecompressionBombError:
        raise BadImage(f"{path}: too many pixels; allowed: {MAX_PIXELS:,}") from None
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen kinds on damaged files
        raise BadImage(
            f"{path}: the image is damaged or cannot be read ({error or type(error).__name__})"
        ) from None


class _File(io.BufferedReader):
    """A file of which nobody reads more than there is: Python would allocate what is asked for,
    and that is what a damaged image claims."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._size = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))
