"""Partitions: the paper's sizes exactly; every scheme complete, disjoint, and as it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgfed.data.dataset import Dataset
from pgfed.data.federation import build
from pgfed.data.partitions import KINDS, partition
from pgfed.errors import UserError

FIXTURE = json.loads((Path(__file__).parent / "partition_fixture.json").read_text())


def labelled(y: np.ndarray, **more: np.ndarray) -> Dataset:
    classes = int(y.max()) + 1
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return Dataset("test data", x, y.astype(np.int64), tuple(map(str, range(classes))), **more)


def cut(kind: str, dataset: Dataset, **options: object) -> list[np.ndarray]:
    defaults = {
        "clients": 4,
        "alpha": 0.3,
        "seed": 1,
        "min_samples": 1,
        "classes_per_client": 2,
    }
    return partition(kind, dataset, **{**defaults, **options})  # type: ignore[arg-type]


def assert_complete(parts: list[np.ndarray], n: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@pytest.mark.parametrize("setting", FIXTURE)
def test_the_papers_partitions_exactly(setting: str):
    name, clients = setting.split("-")
    classes = int(name.removeprefix("cifar"))
    data = labelled(np.repeat(np.arange(classes), 60_000 // classes))
    parts = cut("dirichlet", data, clients=int(clients), min_samples=40)
    expected = FIXTURE[setting]
    assert [len(part) for part in parts] == expected["total"]
    assert [len(np.unique(data.y[part])) for part in parts] == expected["n_classes"]
    federation = build(data, clients=int(clients))
    assert federation.n_train.tolist() == expected["train"]
    assert (federation.n_test + federation.n_train).tolist() == expected["total"]


def test_the_sizes_do_not_depend_on_the_order_of_the_samples():
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6_000))
    parts = cut("dirichlet", labelled(y), clients=25, min_samples=40)
    assert [len(part) for part in parts] == FIXTURE["cifar10-25"]["total"]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([kind for kind in KINDS if kind != "given"]),
    sizes=st.lists(st.integers(20, 60), min_size=2, max_size=5),
    clients=st.integers(2, 7),
    alpha=st.sampled_from([0.1, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_scheme_is_complete_disjoint_and_repeatable(kind, sizes, clients, alpha, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(seed)
    rng.shuffle(y)
    data = labelled(y, domain=np.where(np.arange(len(y)) % 2, "a", "b"))
    options = {
        "clients": clients,
        "alpha": alpha,
        "seed": seed,
        "classes_per_client": -(-len(sizes) // clients),
    }
    parts = cut(kind, data, **options)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    assert_complete(parts, len(y))
    assert all((np.diff(part) > 0).all() for part in parts)
    for part, again in zip(parts, cut(kind, data, **options), strict=True):
        np.testing.assert_array_equal(part, again)


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-plain", "classes", "iid"])
def test_another_seed_is_another_partition(kind: str):
    data = labelled(np.repeat(np.arange(4), 100))
    a, b = cut(kind, data, seed=1), cut(kind, data, seed=2)
    assert any(not np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-plain", "domain"])
def test_redraws_until_everyone_has_enough(kind: str):
    data = labelled(np.repeat(np.arange(4), 100), domain=np.tile(["a", "b"], 200))
    low = cut(kind, data, clients=8, min_samples=1, seed=3)
    assert min(len(part) for part in low) < 25
    parts = cut(kind, data, clients=8, min_samples=25, seed=3)
    assert min(len(part) for part in parts) >= 25
    assert_complete(parts, 400)


def test_the_size_cap_evens_out_sizes():
    data = labelled(np.repeat(np.arange(50), 40))
    capped = np.std([len(p) for p in cut("dirichlet", data, clients=20)])
    plain = np.std([len(p) for p in cut("dirichlet-plain", data, clients=20)])
    assert capped < plain / 2


def test_plain_dirichlet_is_even_for_a_large_alpha():
    parts = cut("dirichlet-plain", labelled(np.repeat(np.arange(2), 500)), alpha=1e6)
    assert all(abs(len(part) - 250) <= 4 for part in parts)


@settings(max_examples=40, deadline=None)
@given(classes=st.integers(2, 8), clients=st.integers(2, 12), data=st.data())
def test_classes_gives_each_client_its_number_of_classes(classes, clients, data):
    per_client = data.draw(st.integers(-(-classes // clients), classes))
    y = np.repeat(np.arange(classes), 60)
    parts = cut("classes", labelled(y), clients=clients, classes_per_client=per_client)
    assert [len(np.unique(y[part])) for part in parts] == [per_client] * clients
    assert_complete(parts, len(y))
    shares = np.array([np.bincount(y[part], minlength=classes) for part in parts])
    for column in shares.T:  # a class is shared evenly
        held = column[column > 0]
        assert held.max() - held.min() <= 1
    holders = (shares > 0).sum(axis=0)  # and classes are handed out evenly
    assert holders.max() - holders.min() <= 1


def test_iid_sizes_differ_by_one_at_most():
    parts = cut("iid", labelled(np.arange(103) % 3), clients=10)
    assert sorted(len(part) for part in parts) == [10] * 7 + [11] * 3


def test_domain_gives_clients_in_sorted_order_of_domains():
    domain = np.repeat(["Product", "Art", "Real World", "Clipart"], 300)
    data = labelled(np.tile(np.arange(6), 200), domain=domain)
    parts = cut("domain", data, clients=20, min_samples=20)
    assert [np.unique(domain[part]).tolist() for part in parts] == [
        [name] for name in ("Art", "Clipart", "Product", "Real World") for _ in range(5)
    ]
    assert_complete(parts, 1_200)
    assert min(len(part) for part in parts) >= 20


def test_domain_with_a_remainder_serves_the_first_domains():
    domain = np.repeat(["a", "b", "c"], 100)
    parts = cut("domain", labelled(np.tile([0, 1], 150), domain=domain), clients=5)
    assert [str(domain[part[0]]) for part in parts] == ["a", "a", "b", "b", "c"]


def test_given_follows_the_data_in_ascending_order():
    data = labelled(np.array([0, 1, 0, 1]), client=np.array([70, -2, 70, 5]))
    parts = cut("given", data, clients=99, min_samples=1_000)
    assert [part.tolist() for part in parts] == [[1], [3], [0, 2]]


def test_a_tiny_alpha_ends_in_a_partition_or_one_line():
    data = labelled(np.repeat(np.arange(3), 50))
    with pytest.raises(
        UserError, match=r"data\.min_samples: no Dirichlet partition in 1,000 draws"
    ):
        cut("dirichlet-plain", data, alpha=1e-8, clients=10, min_samples=1)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("dirichlett", {}, "unknown 'dirichlett' (did you mean 'dirichlet'?)"),
        ("given", {}, 'data.partition: "given" needs a client for every sample'),
        ("domain", {}, 'data.partition: "domain" needs a domain'),
        ("iid", {"clients": 0}, "data.clients: found 0; allowed: 1 or more"),
        ("iid", {"clients": 41}, "data.clients: found 41, but test data has only 40 samples"),
        ("iid", {"alpha": 0.0}, "data.alpha: found 0.0"),
        ("iid", {"alpha": float("nan")}, "data.alpha: found nan"),
        ("iid", {"alpha": float("inf")}, "data.alpha: found inf"),
        ("iid", {"seed": -1}, "data.seed: found -1"),
        ("dirichlet", {"min_samples": 11}, "data.min_samples: found 11, but 40 samples over 4"),
        ("dirichlet", {"min_samples": 5, "clients": 8, "alpha": 0.01}, "in 1,000 draws"),
        ("classes", {"classes_per_client": 0}, "data.classes_per_client: found 0; allowed: 1 to 4"),
        ("classes", {"classes_per_client": 5}, "data.classes_per_client: found 5"),
        ("classes", {"classes_per_client": 1, "clients": 3}, "cannot hold all 4 classes"),
        ("classes", {"classes_per_client": 4, "clients": 11}, "fewer than the 11 clients"),
    ],
)
def test_impossible_partitions_are_one_line(kind: str, options: dict[str, object], words: str):
    with pytest.raises(UserError) as caught:
        cut(kind, labelled(np.repeat(np.arange(4), 10)), **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_impossible_domains_are_one_line():
    data = labelled(np.tile([0, 1], 20), domain=np.repeat(["big", "small"], [35, 5]))
    with pytest.raises(UserError, match=r"data\.clients: found 1, fewer than the 2 domains"):
        cut("domain", data, clients=1)
    with pytest.raises(UserError, match="domain 'small' has 5 samples for 2 clients of at least 3"):
        cut("domain", data, clients=4, min_samples=3)
