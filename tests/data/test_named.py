"""Heart disease at four hospitals, and the tables that come with scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split

from pgfed.data import datasets
from pgfed.data.federation import build
from pgfed.errors import UserError

HOSPITALS = {
    "cleveland": "cleveland",
    "hungary": "hungarian",
    "switzerland": "switzerland",
    "long-beach": "va",
}


def write(root: Path, seed: int = 0) -> None:
    """Files of the same form, with numbers of our own."""
    rng = np.random.default_rng(seed)
    (root / "heart-disease").mkdir(parents=True)
    for n, file in zip((60, 50, 20, 30), HOSPITALS.values(), strict=True):
        table = rng.normal(50, 10, (n, 14)).round(1)
        table[:, 2] = rng.integers(1, 5, n)
        table[:, 6] = rng.integers(0, 3, n)
        table[:, 13] = rng.integers(0, 5, n) if file != "switzerland" else 1
        cells = table.astype(str)
        cells[::9, 4] = "?"
        cells[:, 10:13] = "?"
        if file == "switzerland":
            cells[1, 13] = "0"
        lines = [",".join(row) for row in cells]
        (root / "heart-disease" / f"processed.{file}.data").write_text("\n".join(lines) + "\n")


def test_heart_disease_is_flambys(tmp_path: Path):
    """Against the recipe, written once more with pandas."""
    write(tmp_path)
    data = datasets.load("heart-disease", tmp_path)
    assert data.class_names == ("absent", "present")
    tables = {}
    for name, file in HOSPITALS.items():
        path = tmp_path / "heart-disease" / f"processed.{file}.data"
        found = pd.read_csv(path, header=None, na_values="?").drop(columns=[10, 11, 12])
        tables[name] = found.dropna().reset_index(drop=True)
    pooled = pd.get_dummies(pd.concat(tables), columns=[2, 6], drop_first=True, dtype=float)
    for name, table in tables.items():
        y = (table[13] > 0).astype(int)
        enough = y.nunique() > 1 and y.value_counts().min() > 2
        train, test = train_test_split(
            np.arange(len(y)), test_size=0.34, train_size=0.66, random_state=43,
            stratify=y if enough else None,
        )  # fmt: skip
        x = pooled.loc[name].drop(columns=[13]).to_numpy()
        mean, std = x[train].mean(axis=0), x[train].std(axis=0)
        x = (x - mean) / np.where(std > 0, std, 1)
        mine = data.client == name
        assert np.allclose(data.x[mine], x, atol=1e-5)
        assert np.array_equal(data.y[mine], y)
        assert np.array_equal(np.flatnonzero(data.split[mine]), np.sort(test))


def test_heart_disease_that_is_damaged_or_missing(tmp_path: Path):
    with pytest.raises(UserError, match="pgfed data fetch heart-disease"):
        datasets.load("heart-disease", tmp_path)
    write(tmp_path)
    path = tmp_path / "heart-disease" / "processed.va.data"
    path.write_text(path.read_text() + "1,2,3\n")
    with pytest.raises(UserError, match=r"processed.va.data: line 31 has not 14 numbers"):
        datasets.load("heart-disease", tmp_path)


@pytest.mark.skipif(
    not datasets.is_present("heart-disease", Path(os.environ.get("PGFED_DATA", "data"))),
    reason="the hospitals' files are not here ($PGFED_DATA)",
)
def test_the_real_files_have_flambys_numbers():
    data = datasets.load("heart-disease", Path(os.environ.get("PGFED_DATA", "data")))
    sizes = {name: int((data.client == name).sum()) for name in HOSPITALS}
    assert sizes == {"cleveland": 303, "hungary": 261, "switzerland": 46, "long-beach": 130}
    assert data.y[data.client == "switzerland"].sum() == 45
    assert data.x.shape == (740, 13)


def test_breast_cancer_at_four_clinics():
    data = datasets.load("breast-cancer", None)
    bunch = load_breast_cancer()
    malignant = bunch.target_names[bunch.target] == "malignant"
    assert np.array_equal(data.y, malignant.astype(int))
    made = build(data, partition="given", by_name=True, stratify="auto")
    assert len(made) == 4
    assert made.input_shape == (30,)
    assert made.positive == "malignant"
    assert (made.n_train + made.n_test).min() > 130
    for i in range(4):  # each clinic's own training rows are at 0, with spread 1
        assert np.allclose(made.train(i).x.mean(0), 0, atol=1e-4)
        assert np.allclose(made.train(i).x.std(0, correction=0), 1, atol=1e-4)


def test_diabetes_is_a_number_at_four_practices():
    data = datasets.load("diabetes", None, targets="values")
    assert np.allclose(data.y[:, 0], load_diabetes().target)
    made = build(data, partition="given")
    assert made.class_names == ("progression",)
    assert made.target_scaling == ([150.0], [75.0])
    assert sorted(map(str, made.client_labels)) == sorted(
        ["under-40", "40-to-49", "50-to-59", "60-and-older"]
    )
    with pytest.raises(UserError, match=r"task.kind: diabetes has values"):
        datasets.load("diabetes", None)


@pytest.mark.skipif(
    not datasets.is_present("heart-disease", Path(os.environ.get("PGFED_DATA", "data"))),
    reason="needs heart-disease",
)
def test_heart_disease_by_public_ranges_follows_from_no_other_record() -> None:
    root = Path(os.environ.get("PGFED_DATA", "data"))
    data = datasets.load("heart-disease-ranges", root)
    other = datasets.load("heart-disease", root)
    assert data.split is None
    assert (data.y == other.y).all()
    assert np.abs(data.x[:, :8]).max() <= 1
    # The first patient of Cleveland: 63 years in 20..90, blood pressure 145 in 80..220.
    assert data.x[0, [0, 2]] == pytest.approx([(2 * 63 - 110) / 70, (290 - 300) / 140])
