"""What is to be predicted: classes, labels, values and masks; and inputs of any shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pgfed.data import datasets, matching
from pgfed.data.dataset import Dataset
from pgfed.data.federation import Federation
from pgfed.errors import UserError

X = np.arange(24, dtype=np.float32).reshape(12, 2)


def made(y, form, **more) -> Dataset:
    return Dataset.from_arrays("d", X[: len(y)], y, targets=form, **more)


def test_names_and_booleans_are_classes():
    names = made(np.array(["sick", "well", "sick"]), "classes")
    assert names.class_names == ("sick", "well")
    assert names.y.tolist() == [0, 1, 0]
    objects = made(np.array(["well", "sick"], dtype=object), "classes")
    assert objects.y.tolist() == [1, 0]
    flags = made(np.array([True, False]), "classes")
    assert flags.class_names == ("False", "True")
    assert flags.y.tolist() == [1, 0]


def test_names_follow_what_was_agreed():
    agreed = made(np.array(["b", "a"]), "classes", class_names=["c", "b", "a"])
    assert agreed.y.tolist() == [1, 2]
    with pytest.raises(UserError, match="class: unknown 'd'"):
        made(np.array(["d", "a"]), "classes", class_names=["c", "b", "a"])


def test_labels_are_columns_of_0_and_1():
    labels = made(np.eye(3, dtype=int), "labels")
    assert labels.y.dtype == np.float32
    assert labels.class_names == ("0", "1", "2")
    with pytest.raises(UserError, match="other numbers than 0 and 1"):
        made(np.full((3, 2), 2), "labels")


def test_values_are_columns_of_numbers():
    one = made(np.array([1.5, 2, 3]), "values")
    assert one.y.shape == (3, 1)
    assert one.class_names == ("target",)
    two = made(np.array([[1, 2], [3, 4]]), "values", class_names=["height", "weight"])
    assert two.class_names == ("height", "weight")
    with pytest.raises(UserError, match="y has 2 columns; expected 1: height"):
        made(np.array([[1, 2], [3, 4]]), "values", class_names=["height"])
    with pytest.raises(UserError, match="NaN or infinite values, first in sample 1"):
        made(np.array([1, np.nan]), "values")


def test_masks_are_classes_of_pixels():
    x = np.zeros((2, 4, 5), dtype=np.uint8)
    y = np.zeros((2, 4, 5), dtype=np.uint8)
    y[0, 0] = 255
    masks = Dataset.from_arrays("d", x, y, targets="masks")
    assert masks.class_names == ("0", "255")
    assert masks.y[0, 0].tolist() == [1] * 5
    with pytest.raises(UserError, match="masks of 4 x 4, but x has images of 4 x 5"):
        Dataset.from_arrays("d", x, y[:, :, :4], targets="masks")


def test_a_federation_of_values_has_no_classes():
    federation = Federation.from_arrays(
        X, X[:, 0], client=np.repeat(["a", "b"], 6), targets="values"
    )
    assert federation.targets == "values"
    assert federation.counts() is None
    assert [set(row) for row in federation.table()] == [
        {"client", "domain", "n_train", "n_validation", "n_test", "label"}
    ] * 2
    x, y = federation.train(1).batch(slice(0, 3))
    assert torch.equal(x[:, :1], y)


def test_values_are_divided_without_classes():
    federation = Federation.from_arrays(X, X, clients=3, min_samples=1, targets="values")
    assert len(federation) == 3
    domain = np.repeat(["p", "q"], 6)
    by_domain = Federation.from_arrays(
        X, X, domain=domain, partition="domain", clients=4, min_samples=1, targets="values"
    )
    assert sorted(map(str, by_domain.domains)) == ["p", "p", "q", "q"]
    with pytest.raises(UserError, match="'classes' divides by classes, and arrays has values"):
        Federation.from_arrays(X, X, partition="classes", targets="values")


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 4), (1, 2, 3, 4)])
def test_integers_are_passed_on_as_they_are(shape):
    x = np.random.default_rng(0).integers(-5, 1000, (8, *shape), dtype=np.int32)
    federation = Federation.from_arrays(x, np.arange(8) % 2, client=np.zeros(8, int), test_share=0)
    assert federation.input_shape == shape
    got, _ = federation.train(0).batch(slice(0, 8))
    assert got.dtype == torch.int64
    assert sorted(map(str, got.tolist())) == sorted(map(str, x.tolist()))


def test_volumes_keep_their_shape():
    x = np.random.default_rng(0).normal(size=(6, 1, 2, 3, 4))
    federation = Federation.from_arrays(x, np.arange(6) % 2, client=np.zeros(6, int), test_share=0)
    got, _ = federation.train(0).batch(slice(0, 6))
    assert got.shape == (6, 1, 2, 3, 4)
    assert got.sum().item() == pytest.approx(x.sum(), abs=1e-4)


def test_a_named_data_set_says_what_it_has(tmp_path: Path):
    with pytest.raises(UserError, match=r"task.kind: digits has classes .* wants values"):
        datasets.load("digits", None, targets="values")


def test_a_later_site_agrees_on_targets(tmp_path: Path):
    np.savez(tmp_path / "v.npz", x=X, y=X[:, :1])
    form = {"input_shape": (2,), "input_type": "float32", "image_size": None}
    name = f"npz:{tmp_path / 'v.npz'}"
    site = matching.load(name, None, classes=["mass"], targets="values", **form)
    assert site.class_names == ("mass",)
    assert np.array_equal(site.y, X[:, :1])
    np.savez(tmp_path / "s.npz", x=X[:2], y=np.array(["b", "c"]))
    named = matching.load(f"npz:{tmp_path / 's.npz'}", None, classes=["a", "b", "c"], **form)
    assert named.y.tolist() == [1, 2]
