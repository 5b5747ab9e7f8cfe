"""[engine] compression: what is decoded is what was meant, on average and over the rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import small_runs
from cli.cli_tools import blobs
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.exchange.compression import BLOCK, UNSAID, Compression, Damaged
from pgfed.engine.exchange.replies import Form, payload_bytes
from pgfed.engine.rounds import Run
from pgfed.methods.randomness import Rng, generator
from pgfed.methods.registry import get
from pgfed.methods.values import State
from pgfed.model.layout import Layout
from pgfed.testing import (
    batch_norm_model,
    check_equal,
    make,
    outcome,
    small_model,
    started,
    trivial_federation,
)

INT8, TOP_K = Compression("int8"), Compression("top-k", 0.1)
BOTH = pytest.mark.parametrize("compression", [INT8, TOP_K], ids=["int8", "top-k"])
D = 300  # two blocks and a piece of a third
FORM = Form(Layout(b=200, h=100))


def vector(seed: int, size: int = D) -> Tensor:
    drawn = np.random.default_rng(seed).standard_normal(size) * 10.0 ** np.linspace(-6, 2, size)
    return torch.from_numpy(drawn.astype(np.float32))


def through(compression: Compression, values: Tensor, lot: int = 0, trained: int = D) -> Tensor:
    sent = compression.encoded("w", values, trained, generator(0, "test", lot))
    return compression.decoded("w", sent, trained, values.shape[-1])


# -- one vector --------------------------------------------------------------------------------


def test_int8_is_right_on_average() -> None:
    x = vector(1)
    n = 2000
    found = torch.stack([through(INT8, x, lot) for lot in range(n)]).double()
    step = torch.stack([part.abs().max() / 127 for part in x.split(BLOCK)])
    step = step.repeat_interleave(BLOCK)[:D].double()
    # Rounded by lot to one of two neighbours: a variance of at most a quarter of a step squared.
    error = (found.mean(0) - x.double()).abs() / (step / 2 / n**0.5)
    assert float(error.max()) < 5
    assert float(((found - x).abs() / step).max()) < 1.0001
    assert float(error.max()) > 0.1  # it is not simply exact


def test_a_round_to_the_nearest_would_fail_that() -> None:
    x = torch.full((D,), 0.3)
    x[::BLOCK] = 127.0  # steps of 1: to the nearest, all of 0.3 is lost
    found = torch.stack([through(INT8, x, lot) for lot in range(400)])
    assert abs(float(found[:, 1:BLOCK].mean()) - 0.3) < 0.02
    assert set(found[:, 1].tolist()) == {0.0, 1.0}


def test_top_k_keeps_the_largest() -> None:
    x = vector(2)
    found = through(TOP_K, x)
    kept = found != 0
    assert int(kept.sum()) == 30
    assert torch.equal(found[kept], x[kept])
    assert float(x[~kept].abs().max()) <= float(x[kept].abs().min())


def test_zeros_tiny_values_and_stacks_survive() -> None:
    assert torch.equal(through(INT8, torch.zeros(D)), torch.zeros(D))
    tiny = torch.full((D,), 1e-44)
    assert bool(torch.isfinite(through(INT8, tiny)).all())
    rows = torch.stack([vector(3), vector(4)])
    found = INT8.decoded("w", INT8.encoded("w", rows, D, generator(0, "t")), D, D)
    assert found.shape == rows.shape
    assert float((found - rows).abs().max()) < float(rows.abs().max()) / 100


def test_buffers_travel_as_they_are() -> None:
    """A variance that is rounded below zero would be a model of NaN."""
    x = vector(5)
    for compression in (INT8, TOP_K):
        found = through(compression, x, trained=D - 7)
        assert torch.equal(found[D - 7 :], x[D - 7 :])
        assert not torch.equal(found[: D - 7], x[: D - 7])


@BOTH
def test_what_has_diverged_is_refused_and_not_made_finite(compression: Compression) -> None:
    for bad in (float("nan"), float("inf"), float("-inf")):
        x = vector(6)
        x[-1] = bad
        assert not bool(torch.isfinite(through(compression, x)).all())


# -- error feedback ----------------------------------------------------------------------------


def exchanged(
    compression: Compression, steps: list[Tensor], *, feedback: bool = True
) -> tuple[Tensor, Tensor]:
    """(the sum of what the server heard, what was left unsaid) of a client's steps."""
    unsaid: State = {}
    total = torch.zeros(D)
    start = torch.zeros(D)
    for t, step in enumerate(steps):
        message, declared = {"w": start}, {"w": "model"}
        sent, left = compression.said(
            FORM, declared, message, {"w": start + step}, unsaid, Rng(0, 0, t)
        )
        total += compression.heard(FORM, declared, message, sent)["w"] - start
        unsaid = left if feedback else {}
    return total, unsaid.get(UNSAID + "w", torch.zeros(D))


@BOTH
def test_sums_over_the_rounds_stay_true(compression: Compression) -> None:
    steps = [vector(10 + t) / 100 for t in range(30)]
    total, unsaid = exchanged(compression, steps)
    wanted = torch.stack(steps).sum(0)
    assert torch.allclose(total + unsaid, wanted, atol=1e-4)
    lost, _ = exchanged(compression, steps, feedback=False)
    assert float((lost - wanted).norm()) > 2 * float((total - wanted).norm())


def descent(compression: Compression, *, feedback: bool) -> float:
    """How far from the minimum of |x - m|^2/2 the server ends that follows a client's steps."""
    m, x, unsaid = vector(7), torch.zeros(D), State()
    for t in range(400):
        moved = x + 0.05 * (m - x)
        message, declared = {"w": x}, {"w": "model"}
        sent, left = compression.said(FORM, declared, message, {"w": moved}, unsaid, Rng(0, 0, t))
        x = compression.heard(FORM, declared, message, sent)["w"]
        unsaid = left if feedback else {}
    return float((x - m).norm() / m.norm())


@BOTH
def test_a_quadratic_is_followed_to_its_minimum(compression: Compression) -> None:
    assert descent(compression, feedback=True) < 1e-3


def test_differences_from_a_twin_and_gradients_as_they_are() -> None:
    start, w, g = vector(8), vector(8) + 1e-3, vector(9)
    declared = {"w": "model", "gradient": "gradient", "r": "scalar", "n": "count"}
    update = {"w": w, "gradient": g, "r": 0.25, "n": 7}
    sent, _ = TOP_K.said(FORM, declared, {"w": start}, update, {}, Rng(0, 0, 0))
    assert set(sent) == {"w.index", "w.value", "gradient.index", "gradient.value", "r", "n"}
    assert float(sent["w.value"].abs().max()) < 0.0011
    assert float(sent["gradient.value"].abs().max()) == float(g.abs().max())
    # Without a twin a model is all there is: top-k would send a twentieth of it.
    sent, left = TOP_K.said(FORM, declared, {}, update, {}, Rng(0, 0, 0))
    assert torch.equal(sent["w"], w)
    assert set(left) == {UNSAID + "gradient"}


# -- runs --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("method", ["fedavg", "pgfed", "scaffold", "fedamp"])
def test_serial_is_process(method: str, compression: Compression) -> None:
    with started(make(get(method), {}), compression=compression) as run:
        expected = outcome(run)
    pool = Process(trivial_federation(), small_model, workers=2)
    with started(make(get(method), {}), pool, compression=compression) as run:
        check_equal(expected, outcome(run), "serial and process")


def test_the_server_has_what_the_clients_started_from() -> None:
    """With nobody there, a round changes the server's model by what was not said, and the next
    one makes up for it: nothing wanders off."""
    away: Any = lambda t, i: True  # noqa: E731
    with started(make(get("fedavg"), {}), compression=INT8, away=away, rounds=60) as run:
        start = run.server["w"].clone()
        heard = []
        while not run.finished:
            run.step()
            heard.append(run.server["w"])
        step = float(start.abs().max()) / 127
        assert not torch.equal(heard[0], start)
        assert max(float((w - start).abs().max()) for w in heard) <= 2.1 * step
        mean = torch.stack(heard).double().mean(0)
        assert float((mean - start).abs().max()) < step / 3


def test_what_is_derived_is_derived_from_what_was_said() -> None:
    """PGFed-CE's costs are taken at the model that the clients start from."""
    seen: dict[str, Any] = {}

    class Watching(Serial):
        def map(self, stage: str, round: int, clients: Any, common: Any, payload: Any) -> Any:
            if stage == "train":
                seen[round] = INT8.opened(common)
            return super().map(stage, round, clients, common, payload)

    backend = Watching(trivial_federation(), small_model)
    with started(make(get("pgfed-ce"), {}), backend, compression=INT8, rounds=2) as run:
        run.step()
        before = run.server
        run.step()
        w = seen[2]["w"]
        inner = before["gradients"] @ w
        assert torch.allclose(seen[2]["costs"], 0.1 * (before["r"] + inner), atol=1e-6)
        assert not torch.equal(w, before["w"])


def test_batch_norm_stays_sound() -> None:
    backend = Serial(trivial_federation(), batch_norm_model)
    with started(make(get("fedavg"), {}), backend, compression=INT8, rounds=12) as run:
        while not run.finished:
            assert run.step()["dropped"] == []
        assert float(np.nanmean(run.score)) > 0.8


class Damaging(Serial):
    """One client's replies arrive otherwise than they were sent."""

    def __init__(self, damage: Any) -> None:
        super().__init__(trivial_federation(), small_model)
        self._damage = damage

    def map(self, stage: str, round: int, clients: Any, common: Any, payload: Any) -> Any:
        for i, parts in super().map(stage, round, clients, common, payload):
            if stage == "train" and i == min(clients):
                parts[1] = self._damage(dict(parts[1]))
            yield i, parts


def without(key: str) -> Any:
    return lambda update: {k: v for k, v in update.items() if k != key}


def changed(key: str, change: Any) -> Any:
    return lambda update: {**update, key: change(update[key])}


def poked(place: int, value: float) -> Any:
    def poke(part: Tensor) -> Tensor:
        part = part.clone()
        part[place] = value
        return part

    return poke


DAMAGES = {
    "missing": (INT8, without("w.scale"), "keys: w.scale missing"),
    "short": (INT8, changed("w.int8", lambda v: v[:-1]), "w.int8: shape (450,), expected (451,)"),
    "scales": (INT8, changed("w.scale", lambda v: v[:-1]), "w.scale: shape (3,), expected (4,)"),
    "type": (INT8, changed("w.int8", lambda v: v.float()), "w.int8: not a tensor of int8"),
    "number": (INT8, changed("w.scale", lambda v: 3), "w.scale: not a tensor of float32"),
    "NaN": (INT8, changed("w.scale", poked(0, float("nan"))), "w: holds NaN or infinite values"),
    "raw": (INT8, lambda u: {**u, "w": torch.zeros(451)}, "w: comes twice"),
    "more": (INT8, lambda u: {**u, "x.int8": u["w.int8"]}, "keys: 1 not asked for"),
    "stack": (INT8, changed("w.int8", lambda v: v[None]), "w.scale: shape (4,), expected (1, 4)"),
    "place": (TOP_K, changed("w.index", poked(-1, 451)), "w.index: not places below 451"),
    "negative": (TOP_K, changed("w.index", poked(0, -1)), "w.index: not places below 451"),
    "twice": (TOP_K, changed("w.index", lambda v: v[:1].repeat(len(v))), "w.index: not places"),
    "few": (TOP_K, changed("w.value", lambda v: v[1:]), "w.value: shape (45,), expected (46,)"),
    "inf": (TOP_K, changed("w.value", poked(3, float("inf"))), "w: holds NaN or infinite"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_replies_are_dropped(name: str) -> None:
    compression, damage, reason = DAMAGES[name]
    with started(make(get("fedavg"), {}), Damaging(damage), compression=compression) as run:
        record = run.step()
        (dropped,) = record["dropped"]
        assert dropped["client"] == record["cohort"][0]
        assert dropped["reason"].startswith(reason)
        assert not run.touched(dropped["client"])
        assert bool(torch.isfinite(run.server["w"]).all())


def test_a_message_that_cannot_be_opened_says_why() -> None:
    sent = INT8.encoded("w", vector(1), D, generator(0, "t"))
    with pytest.raises(Damaged, match=r"w.scale missing"):
        INT8.opened({"w.int8": sent["w.int8"]})
    with pytest.raises(Damaged, match="comes twice"):
        INT8.opened({**sent, "w": vector(1)})
    with pytest.raises(Damaged, match="not a vector"):
        INT8.opened({**sent, "w.int8": 3})


# -- bytes -------------------------------------------------------------------------------------


def sizes(run: Run) -> tuple[dict[str, int], dict[str, int]]:
    record = [run.step() for _ in range(2)][-1]
    return record["bytes_by_key"]["down"], record["bytes_by_key"]["up"]


def test_bytes_are_those_that_travel() -> None:
    d, m = 451, 3
    packed = d + 4 * -(-d // BLOCK)
    with started(make(get("pgfed"), {}), compression=INT8) as run:
        down, up = sizes(run)
    assert down == {"w": m * packed, "mean_gradient": m * packed, "aux": m * packed, "risks": 36}
    assert up == {"w": m * packed, "gradient": m * packed, "r": 12, "alpha": 36}
    with started(make(get("pgfed"), {}), compression=TOP_K) as run:
        down, up = sizes(run)
    assert down["w"] == 4 * d * m
    assert up["w"] == up["gradient"] == 8 * 46 * m


def test_pgfed_with_int8_sends_less_than_fedavg_without() -> None:
    """Five vectors of a byte a value against two of four, with scales and rows."""
    with started(make(get("fedavg"), {}), rounds=5) as run:
        plain = [run.step() for _ in range(5)]
    with started(make(get("pgfed"), {}), rounds=5, compression=INT8) as run:
        small = [run.step() for _ in range(5)]
    sent = [sum(r["bytes_down"] + r["bytes_up"] for r in records) for records in (plain, small)]
    assert sent[1] <= 0.7 * sent[0]


def test_an_entrys_parts_are_counted_as_that_entry() -> None:
    sent = INT8.encoded("w", vector(1), D - 7, generator(0, "t"))
    assert payload_bytes({**sent, "r": 1.0, "n": 5}) == {"w": D - 7 + 4 * 3 + 4 * 7, "r": 4}


def test_an_experiment_has_it(tmp_path: Path) -> None:
    data = blobs(160)
    options: dict[str, Any] = {"clients": 6, "min_samples": 8, "rounds": 2, "epochs": 1}
    for kind in ("none", "int8"):
        small_runs.run(
            (data["x"], data["y"]),
            methods=["fedavg"],
            out=tmp_path / kind,
            backend="serial",
            compression=kind,
            **options,
        )
    found = [
        json.loads((tmp_path / kind / "fedavg/seed-0/history.jsonl").read_text().splitlines()[0])
        for kind in ("none", "int8")
    ]
    assert 3.7 < found[0]["bytes_down"] / found[1]["bytes_down"] < 4
    assert 3.7 < found[0]["bytes_up"] / found[1]["bytes_up"] < 4
