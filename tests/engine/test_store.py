"""Clients' states in memory up to a budget, the rest on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pgfed.engine.storage.durable import DamagedFile
from pgfed.engine.storage.store import ClientStore
from pgfed.methods.registry import METHODS, get
from pgfed.methods.values import State
from pgfed.testing import check_equal, make, outcome, started


def state(k: int) -> State:
    return {"w": torch.full((100,), float(k)), "n": k, "r": k / 7, "none": torch.empty(0)}


def test_states_beyond_the_budget_go_to_disk_and_come_back(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, memory=3 * 400)
    for k in range(10):
        store.put(k, 1, state(k))
    assert len(list(tmp_path.iterdir())) == 7
    for k in (0, 9, 4, 0):
        got = store.get(k)
        assert got is not None
        check_equal(state(k), got, "from the store")
    assert sum(e.state is not None for e in store.entries().values()) == 3


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, memory=2 * 400)
    for k in (0, 1):
        store.put(k, 1, state(k))
    store.get(0)
    store.put(2, 1, state(2))
    assert [p.name for p in tmp_path.iterdir()] == ["000001-000001.safetensors"]


def test_a_client_that_never_took_part_has_no_state() -> None:
    store = ClientStore()
    assert store.get(3) is None
    assert 3 not in store


def test_without_a_folder_nothing_is_left_behind() -> None:
    store = ClientStore(memory=400)
    for t in range(3):
        for k in range(4):
            store.put(k, t, state(k))
    folder = store.folder
    assert len(list(folder.iterdir())) <= 4
    store.close()
    assert not folder.exists()


def test_a_damaged_state_is_not_used(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, memory=400)
    store.put(0, 1, state(0))
    store.put(1, 1, state(1))
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"000000-000001\.safetensors: checksum"):
        store.get(0)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_a_tiny_budget_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    with started(make(get(method), {})) as run:
        expected = outcome(run)
    with started(make(get(method), {}), store=ClientStore(tmp_path, memory=1)) as run:
        check_equal(expected, outcome(run), "states on disk")
