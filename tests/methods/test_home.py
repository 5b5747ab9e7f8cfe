"""What a method computes at home must stay there: the check that proves it, on right and wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import Tensor

from pgfed.methods import (
    Algorithm,
    ClientInfo,
    Message,
    Rng,
    Shard,
    State,
    Task,
    Update,
    sgd,
)
from pgfed.methods.ditto import Ditto
from pgfed.testing import CHECKS, check_home_stays


@dataclass(frozen=True, kw_only=True)
class LeaksAtOnce(Algorithm):
    """Trains at home, and sends what came of it."""

    name = "leaks-at-once"
    leaves = {"w": "model", "n": "count"}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, kept = sgd(task.home, message["w"], data, rng, self.train, state)
        return self.keep(**kept), {"w": w, "n": len(data)}


@dataclass(frozen=True, kw_only=True)
class LeaksLater(Algorithm):
    """Keeps what came of home, and starts its next round's update from it."""

    name = "leaks-later"
    leaves = {"w": "model", "n": "count"}

    def init_client(self, w0: Tensor, client: ClientInfo) -> State:
        return {"personal": w0}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        own, _ = sgd(task.home, message["w"], data, rng, self.train)
        w, _ = sgd(task, 0.5 * (message["w"] + state["personal"]), data, rng, self.train)
        return {"personal": own}, {"w": w, "n": len(data)}


def test_a_method_that_keeps_home_at_home_passes() -> None:
    """And the check is about something: the personal model is learned there."""
    check_home_stays(Ditto)
    CHECKS["learns"](Ditto)


@pytest.mark.parametrize("wrong", [LeaksAtOnce, LeaksLater])
def test_a_leak_is_found_in_this_round_or_a_later_one(wrong: type[Algorithm]) -> None:
    with pytest.raises(AssertionError, match=r"with and without what task\.home gave: update"):
        check_home_stays(wrong)


@dataclass(frozen=True, kw_only=True)
class SendsLabels(Algorithm):
    name = "sends-labels"
    leaves = {"w": "model", "n": "count"}

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        return {}, {"w": message["w"], "n": len(data), "labels": data.y.float()}


def test_an_entry_that_is_not_declared_is_named() -> None:
    with pytest.raises(AssertionError, match=r"refused: keys: 1 not asked for, the first 'labels'"):
        CHECKS["updates_declared"](SendsLabels)
