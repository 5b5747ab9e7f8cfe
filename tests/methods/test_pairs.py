"""The sparse matrix A behaves as the dense one it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pgfed.methods import alphas as pairs

N = 6
M = 3
ids = st.sets(st.integers(0, N - 1), max_size=N).map(sorted)
# One round: who of the last round the rows are about, who answers, and where the values come from.
rounds = st.lists(st.tuples(ids, ids, st.integers(0, 2**32 - 1)), max_size=8)


def replay(history: list[tuple[list[int], list[int], int]]) -> tuple[Any, ...]:
    """The same updates on the server's sparse A, the clients' sparse rows, and dense arrays."""
    server = pairs.empty(N, M)
    rows = [pairs.empty_row(M) for _ in range(N)]
    dense = np.full((N, N), np.float32(1 / M))
    meetings = np.zeros((N, N), dtype=np.int64)
    for columns, answered, seed in history:
        draw = np.random.default_rng(seed)
        new: dict[int, Tensor] = {}
        for i in answered:
            fresh = draw.random(len(columns), dtype=np.float32)
            fresh[draw.random(len(columns)) < 0.3] = 0.0  # an alpha of 0 is not "never met"
            new[i] = torch.from_numpy(fresh)
            dense[i, columns] = fresh
            meetings[i, columns] += 1
            rows[i] |= pairs.with_row(rows[i], torch.tensor(columns, dtype=torch.int64), new[i])
        server |= pairs.with_rows(server, torch.tensor(columns, dtype=torch.int64), new)
    return server, rows, dense, meetings


@settings(deadline=None)
@given(rounds, st.lists(st.integers(0, N - 1), max_size=N), ids)
def test_any_block_equals_the_dense_matrix(
    history: list[tuple[list[int], list[int], int]], wanted: list[int], columns: list[int]
) -> None:
    server, rows, dense, _ = replay(history)
    at = torch.tensor(columns, dtype=torch.int64)
    assert np.array_equal(pairs.matrix(server, wanted, at).numpy(), dense[np.ix_(wanted, columns)])
    for i in range(N):
        assert np.array_equal(pairs.row(rows[i], at).numpy(), dense[i, columns])


@settings(deadline=None)
@given(rounds)
def test_memory_follows_the_pairs_that_met(
    history: list[tuple[list[int], list[int], int]],
) -> None:
    server, rows, dense, meetings = replay(history)
    i, j = np.nonzero(meetings)  # row by row: the order of the sorted keys
    assert server["alpha_pairs"].tolist() == (i * N + j).tolist()
    assert np.array_equal(server["alpha"].numpy(), dense[i, j])
    assert np.array_equal(server["meetings"].numpy(), meetings[i, j])
    for client, row in enumerate(rows):
        met = np.flatnonzero(meetings[client])
        assert row["alpha_ids"].tolist() == met.tolist()
        assert np.array_equal(row["alpha"].numpy(), dense[client, met])


@settings(deadline=None)
@given(rounds)
def test_export_is_the_dense_matrix(history: list[tuple[list[int], list[int], int]]) -> None:
    server, _, dense, meetings = replay(history)
    exported = pairs.export(server)
    assert np.array_equal(exported["alpha"], dense)
    assert np.array_equal(exported["meetings"], meetings)
    assert exported["start"] == 1 / M


def test_export_of_a_large_federation_is_csr(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _, dense, meetings = replay([([0, 2], [1, 4], 7), ([1, 2, 5], [0, 1], 8)])
    monkeypatch.setattr(pairs, "DENSE", N - 1)
    out = pairs.export(server)
    alpha, met = np.full((N, N), np.float32(out["start"])), np.zeros((N, N), dtype=np.int64)
    for i in range(N):
        part = slice(out["indptr"][i], out["indptr"][i + 1])
        alpha[i, out["indices"][part]] = out["data"][part]
        met[i, out["indices"][part]] = out["meetings"][part]
    assert out["shape"].tolist() == [N, N]
    assert np.array_equal(alpha, dense)
    assert np.array_equal(met, meetings)


def test_inputs_stay_as_they_were() -> None:
    server, rows, _, _ = replay([([0, 2], [1, 4], 7)])
    before = {k: v.clone() if isinstance(v, Tensor) else v for k, v in server.items()}
    row_before = {k: v.clone() if isinstance(v, Tensor) else v for k, v in rows[1].items()}
    columns = torch.tensor([1, 2])
    alpha = pairs.row(rows[1], columns)
    alpha.add_(1)
    pairs.with_row(rows[1], columns, alpha)
    pairs.with_rows(server, columns, {1: alpha})
    pairs.matrix(server, [1, 4], columns).zero_()
    for value, old in ((server, before), (rows[1], row_before)):
        assert value.keys() == old.keys()
        for key in old:
            assert np.array_equal(value[key], old[key])


def test_large_federation_costs_what_met() -> None:
    n = 100_000
    server = pairs.empty(n, 100)
    ends = torch.tensor([0, 50_000, n - 1])
    server |= pairs.with_rows(server, ends, {n - 1: torch.tensor([1.0, 2.0, 3.0]), 0: ends / n})
    assert len(server["alpha"]) == 6
    block = pairs.matrix(server, [n - 1, 0, 1], ends)
    expected = torch.stack([torch.tensor([1.0, 2.0, 3.0]), ends / n, torch.full((3,), 1 / 100)])
    assert torch.equal(block, expected)
