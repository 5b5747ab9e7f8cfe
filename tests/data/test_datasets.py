"""Every data set is read from files in its real format."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    write_cifar10_binary,
    write_cifar10_python,
    write_cifar100_binary,
    write_cifar100_python,
    write_image,
    write_mnist,
    write_organamnist,
)
from PIL import Image
from sklearn.datasets import load_digits

from pgfed.data import datasets
from pgfed.data.dataset import Dataset
from pgfed.data.datasets import describe, load, names


@pytest.fixture(autouse=True)
def no_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "no-such-package")


def test_digits_are_embedded_grey_bytes():
    digits = load("digits", None)
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == np.uint8
    assert (digits.x.min(), digits.x.max()) == (0, 255)
    assert digits.class_names == tuple("0123456789")
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # 8 of 16 levels is half of 255, rounded to even.
    assert set(np.unique(digits.x)) == {round(255 * level / 16) for level in range(17)}


def test_digits_are_scikit_learns():
    theirs = load_digits()
    ours = load("digits", None)
    np.testing.assert_array_equal(ours.x[:, 0], np.rint(theirs.images * 255 / 16))
    np.testing.assert_array_equal(ours.y, theirs.target)


def test_a_run_of_the_digits_does_without_scikit_learn(tmp_path: Path):
    """To import it takes as long as torch."""
    code = (
        "import sys, pgfed\n"
        "quick = {'methods': ['local'], 'rounds': 1, 'engine': {'backend': 'serial'}}\n"
        "pgfed.run('digits', out='run', **quick)\n"
        "sys.exit('sklearn' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("compress", [True, False])
def test_idx_files(tmp_path: Path, name: str, compress: bool):
    x, y = write_mnist(tmp_path / name, compress)
    data = load(name, tmp_path)
    np.testing.assert_array_equal(data.x, x[:, None])
    np.testing.assert_array_equal(data.y, y)
    assert data.y.dtype == np.int64
    assert len(data.class_names) == 10


def test_fashion_mnist_where_debian_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "package"
    x, _ = write_mnist(package)
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", package)
    for root in (None, tmp_path / "empty"):
        np.testing.assert_array_equal(load("fashion-mnist", root).x[:, 0], x)
    assert load("fashion-mnist", None).class_names[9] == "Ankle boot"


def test_cifar10_binary(tmp_path: Path):
    x, y = write_cifar10_binary(tmp_path)
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert data.class_names[3] == "kind3"


def test_cifar100_binary_uses_the_fine_label(tmp_path: Path):
    x, y = write_cifar100_binary(tmp_path)
    data = load("cifar100", tmp_path)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert data.class_names[99] == "99"


@pytest.mark.parametrize("modern", [False, True])
def test_cifar10_python(tmp_path: Path, modern: bool):
    x, y = write_cifar10_python(tmp_path, modern)
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert data.class_names[3] == "kind3"


def test_cifar100_python_uses_the_fine_label(tmp_path: Path):
    x, y = write_cifar100_python(tmp_path)
    data = load("cifar100", tmp_path)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)


def test_cifar_versions_agree(tmp_path: Path):
    write_cifar10_binary(tmp_path / "a")
    write_cifar10_python(tmp_path / "b")
    a, b = load("cifar10", tmp_path / "a"), load("cifar10", tmp_path / "b")
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.y, b.y)
    assert a.class_names == b.class_names


def test_organamnist_merges_its_three_parts(tmp_path: Path):
    x, y = write_organamnist(tmp_path)
    data = load("organamnist", tmp_path)
    np.testing.assert_array_equal(data.x, x[:, None])
    np.testing.assert_array_equal(data.y, y)
    assert data.class_names[6] == "liver"


def test_office_home_has_domains_and_sorted_classes_at_32_pixels(tmp_path: Path):
    for domain in ("Real World", "Art"):
        for k, label in enumerate(("Mug", "Alarm_Clock")):
            path = tmp_path / "office-home" / domain / label / "00001.jpg"
            write_image(path, (40 + k, 50), (200, 20, 20))
    (tmp_path / "office-home" / "ImageInfo.csv").write_text("not,a,folder")
    data = load("office-home", tmp_path)
    assert data.x.shape == (4, 3, 32, 32)
    assert data.class_names == ("Alarm_Clock", "Mug")
    assert data.domain is not None
    assert data.domain.tolist() == ["Art", "Art", "Real World", "Real World"]
    assert data.y.tolist() == [0, 1, 0, 1]
    assert abs(int(data.x[0, 0].mean()) - 200) < 5
    assert load("office-home", tmp_path, image_size=8).x.shape == (4, 3, 8, 8)


def test_folder_without_domains_is_grey_when_all_images_are(tmp_path: Path):
    for label, shade in (("b", 10), ("a", 250)):
        write_image(tmp_path / "pics" / label / "1.png", (6, 4), shade)
    (tmp_path / "pics" / "a" / ".DS_Store").write_bytes(b"litter")
    (tmp_path / "pics" / "a" / "Thumbs.db").write_bytes(b"litter")
    data = load(f"folder:{tmp_path / 'pics'}", None)
    assert data.x.shape == (2, 1, 4, 6)
    assert data.class_names == ("a", "b")
    assert data.domain is None
    assert data.x[0].max() == data.x[0].min() == 250
    assert data.x[1].max() == data.x[1].min() == 10


def test_one_colour_image_makes_all_of_them_rgb(tmp_path: Path):
    write_image(tmp_path / "a" / "1.png", colour=7)
    write_image(tmp_path / "b" / "1.png", colour=(1, 2, 3))
    data = load(f"folder:{tmp_path}", None)
    assert data.x.shape == (2, 3, 4, 6)
    assert data.x[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3]]


def test_folder_keeps_the_pixels_in_place(tmp_path: Path):
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.fromarray(pixels).save(tmp_path / label / "x.png")
    np.testing.assert_array_equal(load(f"folder:{tmp_path}", None).x[1, 0], pixels)


def test_folder_of_differing_sizes_is_resized_on_request(tmp_path: Path):
    write_image(tmp_path / "a" / "1.png", (6, 4))
    write_image(tmp_path / "b" / "1.png", (9, 9))
    assert load(f"folder:{tmp_path}", None, image_size=5).x.shape == (2, 1, 5, 5)


def test_a_domain_may_lack_a_class(tmp_path: Path):
    write_image(tmp_path / "north" / "a" / "1.png")
    write_image(tmp_path / "south" / "b" / "1.png")
    data = load(f"folder:{tmp_path}", None)
    assert data.y.tolist() == [0, 1]
    assert data.domain is not None
    assert data.domain.tolist() == ["north", "south"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 3, 5, 4), (6, 3, 5, 4)), ((6, 5, 4), (6, 1, 5, 4)), ((6, 7), (6, 7))],
)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", ">f4"])
def test_npz_shapes_and_types(tmp_path: Path, shape, expected, dtype):
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(6) % 2)
    data = load(f"npz:{tmp_path / 'own.npz'}", None)
    assert data.x.shape == expected
    assert data.x.dtype == (np.uint8 if dtype == "uint8" else np.float32)
    np.testing.assert_array_equal(data.x.reshape(shape), x.astype(np.float32))


def test_npz_labels_are_any_integers_in_sorted_order(tmp_path: Path):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 2)), y=np.array([[40], [-3], [40], [7]]))
    data = load(f"npz:{tmp_path / 'own.npz'}", None)
    assert data.y.tolist() == [2, 0, 2, 1]
    assert data.class_names == ("-3", "7", "40")


@pytest.mark.parametrize(
    "split",
    [np.array(["train", "test", "train"]), np.array([0, 1, 0]), np.array([False, True, False])],
)
def test_npz_client_domain_and_split(tmp_path: Path, split: np.ndarray):
    np.savez_compressed(
        tmp_path / "own.npz",
        x=np.asfortranarray(np.arange(6.0).reshape(3, 2)),
        y=np.array([0, 1, 1]),
        client=np.array([9, 5, 9]),
        domain=np.array([2, 1, 2]),
        split=split,
    )
    data = load(f"npz:{tmp_path / 'own.npz'}", None)
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data.client is not None
    assert data.domain is not None
    assert data.split is not None
    assert data.client.tolist() == [9, 5, 9]
    assert data.domain.tolist() == ["2", "1", "2"]
    assert data.split.tolist() == [False, True, False]


def test_class_names_fix_what_labels_mean_even_if_a_site_lacks_one(tmp_path: Path):
    names = np.array(["no", "maybe", "yes"])
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 2)), y=np.array([2, 0]), class_names=names)
    data = load(f"npz:{tmp_path / 'own.npz'}", None)
    assert data.y.tolist() == [2, 0]
    assert data.class_names == ("no", "maybe", "yes")


def test_relative_paths_are_looked_for_here_and_then_under_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here, root = tmp_path / "here", tmp_path / "root"
    for place, value in ((here, 1.0), (root, 2.0)):
        place.mkdir()
        np.savez(place / "own.npz", x=np.full((2, 2), value), y=np.array([0, 1]))
    monkeypatch.chdir(here)
    assert load("npz:own.npz", root).x[0, 0] == 1
    (here / "own.npz").unlink()
    assert load("npz:own.npz", root).x[0, 0] == 2


def test_describe_says_what_is_there(tmp_path: Path):
    write_organamnist(tmp_path)
    rows = {row["name"]: row for row in describe(tmp_path)}
    assert list(rows) == names()
    assert rows["digits"]["present"]
    assert rows["organamnist"]["present"]
    assert not rows["cifar10"]["present"]
    assert rows["cifar100"]["classes"] == 100
    assert rows["cifar10"]["input"] == (3, 32, 32)
    inside = [row["name"] for row in describe(None) if row["present"]]
    assert inside == ["digits", "digits-styles", "breast-cancer", "diabetes"]


def test_from_arrays_takes_tensors():
    import torch

    data = Dataset.from_arrays("t", torch.zeros(4, 3), torch.tensor([5, 6, 5, 6]))
    assert data.x.dtype == np.float32
    assert data.y.tolist() == [0, 1, 0, 1]


@pytest.mark.skipif("PGFED_DATA" not in os.environ, reason="needs the real files: PGFED_DATA")
def test_real_cifar10():
    root = Path(os.environ["PGFED_DATA"])
    if not datasets.is_present("cifar10", root):
        pytest.skip("CIFAR-10 is not under PGFED_DATA")
    data = load("cifar10", root)
    assert data.x.shape == (60_000, 3, 32, 32)
    assert np.bincount(data.y).tolist() == [6_000] * 10
    assert data.class_names[:3] == ("airplane", "automobile", "bird")
    assert data.y[:5].tolist() == [6, 9, 9, 4, 1]
    # The published channel means of the training images.
    means = data.x[:50_000].mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)
