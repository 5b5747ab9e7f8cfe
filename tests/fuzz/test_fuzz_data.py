"""Data files: what is read is whole and fits together, or it is refused in a line."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.data_files import (
    write_cifar10_binary,
    write_cifar10_python,
    write_cifar100_binary,
    write_mnist,
    write_organamnist,
)
from fuzz.driving import attempt, drive, share
from fuzz.mutation import mutate
from pgfed.data import datasets
from pgfed.data import matching as agreed
from pgfed.data.dataset import Dataset
from pgfed.data.datasets import load
from pgfed.data.federation import Federation, build
from pgfed.data.files import folder, limits
from pgfed.data.targets import MAX_CLASSES


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose memory the cases cannot take: what files claim is held against its size."""
    monkeypatch.setattr(limits, "memory_limit", lambda: 64 << 20)
    monkeypatch.setattr(folder, "MAX_PIXELS", 2_000_000)
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "no-such-package")


def check(dataset: Dataset) -> Federation:
    """Nothing wrong got through, and clients can be made of it."""
    n = len(dataset.y)
    assert len(dataset.x) == n > 0
    assert dataset.x.dtype in (np.uint8, np.float32)
    assert dataset.x.ndim in (2, 4)
    assert np.isfinite(dataset.x).all()
    assert 2 <= len(dataset.class_names) <= MAX_CLASSES
    assert 0 <= dataset.y.min() <= dataset.y.max() < len(dataset.class_names)
    assert "".join(dataset.class_names).encode()
    partition = "given" if dataset.client is not None else "iid"
    federation = build(dataset, partition=partition, clients=1, min_samples=0)
    assert sum(len(federation.train(i)) for i in range(len(federation))) <= n
    assert json.dumps(federation.table(), ensure_ascii=False).encode()
    return federation


def read(name: str, root: Path | None = None, **options: Any) -> tuple[Dataset, Federation]:
    dataset = load(name, root, **options)
    return dataset, check(dataset)


# -- npz -------------------------------------------------------------------------------------------

OWN = {
    "x": np.arange(48, dtype=np.float32).reshape(12, 4),
    "y": np.arange(12) % 3,
    "client": np.arange(12) % 2,
    "domain": np.array(["here", "there"])[np.arange(12) % 2],
    "split": np.arange(12) % 4 == 3,
    "class_names": np.array(["a", "b", "ç"]),
}


def saved(arrays: dict[str, np.ndarray], compress: bool) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, **arrays)
    return out.getvalue()


@share("data", 0.15)
def test_damaged_npz(tmp_path: Path, cases: int):
    """A zip archive's checksums notice whatever happens to an array."""
    path = tmp_path / "own.npz"
    good = [saved(OWN, compress) for compress in (False, True)]
    expected = Dataset.from_arrays("", **OWN)

    def one(rng: random.Random) -> str:
        path.write_bytes(mutate(rng.choice(good), rng, [gzip.compress(b"x")]))
        found, _ = attempt(lambda: read(f"npz:{path}"))
        if found is None:
            return "refused"
        assert np.array_equal(found[0].x, expected.x)
        assert np.array_equal(found[0].y, expected.y)
        return "accepted"

    drive("npz", cases, one)


def member(rng: random.Random) -> tuple[str, bytes]:
    """One array of an archive; its header lies, and the archive vouches for it."""
    name = rng.choice([*OWN, *OWN, "x", "y", "../../x", "x.npy", "", "\n"])
    array = OWN.get(name, OWN["x"])
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), version=rng.choice([(1, 0), (2, 0), (3, 0)]))
    raw = out.getvalue()
    if rng.random() < 0.5:
        start = raw.index(b"{")
        end = raw.index(b"\n")
        header = rng.choice(HEADERS)(raw[start:end], rng)
        raw = raw[:8] + struct.pack("<H", len(header) % 2**16) + header + raw[end:]
    elif rng.random() < 0.5:
        raw = mutate(raw, rng)
    return f"{name}.npy", raw


HEADERS: list[Callable[[bytes, random.Random], bytes]] = [
    mutate,
    lambda header, rng: header.replace(
        b"(12,", b"(%s," % rng.choice([b"-12", b"0", b"2**70", b"99999999999999", b"True", b"1e9"])
    ),
    lambda header, rng: header.replace(
        b"<", rng.choice([b">", b"|", b"O", b"V", b"m8", b"<U99999999,", b"(3,)"])
    ),
    lambda header, rng: (
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, %d)}"
        % rng.choice([0, 2**40, 2**62, 2**64, 10**40])
    ),
    lambda header, rng: (
        b"{'descr': '<f4', 'fortran_order': True, 'shape': %s}"
        % rng.choice([b"(-12, -4)", b"(1,)*70", b"(" + b"1," * 70 + b")", b"()", b"(12, 4L)"])
    ),
    lambda header, rng: (
        b"{'descr': %s, 'fortran_order': False, 'shape': (12,)}"
        % rng.choice([b"[('a', '<i4')]", b"('<f4', (4,))", b"'|V0'", b"'<M8[s]'", b"'O'", b"'|S9'"])
    ),
    lambda header, rng: b"(" * rng.choice([90, 3_000]) + header,
]


@share("data", 0.2)
def test_lying_npz(tmp_path: Path, cases: int):
    """Archives that are sound as archives, with arrays in them that are not."""
    path = tmp_path / "own.npz"

    def one(rng: random.Random) -> str:
        with zipfile.ZipFile(path, "w", rng.choice([0, 8])) as archive:
            members = {f"{k}.npy": saved_array(v) for k, v in OWN.items() if rng.random() < 0.7}
            members |= dict(member(rng) for _ in range(rng.choice([1, 1, 2])))
            for name, raw in members.items():
                archive.writestr(name, raw)
        _, refusal = attempt(lambda: read(f"npz:{path}"))
        agreed_on: dict[str, Any] = {"input_shape": (4,), "input_type": "float32"}
        found, _ = attempt(
            lambda: agreed.load(
                f"npz:{path}", None, classes=["a", "b", "ç"], image_size=None, **agreed_on
            )
        )
        if found is not None:
            check(found)
        return "accepted" if refusal is None else "refused"

    drive("lying npz", cases, one)


def saved_array(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_a_bomb_is_not_unpacked(tmp_path: Path):
    path = tmp_path / "own.npz"
    zeros = np.zeros((1 << 27, 1), np.uint8)
    np.savez_compressed(path, x=zeros, y=np.zeros(4, int))
    del zeros
    assert path.stat().st_size < 1 << 20
    _, refusal = attempt(lambda: read(f"npz:{path}"))
    assert refusal is not None
    assert "GiB unpacked" in refusal


# -- the named data sets ---------------------------------------------------------------------------


def named(tmp_path: Path, name: str, write: Callable[[Path], object]) -> list[tuple[Path, bytes]]:
    write(tmp_path)
    return [(p, p.read_bytes()) for p in sorted(tmp_path.rglob("*")) if p.is_file()]


NAMED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "idx": ("mnist", lambda root: write_mnist(root / "mnist", compress=False)),
    "idx.gz": ("mnist", lambda root: write_mnist(root / "mnist")),
    "organamnist": ("organamnist", write_organamnist),
    "cifar10 binary": ("cifar10", write_cifar10_binary),
    "cifar100 binary": ("cifar100", write_cifar100_binary),
    "cifar10 python": ("cifar10", write_cifar10_python),
}


@share("data", 0.35)
def test_damaged_data_sets(tmp_path: Path, cases: int):
    roots = {kind: tmp_path / kind for kind in NAMED}
    good = {kind: named(roots[kind], *NAMED[kind]) for kind in NAMED}
    expected = {kind: load(NAMED[kind][0], roots[kind]) for kind in NAMED}

    def one(rng: random.Random) -> str:
        kind = rng.choice(list(NAMED))
        path, raw = rng.choice(good[kind])
        protected = kind in ("organamnist", "idx.gz")
        if kind == "idx.gz" and rng.random() < 0.5:
            protected = False
            damaged = gzip.compress(mutate(gzip.decompress(raw), rng), 1)
        else:
            damaged = mutate(raw, rng)
        path.write_bytes(damaged)
        try:
            found, _ = attempt(lambda: read(NAMED[kind][0], roots[kind]))
        finally:
            path.write_bytes(raw)
        if found is None:
            return "refused"
        assert found[0].x.shape[1:] == expected[kind].x.shape[1:]
        if protected:
            assert np.array_equal(found[0].x, expected[kind].x)
            assert np.array_equal(found[0].y, expected[kind].y)
        return "accepted"

    assert drive("data sets", cases, one)["accepted"]


# -- images ----------------------------------------------------------------------------------------


def picture(form: str, mode: str) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(out, form)
    return out.getvalue()


PICTURES = [
    picture(form, mode)
    for form in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
    for mode in ("L", "RGB", "P", "1", "RGBA")
    if (form, mode) not in {("JPEG", "P"), ("JPEG", "RGBA"), ("PPM", "P")}
]


def chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def lying_png(rng: random.Random) -> bytes:
    """A PNG whose header claims anything, with the right checksum."""
    size = rng.choice([0, 1, 10, 1_400, 2**16, 2**31 - 1, 2**32 - 1])
    header = struct.pack(
        ">IIBBBBB",
        *(
            size,
            rng.choice([size, 12]),
            rng.choice([0, 1, 8, 16, 255]),
            rng.choice([0, 2, 3, 4, 6, 9]),
        ),
        *(0, 0, rng.choice([0, 1, 7])),
    )
    parts = [chunk(b"IHDR", header)]
    if rng.random() < 0.5:
        parts.append(chunk(b"PLTE", rng.randbytes(rng.choice([0, 3, 5, 768, 3_000]))))
    if rng.random() < 0.3:
        text = zlib.compress(b"\0" * rng.choice([10, 3_000_000]))
        parts.append(chunk(b"zTXt", b"a\0\0" + text))
    if rng.random() < 0.3:
        name = rng.choice([b"acTL", b"fcTL", b"tRNS", b"gAMA", b"iCCP", b"eXIf", b"pHYs", b"sRGB"])
        parts.append(chunk(name, rng.randbytes(rng.choice([0, 1, 8, 26]))))
    parts.append(chunk(b"IDAT", zlib.compress(b"\0" * rng.choice([1, 500, 5_000_000]))))
    parts.append(chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@share("data", 0.3)
def test_damaged_images(tmp_path: Path, cases: int):
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "good.png").write_bytes(PICTURES[1])
    names = ["picture", "p.png", "p.tif", "p\n.gif", "p.webp", ".hidden", "Thumbs.db"]

    def one(rng: random.Random) -> str:
        path = tmp_path / "a" / rng.choice(names)
        raw = lying_png(rng) if rng.random() < 0.3 else mutate(rng.choice(PICTURES), rng, PICTURES)
        path.write_bytes(raw)
        size = rng.choice([None, 8])
        agreed_on: dict[str, Any] = {"input_shape": (3, 8, 8), "input_type": "uint8"}
        try:
            found, _ = attempt(lambda: read(f"folder:{tmp_path}", image_size=size))
            attempt(
                lambda: agreed.load(
                    f"folder:{tmp_path}", None, classes=["a", "b"], image_size=8, **agreed_on
                )
            )
        finally:
            path.unlink()
        return "refused" if found is None else "accepted"

    assert drive("images", cases, one)["accepted"]


def test_a_tree_of_folders_is_not_followed(tmp_path: Path):
    """Links in a circle, and folders where files should be."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "b").mkdir()
    _, refusal = attempt(lambda: read(f"folder:{tmp_path}"))
    assert refusal is not None
    shutil.rmtree(tmp_path / "b")
