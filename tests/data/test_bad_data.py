"""Every mistake in data files or options is one line that names the place and the remedy."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    write_cifar10_binary,
    write_cifar10_python,
    write_image,
    write_mnist,
    write_organamnist,
)
from PIL import Image

from pgfed.data import datasets, targets
from pgfed.data.datasets import load
from pgfed.data.federation import Federation
from pgfed.data.files import limits
from pgfed.errors import UserError


@pytest.fixture(autouse=True)
def no_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "no-such-package")


def message(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------ names and files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar-10", ["data.dataset", "'cifar-10'", "did you mean 'cifar10'"]),
        ("imagenet", ["'imagenet'", "digits", "npz:PATH", "folder:PATH"]),
        ("npz:", ["lacks its path", "npz:PATH"]),
        ("npz:nowhere.npz", ["nowhere.npz", "does not exist"]),
        ("folder:nowhere", ["nowhere", "does not exist"]),
        ("", ["data.dataset"]),
    ],
)
def test_wrong_names(tmp_path: Path, name: str, words: list[str]):
    text = message(lambda: load(name, tmp_path))
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("fashion-mnist", "fashion-mnist/train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin"),
        ("cifar100", "cifar-100-binary/train.bin"),
        ("organamnist", "organamnist.npz"),
        ("office-home", "office-home"),
    ],
)
def test_missing_files_name_the_file_the_root_and_the_remedy(tmp_path: Path, name: str, file: str):
    text = message(lambda: load(name, tmp_path))
    assert str(tmp_path / file) in text
    assert f"data root {tmp_path}" in text
    remedy = "officeHomeDataset" if name == "office-home" else f"`pgfed data fetch {name}`"
    assert remedy in text
    assert "--data-root" in message(lambda: load(name, None))


def test_the_one_file_that_is_missing_is_named(tmp_path: Path):
    write_cifar10_binary(tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    assert "data_batch_4.bin" in message(lambda: load("cifar10", tmp_path))
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "t10k-labels-idx1-ubyte.gz" in message(lambda: load("mnist", tmp_path))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-100], "cut short"),
        (lambda raw: raw[:-3], "cut short"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-5]), "cut short"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:9]), "cut short"),
        (lambda raw: gzip.compress(gzip.decompress(raw) + b"x"), "longer than its header"),
        (lambda raw: b"plain text", "cannot be read"),
        (lambda raw: gzip.compress(b"\0\0\x0d\3" + gzip.decompress(raw)[4:]), "not an IDX file"),
        (lambda raw: gzip.compress(b""), "not an IDX file"),
        (lambda raw: gzip.compress(b"\0\0\x08\3" + b"\xff" * 12), "GiB"),
    ],
)
def test_damaged_idx(tmp_path: Path, damage: Callable[[bytes], bytes], words: str):
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    text = message(lambda: load("mnist", tmp_path))
    assert str(path) in text
    assert words in text


def test_idx_lengths_and_sizes_must_agree(tmp_path: Path):
    from data_files import write_idx

    folder = tmp_path / "mnist"
    write_mnist(folder)
    write_idx(folder / "t10k-images-idx3-ubyte", np.zeros((10, 20, 20)))
    assert "28x28" in message(lambda: load("mnist", tmp_path))
    write_idx(folder / "train-labels-idx1-ubyte", np.arange(7))
    assert "7 labels for the 20 images" in message(lambda: load("mnist", tmp_path))


def test_idx_labels_out_of_range(tmp_path: Path):
    from data_files import write_idx

    write_mnist(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte", np.arange(20))
    text = message(lambda: load("mnist", tmp_path))
    assert "label 10 of sample 10 is out of range" in text
    assert "0 to 9" in text


def test_damaged_cifar_binary(tmp_path: Path):
    write_cifar10_binary(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    text = message(lambda: load("cifar10", tmp_path))
    assert str(path) in text
    assert "cut short" in text
    path.write_bytes(b"")
    assert "0 bytes" in message(lambda: load("cifar10", tmp_path))
    path.write_bytes(bytes([77]) + bytes(3072))
    assert "label 77" in message(lambda: load("cifar10", tmp_path))
    (path.parent / "batches.meta.txt").write_text("cat dog")
    assert "2 class names; expected 10" in message(lambda: load("cifar10", tmp_path))


class Attack:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short"),
        (pickle.dumps({"data": 1})[:-3], "refused"),
        (pickle.dumps([1, 2]), "refused"),
        (pickle.dumps({"data": np.zeros((2, 9), np.uint8), "labels": [0, 1]}), "'data'"),
        (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}), "'data'"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}), "1 labels for 2"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, "1"]}), "'labels'"),
        # numpy.ndarray((2**40,)): an allocation instead of an array
        (b"\x80\x02cnumpy\nndarray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85\x85R.", "refused"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (b"\x80\x02c_codecs\nencode\nU\x01aU\x03rot\x86R.", "refused"),
    ],
)
def test_damaged_or_hostile_cifar_pickles(tmp_path: Path, content: bytes, words: str):
    write_cifar10_python(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(content)
    text = message(lambda: load("cifar10", tmp_path))
    assert str(path) in text
    assert words in text


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_command_does_not_run_it(tmp_path: Path, protocol: int):
    write_cifar10_python(tmp_path)
    trace = tmp_path / "was-here"
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Attack(f"touch {trace}")}, protocol=protocol))
    assert "system" in message(lambda: load("cifar10", tmp_path))
    assert not trace.exists()


def test_organamnist_of_another_size_is_refused(tmp_path: Path):
    write_organamnist(tmp_path)
    path = tmp_path / "organamnist.npz"
    with np.load(path) as arrays:
        changed = dict(arrays)
    changed["val_images"] = np.zeros((11, 64, 64), np.uint8)
    np.savez(path, **changed)
    assert "val_images has shape 11 x 64 x 64" in message(lambda: load("organamnist", tmp_path))
    changed["val_images"] = np.zeros((10, 28, 28), np.uint8)
    np.savez(path, **changed)
    assert "11 val_labels for 10 images" in message(lambda: load("organamnist", tmp_path))


# ------------------------------------------------------------------------------ npz


GOOD = {"x": np.zeros((4, 3)), "y": np.array([0, 1, 0, 1])}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": None}, "no array 'x'; found: y; needed: x, y"),
        ({"y": None}, "no array 'y'"),
        ({"clients": np.zeros(4, int)}, "unknown 'clients' (did you mean 'client'?)"),
        ({"x": np.zeros((4, 3), dtype=bool)}, "x has type bool; allowed: uint8"),
        ({"x": np.full((4, 3), 2**63, dtype=np.uint64)}, "x holds 9223372036854775808"),
        ({"x": np.array(["a", "b", "c", "d"])}, "x has type <U1"),
        ({"x": np.zeros((4, 3), dtype=complex)}, "x has type complex128"),
        ({"x": np.zeros(4)}, "x has shape 4; allowed: N x C x H x W"),
        ({"x": np.zeros((4, 2, 2, 2, 2, 2))}, "x has shape 4 x 2 x 2 x 2 x 2 x 2"),
        ({"x": np.zeros((4, 0))}, "x has shape 4 x 0"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "x has shape 0 x 3"),
        ({"x": np.zeros((4, 32, 32, 3))}, "looks like N x H x W x C"),
        ({"x": np.array([[0], [0], [np.nan], [0]])}, "NaN or infinite values, first in sample 2"),
        ({"x": np.array([[0], [np.inf], [0], [0]])}, "first in sample 1"),
        ({"x": np.array([[0], [0], [0], [1e300]])}, "first in sample 3"),
        ({"y": np.array([0.0, 1.0, 0.0, 1.0])}, 'task.kind = "regression" predicts numbers'),
        ({"y": np.array([1j, 1, 0, 1])}, "y has type complex128 and shape 4"),
        (
            {"y": np.eye(4, dtype=int)},
            "y has shape 4 x 4; allowed: one label per sample",
        ),
        ({"y": np.eye(4, dtype=int)}, 'task.kind = "multilabel" predicts several'),
        ({"y": np.eye(4) / 2}, 'task.kind = "regression" predicts several'),
        ({"y": np.zeros((4, 2, 2), int)}, 'task.kind = "segmentation" predicts masks'),
        ({"y": np.array([0, 1, 0])}, "y has shape 3, but x has 4 samples"),
        ({"y": np.array([5, 5, 5, 5])}, "1 class(es) in all; at least 2"),
        ({"client": np.array([0, 1])}, "client has shape 2, but x has 4 samples"),
        ({"client": np.array([0.5, 1, 2, 3])}, "client has type float64; allowed: integers"),
        ({"domain": np.array([0.5, 1, 2, 3])}, "domain has type float64; allowed: strings"),
        ({"domain": np.array(["a"])}, "domain has shape 1"),
        ({"split": np.array(["train", "val", "test", "test"])}, "split holds 'val'; allowed"),
        ({"split": np.array([0, 1, 2, 1])}, "split holds 2; allowed"),
        ({"split": np.zeros(4)}, "split holds type float64"),
        ({"split": np.zeros((2, 4), int)}, "split has shape 2 x 4"),
        ({"class_names": np.array(["only"])}, "label 1 of sample 1 is out of range"),
        ({"class_names": np.array([1, 2])}, "class_names must be one string per class"),
        ({"y": np.array([0, -1, 0, 1]), "class_names": np.array(["a", "b"])}, "label -1"),
        ({"y": np.array([0, 1, 0, 1], dtype=object)}, "array 'y' holds Python objects (a pickle)"),
    ],
)
def test_bad_npz(tmp_path: Path, change: dict[str, np.ndarray | None], words: str):
    path = tmp_path / "own.npz"
    arrays = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    np.savez(path, **arrays)
    text = message(lambda: load(f"npz:{path}", None))
    assert str(path) in text
    assert words in text


def test_too_many_classes_are_no_classes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "MAX_CLASSES", 3)
    text = message(lambda: Federation.from_arrays(np.zeros((4, 2)), np.arange(4)))
    assert "4 different labels; allowed: 3 classes" in text


def test_npz_that_is_none(tmp_path: Path):
    path = tmp_path / "own.npz"
    path.write_bytes(pickle.dumps(GOOD))
    assert "not an npz file" in message(lambda: load(f"npz:{path}", None))
    np.savez(path, **GOOD)
    path.write_bytes(path.read_bytes()[:-40])
    assert "not an npz file" in message(lambda: load(f"npz:{path}", None))
    assert "cannot be read" in message(lambda: load(f"npz:{tmp_path}", None))


def test_npz_with_flipped_bits_or_false_headers(tmp_path: Path):
    path = tmp_path / "own.npz"
    np.savez(path, **GOOD)
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"}") + 60] ^= 0xFF  # within the data of x
    path.write_bytes(raw)
    assert "damaged" in message(lambda: load(f"npz:{path}", None))
    with zipfile.ZipFile(path, "w") as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9000000000, 3), }"
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        archive.writestr("y.npy", b"nonsense")
    assert "array 'x' is damaged" in message(lambda: load(f"npz:{path}", None))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"nonsense")
        archive.writestr("y.npy", b"nonsense")
    assert "array 'x' is not a plain numpy array" in message(lambda: load(f"npz:{path}", None))


def test_an_npz_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((1_000, 1_000), np.uint8), y=np.arange(1_000) % 2)
    assert path.stat().st_size < 5_000
    monkeypatch.setattr(limits, "memory_limit", lambda: 900_000)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("was unpacked"))
    text = message(lambda: load(f"npz:{path}", None))
    assert "allowed on this machine" in text


def test_memory_limit_is_known_or_falls_back(monkeypatch: pytest.MonkeyPatch):
    assert limits.memory_limit() > 2**27
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert limits.memory_limit() == 8 * 2**30


# ------------------------------------------------------------------------------ folders


def test_empty_folder_and_file_instead_of_folder(tmp_path: Path):
    assert "no class folders" in message(lambda: load(f"folder:{tmp_path}", None))
    write_image(tmp_path / "a.png")
    assert "no class folders" in message(lambda: load(f"folder:{tmp_path}", None))
    assert "is not a folder" in message(lambda: load(f"folder:{tmp_path / 'a.png'}", None))


def test_empty_class_folder_is_named(tmp_path: Path):
    write_image(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir()
    assert "class folder 'b' holds no images" in message(lambda: load(f"folder:{tmp_path}", None))


def test_empty_class_and_domain_in_a_folder_with_domains(tmp_path: Path):
    write_image(tmp_path / "north" / "a" / "1.png")
    write_image(tmp_path / "north" / "b" / "1.png")
    (tmp_path / "south").mkdir()
    assert "site folder 'south'" in message(lambda: load(f"folder:{tmp_path}", None))
    (tmp_path / "south" / "c").mkdir()
    assert "class folder 'c'" in message(lambda: load(f"folder:{tmp_path}", None))


def test_mixed_layout_names_both(tmp_path: Path):
    write_image(tmp_path / "north" / "a" / "1.png")
    write_image(tmp_path / "b" / "1.png")
    text = message(lambda: load(f"folder:{tmp_path}", None))
    assert "'north' holds folders" in text
    assert "'b' holds files" in text


def test_single_class_folder(tmp_path: Path):
    write_image(tmp_path / "a" / "1.png")
    assert "at least 2" in message(lambda: load(f"folder:{tmp_path}", None))


def test_differing_sizes_name_two_files_and_the_option(tmp_path: Path):
    write_image(tmp_path / "a" / "1.png", (6, 4))
    write_image(tmp_path / "b" / "2.png", (4, 6))
    text = message(lambda: load(f"folder:{tmp_path}", None))
    for word in ("a/1.png is 6x4", "b/2.png is 4x6", "data.image_size"):
        assert word in text


@pytest.mark.parametrize("content", [b"not an image", b"", b"\x89PNG\r\n\x1a\n"])
def test_unreadable_image_is_named(tmp_path: Path, content: bytes):
    write_image(tmp_path / "a" / "1.png")
    write_image(tmp_path / "b" / "1.png")
    bad = tmp_path / "b" / "2.png"
    bad.write_bytes(content)
    assert str(bad) in message(lambda: load(f"folder:{tmp_path}", None))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_truncated_image_is_named(tmp_path: Path, suffix: str):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.fromarray(noise).save(tmp_path / label / f"1.{suffix}")
    bad = tmp_path / "b" / f"1.{suffix}"
    bad.write_bytes(bad.read_bytes()[:-900])
    text = message(lambda: load(f"folder:{tmp_path}", None))
    assert str(bad) in text
    assert "damaged" in text


def test_sixteen_bit_image_is_refused_with_a_way_out(tmp_path: Path):
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / label / "1.png")
    text = message(lambda: load(f"folder:{tmp_path}", None))
    assert "8 bits" in text
    assert "npz:" in text


@pytest.mark.parametrize("side", [9_000, 20_000])
def test_an_image_bomb_is_refused_before_it_is_decoded(tmp_path: Path, side: int):
    (tmp_path / "a").mkdir()
    small = tmp_path / "a" / "1.bmp"
    Image.new("1", (8, 8)).save(small)
    raw = bytearray(small.read_bytes())
    raw[18:26] = side.to_bytes(4, "little") * 2  # width and height in the header
    small.write_bytes(raw)
    text = message(lambda: load(f"folder:{tmp_path}", None, image_size=8))
    assert str(small) in text
    assert "64,000,000" in text


def test_many_images_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for label in "ab":
        write_image(tmp_path / label / "1.png")
    monkeypatch.setattr(limits, "memory_limit", lambda: 40)
    assert "allowed on this machine" in message(lambda: load(f"folder:{tmp_path}", None))


def test_office_home_without_domains(tmp_path: Path):
    for label in "ab":
        write_image(tmp_path / "office-home" / label / "1.png")
    assert "holds no domains" in message(lambda: load("office-home", tmp_path))


def test_image_size_is_for_folders_only(tmp_path: Path):
    assert "data.image_size" in message(lambda: load("digits", None, image_size=16))
    assert "found 0" in message(lambda: load(f"folder:{tmp_path}", None, image_size=0))
