"""Blend and refresh: the engine's, for every method whose clients have something of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.test_frames import shifted, trained
from pgfed.engine import personal
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.methods.registry import get
from pgfed.methods.settings import PersonalConfig
from pgfed.testing import CHECKS, TRAIN, small_model

HALF = PersonalConfig(blend=0.5)
FRESH = PersonalConfig(refresh=True)


@pytest.mark.parametrize("method", ["fedavg-local", "pgfed", "pfedme", "ditto"])
def test_a_blend_lies_between_the_newest_global_model_and_the_own(method):
    federation = shifted()
    half, own = trained(method, federation, HALF), trained(method, federation)
    assert torch.equal(half.global_model(), own.global_model())
    for i in range(5):
        mean = (own.personal_model(i).double() + own.global_model().double()) / 2
        assert torch.allclose(half.personal_model(i).double(), mean, atol=1e-6)


def test_the_ends_of_a_blend():
    federation = shifted()
    none = trained("fedavg-local", federation, PersonalConfig(blend=0.0))
    for i in range(5):
        assert torch.equal(none.personal_model(i), none.server["w"])
    framed = trained("fedavg-local", federation, PersonalConfig("training", 0.0))
    alone = trained("fedavg", federation, PersonalConfig("training"))
    assert torch.equal(framed.personal_model(2), alone.personal_model(2))
    served = trained("fedavg-local", federation, PersonalConfig("serving", 0.0))
    plain = trained("fedavg", federation, PersonalConfig("serving"))
    assert torch.equal(served.personal_model(2), plain.personal_model(2))


def test_in_a_serving_frame_the_own_side_stays_as_it_is():
    federation = shifted()
    both = trained("fedavg-local", federation, PersonalConfig("serving", 0.5), cohort=5)
    own = trained("fedavg-local", federation, cohort=5)
    served = trained("fedavg", federation, PersonalConfig("serving"), cohort=5)
    mean = (own.personal_model(1).double() + served.personal_model(1).double()) / 2
    assert torch.allclose(both.personal_model(1).double(), mean, atol=1e-6)


def test_who_never_took_part_gets_the_global_model():
    run = trained("fedavg-local", shifted(), HALF, rounds=1, cohort=2)
    never = next(i for i in range(5) if not run.touched(i))
    assert torch.equal(run.personal_model(never), run.server["w"])


def test_a_blend_is_downloaded_to_be_scored_and_nothing_more_leaves():
    half, own = trained("fedavg-local", shifted(), HALF), trained("fedavg-local", shifted())
    for one, two in zip(half.history, own.history, strict=True):
        assert one["bytes_by_key"] == two["bytes_by_key"]
        assert one["bytes_eval"] == 5 * 4 * half.info.layout.n


@pytest.mark.parametrize("how", [HALF, FRESH, PersonalConfig("serving", 0.3, True)])
@pytest.mark.parametrize("check", ["serial_is_process", "resumes"])
def test_conformance(check, how):
    CHECKS[check](get("pgfed"), personal=how)


def test_after_a_refresh_everybody_has_trained_from_the_final_model():
    federation = shifted()
    fresh = trained("fedavg-local", federation, FRESH, rounds=3, cohort=2)
    stale = trained("fedavg-local", federation, rounds=3, cohort=2)
    assert torch.equal(fresh.server["w"], stale.server["w"])  # nothing of it reaches the others
    for i in range(5):  # by hand: one more round of this client's
        message = {"w": stale.server["w"]}
        new, _, _ = stale._side.call("train", i, 4, stale.store.get(i), message)
        assert torch.equal(fresh.personal_model(i), new["w"])
    last, before = fresh.history[-1], stale.history[-1]
    assert last["bytes_up"] == before["bytes_up"]
    assert last["bytes_down"] == before["bytes_down"] + 5 * 4 * fresh.info.layout.n
    assert last["samples"] == before["samples"] + sum(
        fresh.algorithm.images(n) for n in federation.n_train.tolist()
    )
    assert not np.array_equal(fresh.score, stale.score)


def test_local_is_refreshed_too():
    fresh = trained("local", shifted(), FRESH, rounds=2, cohort=2)
    assert all(fresh.touched(i) for i in range(5))
    assert fresh.history[-1]["bytes_down"] == 0


def test_under_a_schedule_a_refresh_steps_as_the_last_round_did():
    run = trained("fedavg-local", shifted(), FRESH, rounds=3, schedule="cosine")
    assert not any(torch.equal(run.personal_model(i), run.server["w"]) for i in range(5))


def with_validation(share):
    federation = shifted(n=120)
    if not share:
        return federation
    bounds = federation.bounds.copy()
    bounds[:, 1] = bounds[:, 0] + (0.7 * (bounds[:, 1] - bounds[:, 0])).astype(int)
    return type(federation)(**{**vars(federation), "bounds": bounds})


def run_on(federation, how, rounds=5) -> Run:
    algorithm = get("fedavg-local")(train=TRAIN, personal=how)
    backend = Serial(federation, small_model)
    run = Run(algorithm, federation, backend, seed=0, rounds=rounds, cohort=3)
    while not run.finished:
        run.step()
    return run


def test_each_client_chooses_its_blend_on_its_validation_data():
    federation = with_validation(0.3)
    auto = run_on(federation, PersonalConfig(blend="auto"))
    own, newest = run_on(federation, PersonalConfig()), auto.server["w"]
    for i in range(5):
        if not auto.touched(i):
            continue
        tried = [torch.lerp(newest, own.personal_model(i), k / 10) for k in range(11)]
        losses = [auto.task.loss(theta, federation.validation(i)) for theta in tried]
        assert torch.equal(auto.personal_model(i), tried[int(np.argmin(losses))])


def test_without_validation_data_the_rule_decides():
    federation = with_validation(0)
    auto = run_on(federation, PersonalConfig(blend="auto"))
    ruled = run_on(federation, PersonalConfig(blend=personal.RULE))
    assert all(torch.equal(auto.personal_model(i), ruled.personal_model(i)) for i in range(5))
