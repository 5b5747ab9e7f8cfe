"""A reply that Flower itself fails to read costs its site the round, and nobody else anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation import small
from federation.flower_private import ConfigRecordValue, record_value_dict_from_proto
from federation.local_grid import LocalGrid, grid_of
from federation.test_rounds import QUICK, checkpoint, checkpoints_stay, history, seated, sites_of
from pgfed.federation.flower.records import pull, unpack
from pgfed.federation.server.conduct import Options, conduct

__all__ = ["checkpoints_stay"]  # a fixture


class Unreadable(LocalGrid):
    """Fails as Flower does on what node 1001 answers at this stage (in round 2)."""

    stage = "train"

    broken = ""

    def push_message(self, message, most):
        name = super().push_message(message, most)
        head, _ = unpack(message.content)
        at = (message.metadata.dst_node_id, head["stage"], head.get("round", 2))
        if at == (1001, self.stage, 2):
            self.broken = name
        return name

    def pull_message(self, name):
        if name == self.broken:
            None.endswith("list")  # type: ignore[attr-defined]
        return super().pull_message(name)


def test_flower_does_fail_on_values_without_a_kind():
    with pytest.raises(AttributeError):
        record_value_dict_from_proto({"n": ConfigRecordValue()})


def test_it_is_named_and_the_others_arrive(tmp_path: Path):
    folder = small.make(tmp_path, cohort=1.0)
    grid = grid_of(sites_of(folder))
    grid.__class__ = Unreadable
    conduct(grid, folder, QUICK)
    run = small.serial(folder, "pgfed", lose=lambda t, i: (t, i) == (2, 1))
    assert small.same(checkpoint(folder, "pgfed"), run.server)
    (dropped,) = history(folder, "pgfed")[1]["dropped"]
    assert dropped == {"client": 1, "reason": "Flower cannot read its reply (AttributeError)"}


def test_a_greeting_gets_no_seat(tmp_path: Path):
    folder = small.make(tmp_path, rounds=1)
    grid = grid_of(sites_of(folder))
    grid.__class__ = Unreadable
    grid.stage = "hello"
    conduct(grid, folder, Options(round_timeout=0.3))
    assert any("not seated: Flower cannot read its reply" in line for line in seated(folder))


def test_a_broken_connection_is_not_the_sites_fault():
    class Broken(LocalGrid):
        def pull_message(self, name):
            raise ConnectionError("no route")

    with pytest.raises(ConnectionError):
        list(pull(Broken({}), ["message-0"]))
    assert not list(pull(LocalGrid({}), ["message-0"]))
