"""The federation: splits, views, batches, fingerprints, and cheapness with many clients."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pgfed.data import datasets
from pgfed.data.dataset import Dataset
from pgfed.data.datasets import load
from pgfed.data.federation import Federation, Shard, build
from pgfed.errors import UserError


def numbered(n: int = 60, clients: int = 5) -> Federation:
    """Every sample carries its own number, so that it can be followed."""
    x = np.arange(n, dtype=np.float32)[:, None]
    return Federation.from_arrays(x, np.arange(n) % 3, np.arange(n) % clients)


def ids(shard: Shard) -> list[int]:
    return [int(value) for value in shard.x[:, 0]]


def test_every_sample_is_in_exactly_one_part_of_its_client():
    federation = numbered()
    assert len(federation) == 5
    for client in range(5):
        parts = [federation.train(client), federation.validation(client), federation.test(client)]
        got = sorted(number for part in parts for number in ids(part))
        assert got == list(range(client, 60, 5))
        for part in parts:
            assert part.y.tolist() == [number % 3 for number in ids(part)]


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    test_share=st.sampled_from([0.0, 0.1, 0.15, 0.25, 0.3, 0.7, 0.99]),
    validation_share=st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.99]),
)
def test_sizes_of_the_parts(sizes, test_share, validation_share):
    client = np.repeat(np.arange(len(sizes)), sizes)
    y = np.arange(len(client)) % 2
    federation = Federation.from_arrays(
        np.zeros((len(client), 1)),
        y,
        client,
        class_names=["a", "b"],
        test_share=test_share,
        validation_share=validation_share,
    )
    hundredths = round(100 * (1 - test_share))
    for i, n in enumerate(sizes):
        kept = max(1, n * hundredths // 100)  # exact, in integers
        held_back = min(kept * round(100 * validation_share) // 100, kept - 1)
        assert federation.n_train[i] == kept - held_back >= 1
        assert federation.n_validation[i] == held_back
        assert federation.n_test[i] == n - kept
        assert len(federation.test(i)) == n - kept


def test_the_split_is_random_but_keyed_by_seed_and_client():
    a, again = numbered(), numbered()
    assert ids(a.train(0)) == ids(again.train(0))
    assert ids(a.train(0)) != sorted(ids(a.train(0)))
    x, y, client = np.arange(60.0)[:, None], np.arange(60) % 3, np.arange(60) % 5
    other = Federation.from_arrays(x, y, client, seed=2)
    assert set(ids(a.test(0))) != set(ids(other.test(0)))
    # Clients 1 to 4 lose samples; client 0's split stands.
    kept = (client == 0) | (np.arange(60) < 30)
    fewer = Federation.from_arrays(x[kept], y[kept], client[kept])
    assert ids(fewer.train(0)) == ids(a.train(0))
    assert ids(fewer.test(0)) == ids(a.test(0))
    # Clients of equal size are split differently.
    ranks = [tuple(number // 5 for number in ids(a.test(client))) for client in range(5)]
    assert len(set(ranks)) > 1


def test_the_split_is_uniform():
    n, clients = 8, 5_000
    client = np.repeat(np.arange(clients), n)
    position = np.tile(np.arange(n), clients)
    federation = Federation.from_arrays(position.astype(np.float32)[:, None], position % 2, client)
    in_test = np.zeros(n)
    for i in range(clients):
        in_test[ids(federation.test(i))] += 1
    # 2 of 8 are held out: 1,250 expected per position, with a deviation of 31.
    assert np.abs(in_test - 1_250).max() < 150


def test_a_split_in_the_data_overrides_the_share():
    split = np.array(["train", "test", "train", "train", "test", "train"])
    federation = Federation.from_arrays(
        np.arange(6.0)[:, None],
        np.array([0, 1, 0, 1, 0, 1]),
        np.array([0, 0, 0, 1, 1, 1]),
        split=split,
        test_share=0.9,
        validation_share=0.5,
    )
    assert [ids(federation.test(i)) for i in (0, 1)] == [[1], [4]]
    assert federation.n_train.tolist() == federation.n_validation.tolist() == [1, 1]


def test_a_split_in_the_data_holds_for_drawn_partitions_too():
    split = np.arange(200) % 4 == 0
    federation = Federation.from_arrays(
        np.arange(200.0)[:, None], np.arange(200) % 2, split=split, clients=4, min_samples=20
    )
    held_out = sorted(number for i in range(4) for number in ids(federation.test(i)))
    assert held_out == list(range(0, 200, 4))


def test_a_client_with_only_test_samples_is_named():
    with pytest.raises(UserError, match="client 77 has only test samples"):
        Federation.from_arrays(
            np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.array([3, 3, 77, 77]), split=[0, 1, 1, 1]
        )


def test_a_client_of_three_and_one_of_one():
    federation = Federation.from_arrays(
        np.zeros((4, 2)), np.array([8, 9, 8, 9]), np.array([1, 1, 1, 0])
    )
    assert federation.n_train.tolist() == [1, 2]
    assert federation.n_test.tolist() == [0, 1]
    assert len(federation.test(0)) == 0
    x, y = federation.test(0).batch(slice(None))
    assert (x.shape, y.shape) == ((0, 2), (0,))


@pytest.mark.parametrize("key", ["test_share", "validation_share"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_impossible_shares(key: str, value: float):
    with pytest.raises(UserError, match=rf"data\.{key}: found {value}"):
        Federation.from_arrays(
            np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.zeros(4, int), **{key: value}
        )


def test_given_keeps_the_names_of_its_clients():
    federation = Federation.from_arrays(
        np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.array([30, 4, 30, 4])
    )
    assert federation.client_labels is not None
    assert federation.client_labels.tolist() == ["4", "30"]
    assert [row["label"] for row in federation.table()] == ["4", "30"]
    assert numbered().to("cpu").client_labels is not None


def test_domains_of_clients():
    federation = Federation.from_arrays(
        np.zeros((6, 1)),
        np.array([0, 1, 0, 1, 0, 1]),
        np.array([0, 0, 1, 1, 2, 2]),
        np.array(["sea", "sea", "sea", "mountain", "mountain", "mountain"]),
    )
    assert federation.domains is not None
    assert federation.domains.tolist() == ["sea", "mixed", "mountain"]
    assert [row["domain"] for row in federation.table()] == ["sea", "mixed", "mountain"]
    assert numbered().domains is None


def images(dtype: type = np.uint8) -> tuple[np.ndarray, Federation]:
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 4)).astype(dtype)
    x[:, 0, 0, 0] = np.arange(40)  # its own number
    return x, Federation.from_arrays(x, np.arange(40) % 2, np.arange(40) % 2)


def test_images_come_scaled_as_channels_last_views():
    x, federation = images()
    assert federation.x.dtype == torch.uint8
    assert federation.x.shape == (40, 5, 4, 3)
    assert federation.x.is_contiguous()
    assert federation.input_shape == (3, 5, 4)
    shard = federation.train(1)
    index = torch.tensor([3, 0, 3])
    batch, labels = shard.batch(index)
    assert batch.shape == (3, 3, 5, 4)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous(memory_format=torch.channels_last)
    numbers = shard.x[index, 0, 0, 0].numpy()
    np.testing.assert_allclose(batch.numpy(), x[numbers] / 127.5 - 1, atol=1e-6)
    assert labels.tolist() == [1, 1, 1]
    assert federation.x.dtype == torch.uint8


def test_scaling_reaches_both_ends():
    federation = Federation.from_arrays(
        np.array([[0], [255]], dtype=np.uint8), np.array([0, 1]), np.array([0, 0]), test_share=0
    )
    batch, _ = federation.train(0).batch(slice(None))
    assert sorted(batch[:, 0].tolist()) == [-1.0, 1.0]


def test_float_images_are_used_as_they_are():
    x, federation = images(np.float32)
    batch, _ = federation.train(0).batch(slice(0, 2))
    numbers = federation.train(0).x[:2, 0, 0, 0].long().numpy()
    np.testing.assert_array_equal(batch.numpy(), x[numbers])
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_slice_and_index_give_the_same_batch():
    _, federation = images()
    shard = federation.train(0)
    a, b = shard.batch(slice(2, 6)), shard.batch(torch.arange(2, 6))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    assert len(shard.batch(slice(None))[1]) == len(shard)


def test_shards_are_views():
    _, federation = images()
    shard = federation.train(1)
    pointer = federation.x[int(federation.bounds[1, 0])].data_ptr()
    assert shard.x.data_ptr() == pointer
    part = shard.rows(2, 5)
    assert len(part) == 3
    assert part.x.data_ptr() == shard.x[2].data_ptr()
    assert torch.equal(part.y, shard.y[2:5])


def test_class_counts_include_absent_classes():
    shard = Shard(torch.zeros(4, 1), torch.tensor([0, 2, 2, 0]))
    assert shard.class_counts(4).tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize("client", [-1, 5])
def test_there_is_no_other_client(client: int):
    with pytest.raises(IndexError, match="of 5"):
        numbered().train(client)


def test_table_counts_classes():
    federation = Federation.from_arrays(
        np.zeros((6, 1)),
        np.array([10, 20, 30, 10, 10, 10]),
        np.array([0, 0, 0, 0, 1, 1]),
        validation_share=0.4,
    )
    assert federation.table() == [
        {
            "client": 0,
            "domain": None,
            "n_train": 2,
            "n_validation": 1,
            "n_test": 1,
            "classes": 3,
            "counts": [2, 1, 1],
            "label": "0",
        },
        {
            "client": 1,
            "domain": None,
            "n_train": 1,
            "n_validation": 0,
            "n_test": 1,
            "classes": 1,
            "counts": [2, 0, 0],
            "label": "1",
        },
    ]
    drawn = Federation.from_arrays(
        np.zeros((90, 1)), np.arange(90) % 3, partition="iid", clients=2, min_samples=1
    )
    assert "label" not in drawn.table()[0]
    assert np.sum([row["counts"] for row in drawn.table()]) == 90


def test_fingerprint_follows_the_content():
    x, federation = images()
    y, client = np.arange(40) % 2, np.arange(40) % 2
    assert federation.fingerprint == Federation.from_arrays(x, y, client).fingerprint
    assert len(federation.fingerprint) == 64
    assert federation.to("cpu").fingerprint == federation.fingerprint
    changed = x.copy()
    changed[7, 1, 2, 3] ^= 1
    others = [
        Federation.from_arrays(changed, y, client),
        Federation.from_arrays(x, 1 - y, client),
        Federation.from_arrays(x, y, client, test_share=0.5),
        Federation.from_arrays(x, y, client, seed=9),
        Federation.from_arrays(x.transpose(0, 1, 3, 2), y, client),
    ]
    assert len({federation.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_the_source_arrays_are_left_alone():
    x = np.arange(20, dtype=np.uint8).reshape(10, 2)
    x.flags.writeable = False
    before = x.copy()
    federation = Federation.from_arrays(x, np.arange(10) % 2, np.zeros(10, int))
    federation.x.zero_()
    np.testing.assert_array_equal(x, before)


def test_shared_memory_keeps_the_content():
    federation = numbered()
    before = federation.fingerprint
    assert federation.share_memory_() is federation
    assert federation.x.is_shared()
    assert federation.y.is_shared()
    again = Federation.from_arrays(np.arange(60.0)[:, None], np.arange(60) % 3, np.arange(60) % 5)
    assert again.fingerprint == before


def test_a_federation_can_be_sent_to_a_worker():
    federation = numbered()
    here, there = multiprocessing.Pipe()
    with here, there:
        here.send(federation)
        copy = there.recv()
    assert copy.fingerprint == federation.fingerprint
    assert ids(copy.train(2)) == ids(federation.train(2))


def test_a_hundred_thousand_clients_are_cheap():
    n = 400_000
    data = Dataset("many", np.zeros((n, 1), np.float32), np.arange(n) % 10, tuple("0123456789"))
    started = time.process_time()
    federation = build(data, partition="iid", clients=100_000, min_samples=1)
    assert len(federation) == 100_000
    assert federation.n_train.min() == 3
    assert federation.bounds.nbytes == 3_200_000
    assert len(federation.train(99_999)) == 3
    assert time.process_time() - started < 10


@pytest.mark.skipif("PGFED_DATA" not in os.environ, reason="needs the real files: PGFED_DATA")
def test_real_cifar10_as_in_the_paper():
    root = Path(os.environ["PGFED_DATA"])
    if not datasets.is_present("cifar10", root):
        pytest.skip("CIFAR-10 is not under PGFED_DATA")
    federation = build(load("cifar10", root), clients=25)
    assert (federation.n_train.min(), federation.n_train.max()) == (49, 2_985)
    assert federation.input_shape == (3, 32, 32)
    assert federation.x.shape == (60_000, 32, 32, 3)
    assert federation.counts().sum(axis=0).tolist() == [6_000] * 10


def test_an_example_is_two_prepared_training_samples():
    federation = numbered()
    assert torch.equal(federation.example(), federation.train(0).batch(slice(0, 2))[0])
    single = Federation.from_arrays(
        np.full((3, 1, 4, 4), 255, np.uint8), [0, 1, 0], [0, 0, 1], split=[0, 1, 0]
    )
    assert torch.equal(single.example(), torch.ones(2, 1, 4, 4))


def test_without_data_an_example_is_zeros_of_the_agreed_shape():
    federation = numbered()
    for kind, found in ((torch.uint8, torch.float32), (torch.int64, torch.int64)):
        bare = replace(federation, x=torch.empty(0, dtype=kind), input_shape=(3, 2))
        assert torch.equal(bare.example(), torch.zeros(2, 3, 2, dtype=found))
