"""One unit, present or not, moves a sum by no more than its bound: whatever it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.methods.randomness import Rng
from pgfed.model.private.gradients import Piece, pieces
from pgfed.model.private.units import PrivateShard, Units
from pgfed.model.private.view import clipped
from pgfed.model.task import Task
from privacy.material import hidden, linear, mlp, noisy_gradient, policy, private, samples

SIZE, CLIP, SCALE = 30, 0.7, 1.5
WILD = st.one_of(
    st.floats(-3, 3, width=32),
    st.sampled_from([0.0, 1e6, -1e12, 1e20, -1e20, 1e38, float("inf"), float("nan")]),
)
ROWS = st.lists(st.lists(WILD, min_size=5, max_size=5), min_size=1, max_size=5)


def with_unit(rows: list[list[float]]) -> tuple[Shard, Shard, Any, Any]:
    """Twelve units of two rows and less, without and with one more; and whose row is whose."""
    base = samples(20)
    extra = torch.tensor(rows, dtype=torch.float32)
    x, y = torch.cat([base.x, extra]), torch.cat([base.y, torch.arange(len(rows)) % 3])
    group = np.array([*np.arange(20) // 2, *[99] * len(rows)])
    return base, Shard(x, y), group[:20], group


def gradient_sum(shard: Shard, group: Any, part: str) -> Tensor:
    rules = policy(SIZE, clip=CLIP)
    return noisy_gradient(mlp(), shard, rules, part=part, group=group).double() * SIZE


@pytest.mark.parametrize("part", ["all", "base", "head"])
@given(rows=ROWS)
@settings(max_examples=25)
def test_one_unit_moves_the_sum_of_gradients_by_at_most_the_clip(
    part: str, rows: list[list[float]]
) -> None:
    without, present, fewer, more = with_unit(rows)
    for group in (None, more):
        before = gradient_sum(without, None if group is None else fewer, part)
        units = rows if group is None else [rows]
        for k, _ in enumerate(units):
            upto = len(without) + k + 1 if group is None else len(present)
            shard = present.rows(0, upto)
            after = gradient_sum(shard, None if group is None else group[:upto], part)
            assert torch.isfinite(after).all()
            assert float((after - before).norm()) <= CLIP
            before = after


@given(rows=ROWS)
@settings(max_examples=25)
def test_one_unit_moves_a_pass_by_at_most_one(rows: list[list[float]]) -> None:
    without, present, fewer, more = with_unit(rows)
    task, rules = mlp(), policy(SIZE, clip=CLIP, loss_scale=SCALE)
    sums = []
    for shard, group in ((without, fewer), (present, more)):
        view, data = private(task, rules), hidden(shard, rules, group)
        risk, gradient = view.mean_gradient(task.initial(), data, Rng(0, 0, 1), 4)
        sums.append(torch.cat([gradient.double() / CLIP, torch.tensor([risk / SCALE])]) * SIZE)
    assert torch.isfinite(sums[1]).all()
    assert float((sums[1] - sums[0]).norm()) <= 1


@given(rows=ROWS)
@settings(max_examples=25)
def test_one_unit_moves_compared_losses_and_counts_by_at_most_one(
    rows: list[list[float]],
) -> None:
    without, present, fewer, more = with_unit(rows)
    task, rules = mlp(), policy(SIZE, loss_scale=SCALE)
    models = [task.initial() * k for k in (1.0, -30.0, 200.0)]
    sums = []
    for shard, group in ((without, fewer), (present, more)):
        view, data = private(task, rules), hidden(shard, rules, group)
        compared = view.decreases(task.initial() * 9, models, data)
        sums.append((torch.tensor(compared) * SIZE / SCALE, view.counts(data.units, 3)))
    assert float((sums[1][0] - sums[0][0]).norm()) <= 1 + 1e-9
    assert float((sums[1][1] - sums[0][1]).norm()) <= 1


def test_the_bound_is_reached() -> None:
    """A test that never comes near its bound would see nothing."""
    far = Shard(torch.tensor([[0.0, 50.0, 0, 0, 0]]), torch.tensor([0]))
    task, rules = linear(5), policy(SIZE, clip=CLIP)
    moved = noisy_gradient(task, far, rules).norm() * SIZE
    assert CLIP * 0.999 < float(moved) <= CLIP


@pytest.mark.parametrize("patients", [True, False])
def test_the_bound_holds_in_long_sums(patients: bool) -> None:
    """In single precision the one unit takes the sum of 2,047 others over 1,024, where every one
    of 2,000 small units is rounded up instead of down: together they move it by 1.12."""
    small = 1.25 * 2.0**-14  # between one and two of the last places below 1,024
    others = [0.5] * 2047 + [small] * 2000
    sums = []
    for first in (0.0, 1.0):
        x = torch.tensor([first, *others])[:, None]
        shard = Shard(x, torch.zeros(len(x), dtype=torch.int64))
        group = np.arange(len(x)) if patients else None
        found = noisy_gradient(linear(1), shard, policy(4096, clip=1.0), group=group)
        sums.append(float(found.double()) * 4096)
    rounding = 2.0**-13  # of the whole to single precision, which noise hides
    assert 0.999 < abs(sums[1] - sums[0]) <= 1.0 + rounding


def clipping_the_batch(
    task: Task, theta: Tensor, units: Units, chosen: Tensor, **more: Any
) -> Iterator[Piece]:
    """A mutant: the mean over the draw is one unit, and its length is what is bounded."""
    whole, n = torch.zeros(task.d, dtype=torch.float64), 0
    for piece in pieces(task, theta, units, chosen, **more):
        piece.add(torch.ones(len(piece.norms)), whole)
        n += len(piece.norms)

    def add(weights: Tensor, out: Tensor) -> None:
        out.add_(whole, alpha=float(weights[0]))

    yield Piece((whole / n).norm().double()[None], torch.zeros(1).double(), add)


@pytest.mark.parametrize("mutant", [False, True])
def test_a_step_that_bounds_the_batch_is_found_out(
    mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant:
        monkeypatch.setattr("pgfed.model.private.view.pieces", clipping_the_batch)
    without, present, _, _ = with_unit([[30.0, -40.0, 0.0, 20.0, 0.0]])
    moved = gradient_sum(present, None, "all") - gradient_sum(without, None, "all")
    assert (float(moved.norm()) <= CLIP) is not mutant


def clip_the_mean(vectors: Tensor) -> Tensor:
    """A mutant: bounds the batch, and not the unit."""
    mean = vectors.mean(0, keepdim=True)
    return (mean * min(1.0, 1 / float(mean.norm()))).repeat(len(vectors), 1)


@pytest.mark.parametrize(("clip", "holds"), [(clipped, True), (clip_the_mean, False)])
def test_clipping_the_batch_is_found_out(clip: Callable[[Tensor], Tensor], holds: bool) -> None:
    rows = torch.tensor([[0.3, 0.1], [-0.3, 0.2], [40.0, 0.0]]).double()
    moved = (clip(rows).sum(0) - clip(rows[:2]).sum(0)).norm()
    assert (float(moved) <= 1) is holds


def test_units_lie_in_the_order_of_their_first_rows() -> None:
    shard = samples(6)
    units = Units.of(shard, np.array(["b", "a", "b", "c", "a", "b"]))
    assert [rows.tolist() for rows in units.groups or ()] == [[0, 2, 5], [1, 4], [3]]
    first, rest = PrivateShard(units, 10, "test").cut(lambda n: n - 1)
    assert (len(first), len(rest), len(first.units), len(rest.units)) == (9, 1, 2, 1)
