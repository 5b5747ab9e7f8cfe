"""The robust means: against values worked out by hand, numpy, and what must hold for any input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgfed.engine.backends.base import Serial
from pgfed.engine.exchange.robust import AGGREGATIONS, Krum, NormClip, TrimmedMean, make_mean
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.randomness import ServerRng
from pgfed.methods.registry import METHODS, get
from pgfed.methods.values import Kind, Update
from pgfed.testing import TRAIN, check_equal, outcome, small_model, started, trivial_federation

LEAVES: dict[str, Kind] = {"w": "model", "gradient": "gradient", "r": "scalar", "n": "count"}
DEFENCES = [name for name in AGGREGATIONS if name != "mean"]


def updates_of(rows: Any, n: list[int] | None = None, key: str = "w") -> dict[int, Update]:
    """One update per row, under ids that are not 0, 1, 2..."""
    tensors = torch.as_tensor(rows, dtype=torch.float32)
    counts = n or [1] * len(tensors)
    return {3 * i + 1: {key: row, "n": counts[i]} for i, row in enumerate(tensors)}


def random_rows(n: int, d: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def close(found: Tensor, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), np.asarray(expected), rtol=1e-5, atol=1e-6)


# -- by hand ---------------------------------------------------------------------------------------


def test_median_by_hand() -> None:
    median = make_mean("median", LEAVES)
    odd = updates_of([[1, 10], [2, -5], [9, 0]])
    close(median(odd, "w"), [2, 0])
    even = updates_of([[1, 10], [2, -5], [9, 0], [4, 2]])
    close(median(even, "w"), [3, 1])
    # Clamped to the middle values: 2..4 and 0..2.
    ids, rows = median.each(even, "w")
    assert ids == [1, 4, 7, 10]
    close(rows, [[2, 2], [2, 0], [4, 0], [4, 2]])


def test_trimmed_mean_by_hand() -> None:
    rows = [[1, 1], [2, 2], [3, 30], [4, 4], [50, 5]]
    mean = make_mean("trimmed-mean", LEAVES, attackers=0.2)  # one of five at either end
    close(mean(updates_of(rows), "w"), [3, 11 / 3])
    ids, clamped = mean.each(updates_of(rows), "w")
    close(clamped, [[2, 2], [2, 2], [3, 5], [4, 4], [4, 5]])
    assert ids == [1, 4, 7, 10, 13]


def test_trimmed_mean_trims_a_share_of_few_replies() -> None:
    """Two tenths of four replies are not none: one is left out at either end."""
    mean = make_mean("trimmed-mean", LEAVES, attackers=0.2)
    close(mean(updates_of([[0], [1], [3], [1e6]]), "w"), [2])
    close(mean(updates_of([[-1e6], [1], [3]]), "w"), [1])


def test_norm_clip_by_hand() -> None:
    around = torch.tensor([10.0, 0.0])
    rows = [[13, 4], [10, 2], [10, -100]]  # steps of length 5, 2 and 100; the median is 5
    expected = (np.array([13, 4]) + np.array([10, 2]) + np.array([10, -5])) / 3
    close(NormClip()(updates_of(rows), "w", around=around), expected)
    gradients = updates_of([[3, 4], [0, 2], [0, -100]], key="gradient")
    ids, clipped = NormClip().each(gradients, "gradient")
    assert ids == [1, 4, 7]
    close(clipped, [[3, 4], [0, 2], [0, -5]])


def test_krum_by_hand() -> None:
    # Seven replies, f = 2: each one's three nearest others count. On the line, the sums of their
    # squares: 0 -> 1+4+9, 1 -> 1+1+4, 2 -> 1+1+4, 3 -> 1+4+9, 7 -> 9+16+25, 20, -30: far more.
    rows = [[0], [1], [-30], [2], [3], [20], [7]]
    krum = make_mean("krum", LEAVES, attackers=0.25)
    assert krum == Krum(0.25, ("w", "gradient", "r"))
    ids, kept = krum.each(updates_of(rows), "w")
    assert ids == [1, 4, 10, 13, 19]
    close(kept[:, 0], [0, 1, 2, 3, 7])
    close(krum(updates_of(rows), "w"), [(0 + 1 + 2 + 3 + 7) / 5])


def test_krum_judges_a_client_once_by_all_it_sent() -> None:
    """A true model does not carry a false gradient, or a false risk, into the round."""
    rows = random_rows(9)
    honest = {
        i: {"w": u["w"], "gradient": 1e-3 * u["w"][:30], "r": 0.1 * i, "n": 1}
        for i, u in enumerate(updates_of(rows).values())
    }
    krum = make_mean("krum", LEAVES, attackers=0.1)
    for i, bad in (
        (2, {"w": -20 * honest[2]["w"]}),
        (4, {"gradient": -20 * honest[4]["gradient"]}),
        (6, {"r": -1e20}),
    ):
        updates = {**honest, i: {**honest[i], **bad}}
        others = {j: u for j, u in updates.items() if j != i}
        for key in ("w", "gradient", "r"):
            ids, kept = krum.each(updates, key)
            assert ids == sorted(others)
            assert torch.equal(kept, Mean().each(others, key)[1])
        assert torch.equal(krum(updates, "w"), Mean()(others, "w"))


def test_each_protects_numbers_too() -> None:
    """PGFed's risks r: a false one would drive the others' alphas without bound."""
    updates: dict[int, Update] = {i: {"r": r} for i, r in enumerate([1.0, -2.0, 3.0, -1e30, 2.5])}
    expected = {
        "mean": [1, -2, 3, -1e30, 2.5],
        "median": [1, 1, 1, 1, 1],
        "trimmed-mean": [1, -2, 2.5, -2, 2.5],
        "norm-clip": [1, -2, 2.5, -2.5, 2.5],
    }
    for name, values in expected.items():
        ids, rows = make_mean(name, LEAVES).each(updates, "r")
        assert ids == [0, 1, 2, 3, 4]
        close(rows, values)
    ids, rows = make_mean("krum", LEAVES).each(updates, "r")
    assert ids == [0, 1, 2, 4]
    close(rows, [1, -2, 3, 2.5])


# -- against numpy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 25])
def test_against_numpy(n: int) -> None:
    rows = random_rows(n, d=70_000 if n == 5 else 300, seed=n)  # also more than one block
    updates = updates_of(rows)
    close(make_mean("median", LEAVES)(updates, "w"), np.median(rows, axis=0))

    trim = min(int(np.ceil(0.3 * n)), (n - 1) // 2)
    kept = np.sort(rows, axis=0)[trim : n - trim]
    trimmed = make_mean("trimmed-mean", LEAVES, attackers=0.3)
    close(trimmed(updates, "w"), kept.mean(0, dtype=np.float64))
    assert np.array_equal(trimmed.each(updates, "w")[1].numpy(), np.clip(rows, kept[0], kept[-1]))

    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    factors = np.minimum(1, np.sort(norms)[(n - 1) // 2] / norms)
    close(NormClip().each(updates, "w")[1], rows * factors[:, None])
    close(NormClip()(updates, "w"), (rows * factors[:, None]).mean(0))

    f = max(0, min(int(np.ceil(0.3 * n)), (n - 3) // 2))
    distances = np.square(rows[:, None].astype(np.float64) - rows).sum(2)
    scores = np.sort(distances, axis=1)[:, 1 : n - f - 1].sum(1)
    chosen = np.sort(np.argsort(scores)[: n - f]) if f else np.arange(n)
    ids, _ = make_mean("krum", LEAVES, attackers=0.3).each(updates, "w")
    assert ids == [3 * i + 1 for i in chosen]


# -- what must hold for any input ------------------------------------------------------------------

matrices = st.integers(1, 9).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), min_size=n, max_size=n
    )
)


@pytest.mark.parametrize("name", AGGREGATIONS)
@settings(deadline=None, max_examples=40)
@given(rows=matrices, data=st.data())
def test_order_of_arrival_does_not_matter(name: str, rows: Any, data: Any) -> None:
    updates = updates_of(rows)
    order = data.draw(st.permutations(list(updates)))
    shuffled = {i: updates[i] for i in order}
    mean, around = make_mean(name, LEAVES), torch.ones(3)
    assert torch.equal(mean(updates, "w", around=around), mean(shuffled, "w", around=around))
    (ids, kept), (others, same) = mean.each(updates, "w"), mean.each(shuffled, "w")
    assert ids == others
    assert torch.equal(kept, same)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "norm-clip"])
@settings(deadline=None, max_examples=40)
@given(rows=matrices, data=st.data())
def test_which_client_sent_it_does_not_matter(name: str, rows: Any, data: Any) -> None:
    """(Krum breaks ties by the client's id.) Norm-clip's sum is rounded in the order of ids."""
    mean = make_mean(name, LEAVES)
    shuffled = data.draw(st.permutations(rows))
    one, two = mean(updates_of(rows), "w"), mean(updates_of(shuffled), "w")
    torch.testing.assert_close(one, two, rtol=0, atol=1e-4 if name == "norm-clip" else 0)


@pytest.mark.parametrize("name", AGGREGATIONS)
@settings(deadline=None, max_examples=40)
@given(row=st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), n=st.integers(1, 9))
def test_equal_replies_are_their_own_mean(name: str, row: list[float], n: int) -> None:
    updates, mean = updates_of([row] * n), make_mean(name, LEAVES)
    plain = Mean()(updates, "w")
    found = mean(updates, "w", around=torch.zeros(3))
    if name in ("median", "trimmed-mean"):
        assert torch.equal(found, torch.tensor(row))
    else:
        close(found, plain)
    ids, kept = mean.each(updates, "w")
    assert torch.equal(kept, torch.tensor([row] * len(ids)))


@settings(deadline=None, max_examples=100)
@given(
    honest=st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=9),
    bad=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), max_size=8),
)
def test_a_minority_cannot_leave_the_range_of_the_honest(
    honest: list[float], bad: list[float]
) -> None:
    bad = bad[: (len(honest) - 1) // 2]
    updates = updates_of([[v] for v in honest + bad])
    share = min(0.49, max(0.01, len(bad) / len(updates)))
    low, high = min(honest), max(honest)
    for mean in (TrimmedMean(0.5), TrimmedMean(share)):
        assert low <= float(mean(updates, "w")) <= high
        _, rows = mean.each(updates, "w")
        assert low <= float(rows.min()) <= float(rows.max()) <= high
    step = float(NormClip()(updates, "w", around=torch.zeros(1)).abs())
    assert step <= max(map(abs, honest)) * (1 + 1e-6)


@pytest.mark.parametrize("name", DEFENCES)
@pytest.mark.parametrize("value", [3e38, -3e38])
def test_the_largest_numbers_do_no_harm(name: str, value: float) -> None:
    rows = random_rows(7)
    rows[5] = value
    mean, around = make_mean(name, LEAVES), torch.from_numpy(rows[0])
    others = np.delete(rows, 5, axis=0)
    found = mean(updates_of(rows), "w", around=around)
    assert float(found.abs().max()) <= np.abs(others).max() * 3
    _, kept = mean.each(updates_of(rows), "w")
    assert float(kept.abs().max()) <= np.linalg.norm(others, axis=1).max()


def test_nothing_clipped_is_the_plain_mean() -> None:
    """Steps of one length: norm-clip changes no bit."""
    updates = updates_of(np.eye(5, dtype=np.float32) * 3)
    assert torch.equal(NormClip()(updates, "w", around=torch.zeros(5)), Mean()(updates, "w"))


@pytest.mark.parametrize("name", DEFENCES)
def test_a_claim_of_many_samples_gains_nothing(name: str) -> None:
    mean, rows = make_mean(name, LEAVES), random_rows(6)
    claimed = updates_of(rows, n=[1, 1, 10**12, 1, 1, 1])
    assert torch.equal(mean(claimed, "w"), mean(updates_of(rows), "w"))


# -- few replies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_one_reply_is_the_mean(name: str) -> None:
    updates, mean = updates_of([[1, -2, 3]], n=[7]), make_mean(name, LEAVES)
    close(mean(updates, "w", around=torch.tensor([5.0, 5, 5])), [1, -2, 3])
    ids, rows = mean.each(updates, "w")
    assert ids == [1]
    close(rows, [[1, -2, 3]])


def test_two_replies_are_averaged_or_clipped() -> None:
    updates = updates_of([[1.0, 0], [0, 4]])
    for name in ("mean", "median", "trimmed-mean", "krum"):
        close(make_mean(name, LEAVES)(updates, "w"), [0.5, 2])
    close(NormClip()(updates, "w"), [0.5, 0.5])  # the shorter of the two is the bound


@pytest.mark.parametrize(("replies", "left_out"), [(3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (20, 4)])
def test_krum_needs_2f_plus_3_replies(replies: int, left_out: int) -> None:
    ids, _ = make_mean("krum", LEAVES, attackers=0.2).each(updates_of(random_rows(replies)), "w")
    assert len(ids) == replies - left_out


# -- in the engine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFENCES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_with_every_defence(method: str, name: str) -> None:
    """Also with lost replies: three, one and none."""
    cls = get(method)
    lost = {2: set(range(6)), 3: {0, 1, 2, 3}}
    with started(
        cls(train=TRAIN),
        mean=make_mean(name, cls.leaves),
        lose=lambda t, i: i in lost.get(t, ()),
    ) as run:
        found = outcome(run)
    for key, value in found.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert torch.isfinite(value).all(), key


class Spy(Mean):
    """The plain mean; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __call__(self, updates: Any, key: str, **options: Any) -> Tensor:
        self.asked.add(key)
        return super().__call__(updates, key, **options)

    def each(self, updates: Any, key: str) -> tuple[list[int], Tensor]:
        self.asked.add(key)
        return super().each(updates, key)


@pytest.mark.parametrize("method", METHODS)
def test_all_that_others_see_goes_through_the_mean(method: str) -> None:
    """Otherwise a defence would have a hole. A row concerns its sender alone."""
    cls, spy = get(method), Spy()
    with started(cls(train=TRAIN), mean=spy, rounds=7) as run:
        while not run.finished:  # IFCA gives up rounds in which all choose the same model
            run.step()
    apart = ("row", "count", "index")
    assert spy.asked == {k for k, kind in cls.leaves.items() if kind not in apart}


@pytest.mark.parametrize("method", ["fedper", "lg-fedavg", "fedfomo"])
def test_global_model_of_shares_is_defended(method: str) -> None:
    cls = get(method)
    (key,) = (k for k, kind in cls.shares.items() if kind != "count")

    class Evil(Serial):
        def map(self, stage: str, *args: Any) -> Any:
            for i, result in super().map(stage, *args):
                if stage == "share" and i == 1:
                    result = [{**result[0], key: result[0][key] + 1e6}]
                yield i, result

    for name, safe in (("mean", False), *((name, True) for name in DEFENCES)):
        backend = Evil(trivial_federation(), small_model)
        with started(cls(train=TRAIN), backend, mean=make_mean(name, cls.leaves)) as run:
            run.step()
            assert (float(run.global_model().abs().max()) < 10) is safe, name


def test_feddyn_defends_h() -> None:
    """h follows the same robust mean as the model: an attacker moves neither."""
    cls = get("feddyn")
    algorithm = cls(train=TRAIN, a=0.1)
    start = torch.zeros(4)
    server = {"w": start, "h": torch.zeros(4), "clients": 10}
    honest = {i: {"w": torch.full((4,), 1.0)} for i in range(4)}
    attacked = {**honest, 4: {"w": torch.full((4,), -1e6)}}
    for name in ("median", "trimmed-mean", "krum"):
        new = algorithm.aggregate(server, attacked, make_mean(name, cls.leaves), ServerRng(0, 1))
        close(new["h"], -0.1 * 5 / 10 * np.ones(4))
        close(new["w"], np.ones(4) + 0.5)
    new = algorithm.aggregate(server, attacked, make_mean("norm-clip", cls.leaves), ServerRng(0, 1))
    close(new["h"], -0.1 * 5 / 10 * 0.6 * np.ones(4))


def test_plain_mean_is_the_default() -> None:
    cls = get("pgfed")
    with started(cls(train=TRAIN)) as one:
        expected = outcome(one)
    with started(cls(train=TRAIN), mean=make_mean("mean", cls.leaves)) as two:
        check_equal(expected, outcome(two), "aggregation = mean")


@pytest.mark.parametrize(
    ("name", "attackers", "message"),
    [
        ("medain", 0.2, "engine.aggregation: unknown 'medain' (did you mean 'median'?)"),
        ("krum", 0.5, "engine.attackers: found 0.5; allowed"),
        ("krum", 0.0, "engine.attackers: found 0; allowed"),
        ("krum", float("nan"), "engine.attackers: found nan; allowed"),
    ],
)
def test_wrong_options_are_one_line(name: str, attackers: float, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_mean(name, LEAVES, attackers=attackers)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
