"""Small data sets written in the formats of the real ones."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def write_idx(path: Path, array: np.ndarray, compress: bool = True) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if compress:
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content)
    path.write_bytes(content)


def write_mnist(folder: Path, compress: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """20 training and 10 test images; returns them merged."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    y = np.arange(30, dtype=np.uint8) % 10
    write_idx(folder / "train-images-idx3-ubyte", x[:20], compress)
    write_idx(folder / "train-labels-idx1-ubyte", y[:20], compress)
    write_idx(folder / "t10k-images-idx3-ubyte", x[20:], compress)
    write_idx(folder / "t10k-labels-idx1-ubyte", y[20:], compress)
    return x, y


def cifar_arrays(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    n = 6 * classes
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), np.arange(n) % classes


def write_cifar10_binary(root: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = cifar_arrays(10)
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for i, file in enumerate(files):
        part = slice(10 * i, 10 * i + 10)
        rows = np.concatenate([y[part, None].astype(np.uint8), x[part].reshape(10, -1)], axis=1)
        (folder / file).write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("".join(f"kind{k}\n" for k in range(10)) + "\n")
    return x, y


def write_cifar100_binary(root: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = cifar_arrays(100)
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    coarse = y // 5
    for file, part in (("train.bin", slice(0, 500)), ("test.bin", slice(500, 600))):
        labels = np.stack([coarse[part], y[part]], axis=1).astype(np.uint8)
        rows = np.concatenate([labels, x[part].reshape(len(labels), -1)], axis=1)
        (folder / file).write_bytes(rows.tobytes())
    return x, y


def python2_batch(entries: dict[str, object]) -> bytes:
    """A pickle as Python 2 wrote the CIFAR batches: byte strings, numpy's old module names."""
    out = b"\x80\x02}("
    for key, value in entries.items():
        out += _short_string(key.encode())
        if isinstance(value, np.ndarray):
            out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            out += b"(K\x01" + b"".join(_int(n) for n in value.shape)
            out += b"\x86" if value.ndim == 2 else b"\x85"
            out += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            out += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            out += b"\x89T" + len(value.tobytes()).to_bytes(4, "little") + value.tobytes() + b"tb"
        elif isinstance(value, list):
            out += b"](" + b"".join(
                _int(v) if isinstance(v, int) else _short_string(v) for v in value
            )
            out += b"e"
        else:
            raise TypeError(type(value))
    return out + b"u."


def _int(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)


def _short_string(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def write_cifar10_python(root: Path, modern: bool = False) -> tuple[np.ndarray, np.ndarray]:
    x, y = cifar_arrays(10)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, file in enumerate(files):
        part = slice(10 * i, 10 * i + 10)
        entries = {"data": x[part].reshape(10, -1), "labels": y[part].tolist()}
        content = pickle.dumps(entries, protocol=2) if modern else python2_batch(entries)
        (folder / file).write_bytes(content)
    (folder / "batches.meta").write_bytes(
        python2_batch({"label_names": [f"kind{k}".encode() for k in range(10)]})
    )
    return x, y


def write_cifar100_python(root: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = cifar_arrays(100)
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for file, part in (("train", slice(0, 500)), ("test", slice(500, 600))):
        entries = {
            "data": x[part].reshape(-1, 3072),
            "fine_labels": y[part].tolist(),
            "coarse_labels": (y[part] // 5).tolist(),
        }
        (folder / file).write_bytes(python2_batch(entries))
    return x, y


def write_organamnist(root: Path) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (44, 28, 28), dtype=np.uint8)
    y = (np.arange(44) % 11).astype(np.uint8)
    root.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        root / "organamnist.npz",
        train_images=x[:22],
        train_labels=y[:22, None],
        val_images=x[22:33],
        val_labels=y[22:33, None],
        test_images=x[33:],
        test_labels=y[33:, None],
    )
    return x, y


def write_image(path: Path, size: tuple[int, int] = (6, 4), colour: object = 100) -> None:
    """A plain image of one colour: a number for grey, a triple for RGB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "RGB" if isinstance(colour, tuple) else "L"
    Image.new(mode, size, colour).save(path)  # type: ignore[arg-type]
