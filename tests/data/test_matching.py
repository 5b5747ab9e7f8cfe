"""Samples of a site that comes later, under the classes that the others agreed on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pgfed.data import matching
from pgfed.data.dataset import Dataset
from pgfed.errors import UserError

CLASSES = ["sound", "worn"]


def read(folder: Path, **more: object) -> Dataset:
    np.savez(folder / "new.npz", x=np.zeros((3, 2), dtype=np.float32), **more)
    return matching.load(
        f"npz:{folder / 'new.npz'}",
        None,
        classes=CLASSES,
        input_shape=(2,),
        input_type="float32",
        image_size=None,
    )


@pytest.mark.parametrize(
    "labels",
    [{"y": ["worn", "sound", "worn"]}, {"y": [0, 1, 0], "class_names": ["worn", "sound"]}],
)
def test_classes_are_known_by_name(tmp_path: Path, labels: dict[str, object]) -> None:
    assert read(tmp_path, **labels).y.tolist() == [1, 0, 1]


def test_a_site_may_lack_classes(tmp_path: Path) -> None:
    assert read(tmp_path, y=["worn"] * 3).y.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "labels",
    [{"y": ["worn", "sound", "broken"]}, {"y": [0, 0, 0], "class_names": ["broken"]}],
)
def test_what_a_site_with_a_class_of_its_own_can_do(
    tmp_path: Path, labels: dict[str, object]
) -> None:
    said = "unknown 'broken'; allowed: sound, worn. .* leave these samples out, or train anew"
    with pytest.raises(UserError, match=said):
        read(tmp_path, **labels)
