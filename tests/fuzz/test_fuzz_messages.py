"""Messages: what a client, a worker or a site sends is used only if it is what was asked for."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st

from federation.flower_private import RecordDictProto, recorddict_from_proto, recorddict_to_proto
from fuzz.driving import attempt, drive, explore, one_line, share
from fuzz.mutation import mutate
from pgfed.engine.backends import wire
from pgfed.engine.backends.base import Payload, Serial
from pgfed.engine.exchange.replies import MAX_SAMPLES, Form, collect, refusal, score_refusal
from pgfed.engine.rounds import Run
from pgfed.federation.flower.records import RAW, UNREADABLE, BadRecord, field, pack, unpack
from pgfed.methods.registry import get
from pgfed.methods.values import Message, State
from pgfed.model.kinds import CLASSES
from pgfed.model.layout import Layout
from pgfed.testing import TRAIN, check_equal, outcome, small_model, trivial_federation

numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from([0, 1, 20, 21, -1, 2**63, 10**12, 10**5000, 1e39, 5e-324]),
)
tensors = st.builds(
    lambda size, value, kind: torch.full(size, value).to(kind),
    st.lists(st.integers(0, 12), max_size=3).map(tuple),
    st.sampled_from([0.0, 1.0, math.nan, math.inf, -math.inf, 3e38, 1e-45]),
    st.sampled_from([torch.float32, torch.float32, torch.float64, torch.int64, torch.bool]),
)
anything = st.one_of(
    numbers,
    tensors,
    st.none(),
    st.text(max_size=30),
    st.binary(max_size=9),
    st.sampled_from(["x" * 10_000, "a\nb\x1b[2J", [], {}, [[[]]], {"w": 1}]),
)
KEYS = ["w", "n", "gradient", "r", "alpha"]
keys = st.sampled_from(KEYS) | st.text(max_size=9) | st.sampled_from(["k" * 9_999, "\n", 7, None])


# -- replies ---------------------------------------------------------------------------------------


@share("messages", 0.35)
def test_replies(cases: int):
    """What is not refused is exactly what was declared, finite, and of the right shape."""
    leaves = get("pgfed").leaves
    form = Form(Layout(b=4, h=3, extra=2))
    message = {"w": torch.zeros(9), "ids": torch.arange(4)}
    good = {"w": torch.ones(9), "gradient": torch.ones(7), "r": 0.5, "n": 5, "alpha": torch.ones(4)}
    assert good.keys() == leaves.keys()
    updates = st.builds(
        lambda change, lost: {k: v for k, v in {**good, **change}.items() if k not in lost},
        st.dictionaries(keys, anything, max_size=2),
        st.sets(st.sampled_from(KEYS), max_size=1),
    )
    echoes = st.fixed_dictionaries(
        {}, optional={"round": numbers | st.just(3), "seconds": numbers | st.just(0.5)}
    )
    parts = st.builds(
        lambda u, e: [{}, u, e], updates, st.just({"round": 3, "seconds": 0.5}) | echoes
    )
    answers = st.lists(
        st.tuples(st.integers(0, 6), parts | st.lists(st.dictionaries(keys, anything), max_size=4)),
        max_size=4,
    )

    def one(case: tuple[list[Any], float | None]) -> None:
        replies, refused = collect(case[0], [1, 3, 5], 3)
        assert not replies.keys() & refused.keys()
        assert replies.keys() | refused.keys() == {client for client, _ in case[0]}
        for reason in refused.values():
            one_line(reason)
        for client, (_, update, echo) in replies.items():
            assert client in (1, 3, 5)
            assert echo["round"] == 3
            assert math.isfinite(echo["seconds"])
            reason = refusal(leaves, form, message, update, 20, case[1])
            if reason is not None:
                one_line(reason)
                continue
            assert update.keys() == leaves.keys()
            assert 1 <= update["n"] <= 20
            assert abs(update["r"]) < 1e39
            assert [tuple(update[k].shape) for k in ("w", "gradient", "alpha")] == [
                (9,),
                (7,),
                (4,),
            ]
            assert all(torch.isfinite(update[k]).all() for k in ("w", "gradient", "alpha"))

    explore(cases, st.tuples(answers, st.none() | st.sampled_from([1e-9, 4.0, 1e30])), one)


@share("messages", 0.15)
def test_scores(cases: int):
    """Whatever passes as a score can be made a mean of."""
    good = {
        f"{part}_{key}": v
        for part in ("test", "validation")
        for key, v in {"n": 9, "score": 0.5, "loss": 3.5}.items()
    }
    scores = st.dictionaries(st.sampled_from(list(good)), anything, max_size=3)

    def one(change: dict[str, Any]) -> None:
        found = {**good, **change}
        reason = score_refusal(found, CLASSES)
        if reason is not None:
            one_line(reason)
            return
        for part in ("test", "validation"):
            n = found[f"{part}_n"]
            assert 0 <= n <= MAX_SAMPLES
            value = found[f"{part}_score"]
            assert 0 <= value <= 1
            assert type(found[f"{part}_loss"] / max(1, n)) is float

    explore(cases, scores, one)


class Lying(Serial):
    """Client 2 sends what it is told to in round 2, and so do its scores."""

    def __init__(self) -> None:
        super().__init__(trivial_federation(), small_model)
        self.answers: list[list[State]] | None = None  # None: honest

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        for client, result in super().map(stage, round, clients, common, payload):
            if self.answers is not None and (client, round, stage) == (2, 2, "train"):
                for change in self.answers:
                    yield client, [result[0], {**result[1], **change}, result[2]]
            else:
                yield client, result


@share("messages", 0.05)
def test_a_round_with_a_bad_reply(cases: int):
    """A reply that is dropped leaves no trace; one that is used leaves a finite model."""

    def run(backend: Lying, **options: Any) -> Run:
        algorithm = get("pgfed")(train=TRAIN)
        return Run(algorithm, backend.federation, backend, seed=3, rounds=3, cohort=6, **options)

    lost = outcome(run(Lying(), lose=lambda t, i: (t, i) == (2, 2)))
    replies = st.lists(st.dictionaries(keys, anything, min_size=1, max_size=2), max_size=2)

    def one(answers: list[dict[Any, Any]]) -> None:
        backend = Lying()
        backend.answers = answers
        lying = run(backend)
        found = outcome(lying)
        assert torch.isfinite(found["global model"]).all()
        dropped = lying.history[1]["dropped"]
        if dropped:
            assert [d["client"] for d in dropped] == [2]
            one_line(dropped[0]["reason"])
            check_equal(
                {k: v for k, v in lost.items() if k != "round 2"},
                {k: v for k, v in found.items() if k != "round 2"},
                "a dropped reply",
            )

    explore(cases, replies, one)


# -- between our own processes ---------------------------------------------------------------------


def sent(head: dict[str, Any], parts: list[State]) -> list[bytes]:
    """The messages that `wire.send` makes."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        wire.send(theirs, head, parts)
        theirs.close()
        out = []
        while True:
            try:
                out.append(ours.recv_bytes())
            except EOFError:
                return out


@share("messages", 0.2)
def test_pipes(cases: int):
    """A damaged stream ends in the error that gives its sender up, as if it had died."""
    state = {
        "w": torch.arange(6.0),
        "ids": torch.arange(4),
        "none": torch.empty(0, 5),
        "n": 3,
        "r": 0.5,
    }
    good = sent({"stage": "train", "clients": [1]}, [state, {"x": torch.ones(2, 2)}])

    def one(rng: random.Random) -> str:
        stream = [mutate(part, rng) if rng.random() < 0.5 else part for part in good]
        raw = b"".join(struct.pack("!i", len(part)) + part for part in stream)
        if rng.random() < 0.3:
            raw = mutate(raw, rng)
        ours, theirs = multiprocessing.Pipe()
        with ours, theirs:
            os.set_blocking(theirs.fileno(), False)  # what does not fit is cut off
            with contextlib.suppress(BlockingIOError):
                os.write(theirs.fileno(), raw)
            theirs.close()
            found, _ = attempt(lambda: wire.receive(ours), OSError, EOFError)
        if found is None:
            return "refused"
        head, parts = found
        assert isinstance(head, dict)
        assert all(
            isinstance(value, torch.Tensor) or type(value) in (int, float)
            for part in parts
            for value in part.values()
        )
        return "accepted"

    drive("pipes", cases, one)


# -- between sites ---------------------------------------------------------------------------------


def record() -> RecordDict:
    head = {"stage": "train", "round": 3, "run": "x" * 16, "nonce": "0" * 32, "seconds": 0.5}
    update = {
        "w": torch.arange(9.0),
        "ids": torch.arange(3),
        "n": 5,
        "r": 0.25,
        "e": torch.empty(0, 7),
    }
    return pack({**head, "signature": b"\x00\x01"}, update=update, state={"m": torch.zeros(2, 3)})


def heard(content: RecordDict) -> dict[str, State]:
    head, parts = unpack(content)
    for key, kind in {"round": int, "stage": str, "signature": bytes, "seconds": float}.items():
        field(head, key, kind)
    for part in parts.values():
        assert all(isinstance(v, torch.Tensor) or type(v) in (int, float) for v in part.values())
    return parts


@share("messages", 0.15)
def test_damaged_records(cases: int):
    """Bytes as they come from the network; what is not protobuf never reaches us."""
    raw = recorddict_to_proto(record()).SerializeToString()

    def one(rng: random.Random) -> str | None:
        proto = RecordDictProto()
        try:
            proto.ParseFromString(mutate(raw, rng))
            content = recorddict_from_proto(proto)
        except UNREADABLE:  # by Flower: such a reply is dropped (`records.pull`)
            return None
        found, _ = attempt(lambda: heard(content), BadRecord)
        return "refused" if found is None else "accepted"

    drive("records", cases, one)


@share("messages", 0.1)
def test_lying_records(cases: int):
    """Records that Flower takes, with anything in them."""
    shapes = [(9,), (3, 3), (0, 2**70), (0, 2**40, 2**40), (2**62,), (-9,), (1,) * 9, (0,), ()]
    arrays = st.builds(
        lambda kind, shape, form, data: Array(kind, shape, form, data),
        st.sampled_from(["float32", "float64", "int64", "object", "x" * 9_999, "\n", "float16"]),
        st.sampled_from(shapes),
        st.sampled_from([RAW, RAW, RAW, "numpy.ndarray", ""]),
        st.sampled_from([np.ones(9, "<f4").tobytes(), b"", b"\x80\x04.", b"\xff" * 72]),
    )
    names = st.sampled_from(
        ["head", "update.arrays", "update.numbers", "x", ".arrays", "\n.numbers"]
    )
    values = (
        st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary() | st.booleans()
    )
    texts = st.text(max_size=9) | st.just("k" * 9_999)
    config = st.dictionaries(texts, values, max_size=3).map(ConfigRecord)
    metrics = st.dictionaries(texts, st.floats(), max_size=3).map(MetricRecord)
    records = st.dictionaries(texts, arrays, max_size=3).map(ArrayRecord)
    contents = st.dictionaries(names, config | records | metrics, max_size=4)

    def one(content: dict[str, Any]) -> None:
        attempt(lambda: heard(RecordDict({**record(), **content})), BadRecord)
        attempt(lambda: heard(RecordDict(content)), BadRecord)

    explore(cases, contents, one)
