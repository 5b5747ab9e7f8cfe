"""Folders of images: PATH/<class>/* or PATH/<domain>/<class>/*."""

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

from pgfed.data.limits import MAX_PIXELS, check_size
from pgfed.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
LITTER = {"thumbs.db", "desktop.ini"}
_GREY_MODES = {"1", "L", "LA"}
COLOUR_MODES = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}


@dataclass(frozen=True)
class Sample:
    """One image file, and the folders that name its class and domain."""

    path: Path
    label: str
    domain: str | None


@dataclass(frozen=True)
class Images:
    """What a folder holds, in sorted order of class and domain."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    domain: NDArray[np.str_] | None


def read(folder: Path, image_size: int | None) -> Images:
    """All images; `image_size` resizes them to a square, otherwise they must agree in size."""
    samples = scan(folder)
    class_names = tuple(sorted({sample.label for sample in samples}))
    number = {name: k for k, name in enumerate(class_names)}
    height, width, mode = _common_form(folder, samples, image_size)
    channels = 3 if mode == "RGB" else 1
    check_size(str(folder), len(samples) * channels * height * width)
    x = np.empty((len(samples), channels, height, width), dtype=np.uint8)
    for row, sample in zip(x, samples, strict=True):
        with opened(sample.path) as image:
            converted = image.convert(mode)
        if image_size is not None:
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        row[...] = np.asarray(converted).reshape(height, width, channels).transpose(2, 0, 1)
    domains = [sample.domain for sample in samples if sample.domain is not None]
    return Images(
        x=x,
        y=np.array([number[sample.label] for sample in samples], dtype=np.int64),
        class_names=class_names,
        domain=np.array(domains) if domains else None,
    )


def scan(folder: Path) -> list[Sample]:
    """The image files by domain, class and name."""
    tops = _subfolders(folder)
    if not tops:
        raise UserError(
            f"{folder}: no class folders in it; expected {folder.name}/<class>/* or "
            f"{folder.name}/<domain>/<class>/*"
        )
    with_folders = [top for top in tops if _subfolders(top)]
    with_files = [top for top in tops if _files(top)]
    if with_folders and with_files:
        raise UserError(
            f"{folder}: {with_folders[0].name!r} holds folders (a domain) but "
            f"{with_files[0].name!r} holds files (a class); use one layout for all"
        )
    samples = []
    classes: dict[str, Path] = {}
    for top in with_folders or [folder]:
        domain = top.name if with_folders else None
        for label in _subfolders(top):
            classes.setdefault(label.name, label)
            samples += [Sample(path, label.name, domain) for path in _files(label)]
    used = {sample.label for sample in samples}
    for name, path in classes.items():
        if name not in used:
            raise UserError(f"{path}: the class folder {name!r} holds no images")
    if with_folders and len(with_folders) < len(tops):
        empty = next(top for top in tops if top not in with_folders)
        raise UserError(f"{empty}: the domain folder {empty.name!r} holds no images")
    return samples


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir()]


def _files(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_file()]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(
            path
            for path in folder.iterdir()
            if not path.name.startswith(".") and path.name.lower() not in LITTER
        )
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None


def _common_form(
    folder: Path, samples: list[Sample], image_size: int | None
) -> tuple[int, int, str]:
    """Height and width of all images, and RGB if any of them is in colour."""
    mode = "L"
    first: tuple[Path, tuple[int, int]] | None = None
    for sample in samples:
        with opened(sample.path) as image:
            size = image.size
            if image.mode in COLOUR_MODES:
                mode = "RGB"
        first = first or (sample.path, size)
        if image_size is None and size != first[1]:
            raise UserError(
                f"{folder}: images differ in size: {first[0].relative_to(folder)} is "
                f"{first[1][0]}x{first[1][1]}, {sample.path.relative_to(folder)} is "
                f"{size[0]}x{size[1]}; set data.image_size to resize them all"
            )
    assert first is not None, "scan() returns at least one sample per class"
    width, height = (image_size, image_size) if image_size is not None else first[1]
    return height, width, mode


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image that is small enough and of a kind that 8 bits per channel can hold."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limit below refuses them.
            warnings.simplefilter("ignore")
            with _File(path) as file, Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise UserError(
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
        raise UserError(
            f"{path}: not an image that can be read; allowed: {', '.join(FORMATS)}"
        ) from None
    except Image.DecompressionBombError:
        raise UserError(f"{path}: too many pixels; allowed: {MAX_PIXELS:,}") from None
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen kinds on damaged files
        raise UserError(
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
