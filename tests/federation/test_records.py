"""Messages are plain arrays and numbers; anything else is refused, pickles above all."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import small
from pgfed.federation.flower.records import RAW, BadRecord, field, pack, size, unpack

finite_or_not = st.floats(width=32, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(finite_or_not, max_size=20),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    n=st.integers(-(2**31), 2**31),
    r=st.floats(allow_nan=False),
)
def test_what_is_unpacked_is_what_was_packed(values, ids, n, r):
    part = {
        "w": torch.tensor(values, dtype=torch.float32),
        "ids": torch.tensor(ids, dtype=torch.int64),
        "n": n,
        "r": r,
    }
    head, parts = unpack(pack({"stage": "train", "round": 3, "sign": b"\x00\xff"}, update=part))
    assert head == {"stage": "train", "round": 3, "sign": b"\x00\xff"}
    got = parts["update"]
    assert [type(value) for value in got.values()] == [torch.Tensor, torch.Tensor, int, float]
    assert (got["w"].dtype, got["ids"].dtype) == (torch.float32, torch.int64)
    assert small.same(got, part)


def test_an_empty_part_arrives_empty():
    assert unpack(pack({}, message={}))[1] == {"message": {}}


def test_views_and_matrices_travel_as_they_are_seen():
    whole = torch.arange(12, dtype=torch.float32).view(3, 4)
    _, parts = unpack(pack({}, m={"t": whole.T, "row": whole[1]}))
    assert torch.equal(parts["m"]["t"], whole.T)
    assert torch.equal(parts["m"]["row"], whole[1])


def test_size_counts_the_bytes_of_arrays():
    assert (
        size(pack({"a": 1}, m={"w": torch.zeros(10), "ids": torch.zeros(2).long(), "n": 5})) == 56
    )


def content(array: Array) -> RecordDict:
    return RecordDict({"m.arrays": ArrayRecord({"w": array})})


def test_a_pickle_is_never_opened():
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    stored = io.BytesIO()
    np.save(stored, np.array([Trap()], dtype=object), allow_pickle=True)
    bombs = (
        Array("object", (1,), "numpy.ndarray", stored.getvalue()),
        Array("float32", (1,), "numpy.ndarray", stored.getvalue()),
        Array("object", (1,), RAW, pickle.dumps(Trap())),
    )
    for bomb in bombs:
        with pytest.raises(BadRecord):
            unpack(content(bomb))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (Array("float32", (3,), RAW, b"\0" * 8), "8 bytes do not make"),
        (Array("float32", (-1,), RAW, b""), "shape"),
        (Array("float32", (1,) * 5, RAW, b"\0" * 4), "shape"),
        (Array("float16", (2,), RAW, b"\0" * 4), "type 'float16'"),
        (Array("float32", (2,), "numpy.ndarray", b"\0" * 8), "serialised as"),
    ],
)
def test_arrays_that_are_not_what_they_say(array, said):
    with pytest.raises(BadRecord, match=said):
        unpack(content(array))


@pytest.mark.parametrize(
    "record",
    [
        RecordDict({"m.numbers": ConfigRecord({"n": True})}),
        RecordDict({"m.numbers": ConfigRecord({"n": "7"})}),
        RecordDict({"m.numbers": ConfigRecord({"n": [1, 2]})}),
        RecordDict({"m.numbers": ConfigRecord({"n": b"7"})}),
        RecordDict({"something": ConfigRecord({})}),
        RecordDict({"m.numbers": MetricRecord({"n": 1})}),
    ],
)
def test_records_that_we_do_not_send(record):
    with pytest.raises(BadRecord):
        unpack(record)


def test_fields_have_exactly_their_type():
    assert field({"round": 3}, "round", int) == 3
    for head in ({}, {"round": True}, {"round": 3.0}, {"round": "3"}):
        with pytest.raises(BadRecord, match="round"):
            field(head, "round", int)


def test_types_that_no_method_sends_are_refused_at_the_sender():
    with pytest.raises(TypeError, match="float16"):
        pack({}, m={"w": torch.zeros(2, dtype=torch.float16)})
