"""Stratified splits, groups that stay together, and draws that follow names."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import small_runs
from pgfed.config.experiment import from_dict, load
from pgfed.data.dataset import Dataset
from pgfed.data.federation import Federation, build
from pgfed.data.splits import Rules, name_key
from pgfed.methods.randomness import Rng, draw_cohort


def blobs(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.choice(3, size=n, p=[0.7, 0.2, 0.1])


@pytest.mark.parametrize("share", [0.25, 0.4])
def test_each_class_has_its_share_of_the_test_samples(share: float):
    x, y = blobs()
    client = np.arange(200) % 2
    made = Federation.from_arrays(x, y, client=client, test_share=share, stratify=True)
    for i in range(2):
        test = made.test(i).class_counts(3)
        total = made.train(i).class_counts(3) + test
        assert len(made.test(i)) == 100 - int((1 - share) * 100 + 1e-9)
        assert np.allclose(test.numpy(), share * total.numpy(), atol=1.0)


def test_validation_is_stratified_too():
    x, y = blobs()
    made = Federation.from_arrays(
        x, y, client=np.zeros(200, int), validation_share=0.25, stratify=True
    )
    expected = np.bincount(y) * 0.75 * 0.25
    assert np.allclose(made.validation(0).class_counts(3).numpy(), expected, atol=1.0)


def test_auto_looks_at_each_client():
    x, _ = blobs(30)
    y = np.array([0] * 10 + [1] * 10 + [0] * 9 + [1])
    client = np.repeat(["even", "odd"], [20, 10])
    given = {"client": client, "test_share": 0.25}
    auto = Federation.from_arrays(x, y, stratify="auto", **given)
    plain = Federation.from_arrays(x, y, stratify=False, **given)
    assert auto.stratified == 1
    assert auto.test(0).class_counts(2).tolist() in ([2, 3], [3, 2])
    assert np.array_equal(auto.test(1).x, plain.test(1).x)
    assert Rules(0.25, stratify="auto").enough == 4


def test_format_1_splits_at_random_and_by_number(tmp_path: Path):
    new = from_dict({}).data
    assert (new.stratify, new.draws) == ("auto", "by-name")
    old = from_dict({"format": 1}).data
    assert (old.stratify, old.draws) == (False, "by-number")
    (tmp_path / "e.toml").write_text("[data]\nstratify = true\n")
    kept = load(tmp_path / "e.toml").data
    assert (kept.stratify, kept.draws) == (True, "by-number")


@pytest.mark.parametrize("partition", ["given", "iid", "dirichlet"])
@pytest.mark.parametrize("stratify", [False, True])
def test_a_patient_is_never_divided(partition: str, stratify: bool):
    x, y = blobs(300)
    patient = np.random.default_rng(1).integers(0, 60, 300)
    x[:, 0] = patient
    given = {"client": patient % 4} if partition == "given" else {"clients": 4, "min_samples": 2}
    made = Federation.from_arrays(
        x, y, group=patient, partition=partition, validation_share=0.2, stratify=stratify, **given
    )
    homes: dict[float, set[tuple[int, str]]] = {}
    for i in range(4):
        for part in ("train", "validation", "test"):
            for who in getattr(made, part)(i).x[:, 0].tolist():
                homes.setdefault(who, set()).add((i, part))
    assert all(len(home) == 1 for home in homes.values())
    assert sum(made.n_test) / 300 == pytest.approx(0.25, abs=0.1)
    assert made.n_validation.min() >= 1


def test_one_patient_alone_is_trained_on():
    x, y = blobs(10)
    made = Federation.from_arrays(x, y, client=np.zeros(10, int), group=np.zeros(10, int))
    assert made.n_train.tolist() == [10]


def test_what_stands_in_train_and_test_is_said(caplog: pytest.LogCaptureFixture):
    x, y = blobs(40)
    x, y = np.concatenate([x, x[:3]]), np.concatenate([y, y[:3]])
    split = np.array(["train"] * 30 + ["test"] * 10 + ["test"] * 3)
    Federation.from_arrays(x, y, client=np.zeros(43, int), split=split)
    assert "3 of 13 test samples stand in the training data, too" in caplog.text
    caplog.clear()
    Federation.from_arrays(x[:40], y[:40], client=np.zeros(40, int), split=split[:40])
    assert not caplog.records
    patients = np.arange(40) // 4  # the split cuts the eighth in two
    Federation.from_arrays(
        x[:40], y[:40], client=np.zeros(40, int), split=split[:40], group=patients
    )
    assert "1 group(s) stand in train and test, as '7'" in caplog.text


@pytest.mark.parametrize("kind", ["signs", "pixels", "tokens", "few"])
def test_samples_that_stand_twice_are_counted_as_by_comparing_all(
    kind: str, caplog: pytest.LogCaptureFixture
):
    rng = np.random.default_rng(3)
    x = {
        "signs": rng.choice([-1.0, 1.0], (4000, 12)).astype(np.float32),
        "pixels": rng.integers(0, 2, (4000, 1, 3, 5)).astype(np.uint8),
        "tokens": rng.integers(0, 4, (4000, 6)),
        "few": rng.integers(0, 30, (4000, 1)).astype(np.float32),
    }[kind]
    y = rng.integers(0, 5, 4000)
    test = rng.random(4000) < 0.3
    rows = [(a.tobytes(), int(b)) for a, b in zip(x, y, strict=True)]
    known = {row for row, tested in zip(rows, test, strict=True) if not tested}
    again = sum(row in known for row, tested in zip(rows, test, strict=True) if tested)
    Federation.from_arrays(x, y, client=np.arange(4000) % 7, split=test)
    assert 0 < again < test.sum() or kind == "few"
    assert f"{again} of {test.sum()} test samples stand in the training data" in caplog.text


def test_removing_a_site_leaves_the_others_as_they_were():
    x, y = blobs(120)
    site = np.repeat(["north", "east", "south", "west"], 30)
    whole = build(Dataset.from_arrays("d", x, y, client=site), partition="given", by_name=True)
    kept = site != "east"
    fewer = build(
        Dataset.from_arrays("d", x[kept], y[kept], client=site[kept]),
        partition="given",
        by_name=True,
    )
    before = {str(name): i for i, name in enumerate(whole.client_labels)}
    for i, name in enumerate(fewer.client_labels):
        j = before[str(name)]
        assert np.array_equal(fewer.test(i).x, whole.test(j).x)
        assert fewer.key(i) == whole.key(j)
        draws = [f.key(k) for f, k in ((fewer, i), (whole, j))]
        first, second = (Rng(0, k, 3, key).permutation(9, "train") for k, key in enumerate(draws))
        assert np.array_equal(first, second)


def test_cohorts_follow_names():
    names = [f"site {i}" for i in range(12)]
    keys = {name: name_key(name) for name in names}
    gone = "site 5"
    left = [name for name in names if name != gone]
    for t in range(1, 20):
        whole = {names[i] for i in draw_cohort(0, t, 12, 4, list(keys.values()))}
        fewer = {left[i] for i in draw_cohort(0, t, 11, 4, [keys[name] for name in left])}
        assert len(whole) == len(fewer) == 4
        assert whole - {gone} <= fewer
    drawn = [i for t in range(300) for i in draw_cohort(0, t, 12, 4, list(keys.values()))]
    assert np.bincount(drawn).min() > 70  # of 100 expected


def test_numbers_are_their_own_keys():
    x, y = blobs(60)
    data = Dataset.from_arrays("d", x, y, client=np.arange(60) % 3)
    named, numbered = (build(data, partition="given", by_name=by) for by in (True, False))
    assert named.keys is None
    assert named.fingerprint == numbered.fingerprint


def test_a_run_says_where_it_stratifies(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "pgfed.notes")
    x, y = blobs(240)
    site = np.repeat(["north", "south"], 120)
    result = small_runs.run((x, y, site), methods=["fedavg"], rounds=1, backend="serial", lr=0.1)
    assert "stratified by class at 2 of 2 clients" in caplog.text
    assert result.federation.keys is not None
