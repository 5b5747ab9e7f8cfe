"""A round: cohorts, lost replies, bytes, and who is scored when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from pgfed.engine.backends.base import Payload, Serial
from pgfed.engine.client import ClientError
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import draw_cohort, generator
from pgfed.methods.registry import METHODS, get
from pgfed.methods.steps import sgd
from pgfed.methods.values import Message, State
from pgfed.testing import (
    CLIENTS,
    COHORT,
    check_equal,
    make,
    outcome,
    small_model,
    started,
    trivial_federation,
)


class Spy(Serial):
    """Serial, and remembers which clients were asked to do what."""

    def __init__(self) -> None:
        super().__init__(trivial_federation(), small_model)
        self.asked: list[tuple[str, int, list[int]]] = []

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        self.asked.append((stage, round, list(clients)))
        return super().map(stage, round, clients, common, payload)

    def scored(self) -> list[list[int]]:
        return [clients for stage, _, clients in self.asked if stage == "score"]


def test_all_methods_see_the_same_cohorts() -> None:
    seen = set()
    for method in METHODS:
        with started(make(get(method), {})) as run:
            cohorts = tuple(tuple(run.step()["cohort"]) for _ in range(3))
        seen.add(cohorts)
    assert seen == {tuple(tuple(draw_cohort(3, t, CLIENTS, COHORT)) for t in (1, 2, 3))}


def test_cohorts_are_fair_and_sorted() -> None:
    counts = np.zeros(10)
    for t in range(2000):
        cohort = draw_cohort(0, t, 10, 3)
        assert cohort == sorted(set(cohort))
        assert len(cohort) == 3
        counts[cohort] += 1
    # each client is drawn 600 times on average, with a standard deviation of 20.5
    assert np.abs(counts - 600).max() < 5 * 20.5


def test_random_streams_are_independent_of_each_other() -> None:
    keys = [("a", 1, 2), ("a", 2, 1), ("b", 1, 2), ("a", 1, 2, 0)]
    draws = {tuple(generator(0, k[0], *k[1:]).integers(2**62, size=4)) for k in keys}  # type: ignore[misc, arg-type]
    assert len(draws) == len(keys)
    one = generator(5, "a", 1).integers(2**62)
    assert one == generator(5, "a", 1).integers(2**62)


def test_only_clients_whose_model_can_have_changed_are_scored() -> None:
    spy = Spy()
    with started(make(get("pgfed"), {}), spy) as run:
        cohorts = [run.step()["cohort"] for _ in range(3)]
    assert spy.scored() == [list(range(CLIENTS)), cohorts[1], cohorts[2]]


def test_everybody_is_scored_where_the_model_is_shared() -> None:
    spy = Spy()
    with started(make(get("fedavg"), {}), spy) as run:
        for _ in range(3):
            run.step()
    assert spy.scored() == [list(range(CLIENTS))] * 3


def test_scores_are_the_same_as_when_everybody_is_scored() -> None:
    with started(make(get("pgfed"), {})) as run:
        outcome(run)
        for i, model in run.personal_models():
            test = run.federation.test(i)
            if len(test):
                assert run.score[i] == run.task.score(model, test).score


def test_the_last_ten_rounds_are_always_scored() -> None:
    with started(make(get("fedavg"), {}), rounds=25, evaluate_every=7) as run:
        outcome(run)
        scored = [r["round"] for r in run.history if r["mean_score"] is not None]
    assert scored == [7, 14, *range(16, 26)]


def test_mean_accuracy_is_unweighted_and_leaves_out_clients_without_test_data() -> None:
    with started(make(get("local"), {})) as run:
        record = run.step()
    assert np.isnan(run.score).tolist() == [False, False, False, True, False, False]
    assert record["mean_score"] == pytest.approx(np.nanmean(run.score))


def test_a_lost_reply_changes_nothing_but_its_own_part() -> None:
    """Dropping client c's replies equals a run in which c's replies never arrive at all."""

    class Unreachable(Serial):
        def map(
            self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
        ) -> Iterator[tuple[int, list[State]]]:
            there = [i for i in clients if stage != "train" or i != 1]
            return super().map(stage, round, there, common, payload)

    results = []
    with started(make(get("pgfed-mo"), {}), lose=lambda t, i: i == 1) as run:
        results.append(outcome(run))
        assert not run.touched(1)
        lost = [d for r in run.history for d in r["dropped"]]
        assert lost
        assert all(d == {"client": 1, "reason": "no reply"} for d in lost)
    with started(make(get("pgfed-mo"), {}), Unreachable(trivial_federation(), small_model)) as run:
        results.append(outcome(run))
    for result in results:
        for key in [k for k in result if k.startswith("round")]:
            del result[key]["samples"]  # nobody counts what an unreachable client did
    check_equal(results[0], results[1], "lost and unreachable")


def test_the_best_round_keeps_each_clients_score() -> None:
    with started(make(get("fedavg"), {}), rounds=6) as run:
        means = []
        per_client = []
        while not run.finished:
            means.append(run.step()["mean_score"])
            per_client.append(run.score.copy())
    best = int(np.argmax(means))
    assert run.best_round == best + 1
    assert run.best_score == means[best]
    np.testing.assert_array_equal(run.best_score_per_client, per_client[best])


def test_fedbabus_best_is_its_final() -> None:
    with started(make(get("fedbabu"), {}), rounds=4) as run:
        outcome(run)
    assert run.best_round == 4
    assert run.best_score == run.history[-1]["mean_score"]


@dataclass(frozen=True, kw_only=True)
class OfVersion01(Algorithm):
    name = "of-version-0.1"
    leaves = {"w": "model", "n": "count"}

    def local_update(self, task, state, message, data, rng):
        w, v = sgd(task, message["w"], data, rng, self.train, velocity=state.get("v"))
        return {"v": v}, {"w": w, "n": len(data)}


def test_a_method_of_another_version_is_told_where_to_look() -> None:
    with (
        started(OfVersion01()) as run,
        pytest.raises(ClientError, match=r"velocity.*written for 0\.1\? docs/public-api\.md"),
    ):
        run.step()
