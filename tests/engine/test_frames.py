"""A client's own class shares as a frame of its model: by hand, in runs, and in what leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pgfed.data.federation import Federation
from pgfed.engine import personal
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.registry import METHODS, get
from pgfed.methods.settings import PersonalConfig, TrainConfig
from pgfed.model import frames
from pgfed.model.networks import make_task
from pgfed.testing import CHECKS, TRAIN, check_equal, outcome, small_model, started

NONE = PersonalConfig()
SERVING, TRAINING = PersonalConfig(frame="serving"), PersonalConfig(frame="training")


def shifted(seed=0, shares=None, clients=5, n=60, classes=3, apart=1.0) -> Federation:
    """Overlapping classes; each client has its own shares of them, or those given to all."""
    rng = np.random.default_rng(seed)
    centres = apart * rng.normal(size=(classes, 6))
    x, y, client = [], [], []
    for i in range(clients):
        own = rng.dirichlet([0.6] * classes) if shares is None else np.asarray(shares)
        # All classes are there: FedRoD gives an absent one another offset.
        labels = np.concatenate(
            [np.tile(np.arange(classes), 4), rng.choice(classes, size=n, p=own)]
        )
        if shares is not None:
            counts = np.round(n * own).astype(int)
            labels = rng.permutation(np.repeat(np.arange(classes), counts))
        x.append(centres[labels] + rng.normal(size=(len(labels), 6)))
        y.append(labels)
        client += [i] * len(labels)
    return Federation.from_arrays(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y),
        client=np.array(client),
        name="shifted",
        test_share=0.4,
        stratify=True,
    )


def trained(method, federation, how=NONE, rounds=6, cohort=3, seed=1, **train) -> Run:
    settings = replace(TRAIN, **train)
    algorithm = get(method)(train=settings, personal=how)
    run = Run(
        algorithm,
        federation,
        Serial(federation, small_model),
        seed=seed,
        rounds=rounds,
        cohort=cohort,
    )
    while not run.finished:
        run.step()
    return run


# -- by hand -------------------------------------------------------------------------------------


def test_a_folded_model_has_the_outputs_of_the_frame():
    task = make_task(small_model, (6,), 3, seed=0)
    theta, x = task.initial(), torch.randn(7, 6)
    offset = frames.own_frame(torch.tensor([8, 1, 1]))
    folded = task.folded(theta, offset)
    assert torch.allclose(task.logits(folded, x), task.logits(theta, x) + offset, atol=1e-6)
    assert torch.equal(theta, task.initial())


def test_the_soft_max_in_the_frame_weighs_classes_by_their_shares():
    counts, o = torch.tensor([30, 6, 4]), np.array([0.3, -1.0, 2.0])
    offset = frames.own_frame(counts).double().numpy()
    framed = np.exp(o + offset) / np.exp(o + offset).sum()
    pi = np.array([31, 7, 5]) / 43  # one more of each
    assert np.allclose(framed, pi * np.exp(o) / (pi * np.exp(o)).sum(), atol=1e-7)


def test_at_a_head_of_zeros_the_bias_has_no_gradient_in_the_frame():
    data = shifted().train(0)
    task = make_task(small_model, (6,), 3, seed=0)
    theta = task.initial()
    theta[task.layout.head] = 0.0
    counts = data.class_counts(3)
    x, y = data.batch(slice(0, len(data)))
    plain = task.view(data)
    framed = task.view(data)
    framed.offset = frames.own_frame(counts - 1)  # the shares that were seen
    pi = counts.double() / len(data)
    assert framed.gradient(theta, x, y)[task.head_bias].abs().max() < 1e-6
    without = plain.gradient(theta, x, y)[task.head_bias].double()
    assert torch.allclose(without, 1 / 3 - pi, atol=1e-6)


def test_a_correction_to_the_same_shares_is_none():
    common = torch.tensor([0.98, 0.02])
    assert frames.corrected(torch.tensor([98, 2]), common).abs().max() < 1e-6
    both = frames.corrected(torch.tensor([50, 50]), common)
    expected = torch.tensor([51.96 / 102 / 0.98, 50.04 / 102 / 0.02])
    assert torch.allclose(both, expected.log())


def test_a_site_without_samples_is_expected_to_be_as_the_others():
    common = torch.tensor([0.9, 0.1])
    assert frames.corrected(torch.tensor([0, 0]), common).abs().max() < 1e-6
    assert torch.equal(frames.shares(torch.tensor([0, 0])), torch.full((2,), 0.5).double())


def test_a_class_that_was_not_seen_is_rare_and_not_impossible():
    assert frames.shares(torch.tensor([10, 0])).tolist() == [11 / 12, 1 / 12]
    assert frames.shares(torch.tensor([10.5, -3.0])).tolist() == [11.5 / 12.5, 1 / 12.5]
    many = frames.shares(torch.tensor([10_000, 0]))
    assert many[1] == 1 / 10_002


def test_few_samples_make_a_weak_frame():
    """Twenty sites, each with eight samples of four equally frequent classes: what a site has seen
    must not keep it from naming the others."""
    rng = np.random.default_rng(0)
    lost = []
    for _ in range(200):
        counts = rng.multinomial(8, [0.25] * 4)
        frame = frames.own_frame(torch.tensor(counts)).double().numpy()
        guess = np.exp(frame) / np.exp(frame).sum()
        lost.append(-np.log(guess).mean())  # the mean loss over samples to come
    assert np.mean(lost) < np.log(4) + 0.2


# -- in runs -------------------------------------------------------------------------------------


def test_fedavg_in_training_frames_is_the_generic_model_of_fedrod(monkeypatch):
    """FedRoD takes the shares that were seen; ours count one more sample of each class."""
    federation = shifted()
    with monkeypatch.context() as seen:
        own = frames.own_frame
        seen.setattr(frames, "own_frame", lambda counts: own(counts - 1))
        ours = trained("fedavg", federation, TRAINING)
    theirs = trained("fedrod", federation)
    assert torch.allclose(ours.server["w"], theirs.server["w"], atol=2e-5)
    plain = trained("fedavg", federation)
    assert not torch.allclose(plain.server["w"], theirs.server["w"], atol=1e-2)


@pytest.mark.parametrize("how", [SERVING, TRAINING])
@pytest.mark.parametrize("method", ["fedavg", "fedavg-ft", "pgfed"])
def test_equal_shares_change_nothing(method, how):
    if method == "pgfed" and how is SERVING:
        return  # of an own model nothing is corrected
    federation = shifted(shares=[1 / 3] * 3, n=60)
    framed, plain = trained(method, federation, how), trained(method, federation)
    assert torch.allclose(framed.server["w"], plain.server["w"], atol=1e-6)
    for i in range(5):
        one, two = framed.personal_model(i), plain.personal_model(i)
        assert torch.allclose(one, two, atol=1e-6)


def test_serving_leaves_training_as_it_is_and_corrects_by_hand():
    federation = shifted()
    served, plain = (
        trained("fedavg", federation, SERVING, cohort=5),
        trained("fedavg", federation, cohort=5),
    )
    assert torch.equal(served.server["w"], plain.server["w"])
    counts = np.stack([federation.train(i).class_counts(3).numpy() for i in range(5)])
    pi_bar = (counts.sum(0) + 1) / (counts.sum() + 3)
    for i in range(5):
        pi = (counts[i] + 3 * pi_bar) / (counts[i].sum() + 3)
        head = served.task.head_bias
        moved = (served.personal_model(i) - plain.personal_model(i)).double().numpy()
        assert np.allclose(moved[head], np.log(pi) - np.log(pi_bar), atol=1e-5)
        assert not moved[: head.start].any()
    assert served.class_shares() == pytest.approx(pi_bar.tolist(), abs=1e-6)


def mean_loss(run: Run) -> float:
    return float(np.nanmean(run.loss))


@pytest.mark.parametrize("how", [SERVING, TRAINING])
def test_two_percent_positives_at_every_site_lose_nothing_by_a_frame(how):
    """Unequal classes, alike everywhere: a prior that counted twice would cost dearly."""
    differences = []
    for seed in range(3):
        federation = shifted(seed, shares=[0.98, 0.02], classes=2, n=400, apart=0.7)
        plain = trained("fedavg", federation, rounds=8, epochs=1, batch_size=20)
        framed = trained("fedavg", federation, how, rounds=8, epochs=1, batch_size=20)
        assert np.nanmean(framed.score) >= np.nanmean(plain.score) - 0.004
        differences.append(mean_loss(framed) - mean_loss(plain))
        # Without the federation's shares (log pi alone) it is wrong here.
        wrong = frames.own_frame(federation.train(0).class_counts(2))
        theta = plain.task.folded(plain.server["w"], wrong)
        assert plain.task.loss(theta, federation.test(0)) > plain.loss[0] + 0.02
    assert np.mean(differences) < 0.01


def test_under_label_shift_both_frames_help_the_global_model():
    federation = shifted(3, clients=8, n=120, apart=0.5)
    plain = trained("fedavg", federation, rounds=8, cohort=4)
    for how in (SERVING, TRAINING):
        framed = trained("fedavg", federation, how, rounds=8, cohort=4)
        assert mean_loss(framed) < mean_loss(plain) - 0.02
        assert np.nanmean(framed.score) > np.nanmean(plain.score)


@pytest.mark.parametrize("how", [SERVING, TRAINING])
@pytest.mark.parametrize("check", ["serial_is_process", "resumes", "missing_replies", "batch_norm"])
def test_conformance(check, how):
    CHECKS[check](get("fedavg"), personal=how)


@pytest.mark.parametrize("method", ["pgfed", "pfedme", "apfl", "lg-fedavg", "per-fedavg"])
def test_training_frames_for_other_methods(method):
    CHECKS["deterministic"](get(method), personal=TRAINING)
    with started(get(method)(train=TRAIN, personal=TRAINING)) as run:
        outcome(run)
        assert all(not record["dropped"] for record in run.history)


# -- what leaves ---------------------------------------------------------------------------------


def test_class_counts_leave_once_and_are_counted():
    run = trained("fedavg", shifted(), SERVING, rounds=6, cohort=3)
    told = [record["bytes_by_key"]["up"].get(personal.COUNTS, 0) for record in run.history]
    plain = trained("fedavg", shifted(), rounds=6, cohort=3)
    asked = len({i for record in run.history for i in record["cohort"]})
    assert sum(told) == asked * 3 * 4
    assert sum(r["bytes_up"] for r in run.history) - sum(told) == sum(
        r["bytes_up"] for r in plain.history
    )
    assert run.history[0]["bytes_eval"] == plain.history[0]["bytes_eval"] + 5 * 3 * 4


def test_in_training_frames_nothing_more_leaves():
    framed, plain = trained("fedavg", shifted(), TRAINING), trained("fedavg", shifted())
    for one, two in zip(framed.history, plain.history, strict=True):
        assert one["bytes_by_key"] == two["bytes_by_key"]


@pytest.mark.parametrize("counts", [torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0, 3.0]), 5])
def test_counts_that_are_none_are_refused(monkeypatch, counts):
    call = Serial.map

    def false(self, stage, round, clients, common, payload):
        for client, answer in call(self, stage, round, clients, common, payload):
            if stage == "train" and client == 2:
                answer[1][personal.COUNTS] = counts
            yield client, answer

    monkeypatch.setattr(Serial, "map", false)
    run = trained("fedavg", shifted(), SERVING, rounds=2, cohort=5)
    reasons = {d["client"]: d["reason"] for d in run.history[0]["dropped"]}
    assert list(reasons) == [2]
    assert personal.COUNTS in reasons[2]


# -- where it makes no sense ---------------------------------------------------------------------


def test_a_head_without_bias_is_refused():
    def no_bias(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes, bias=False))

    federation = shifted()
    with pytest.raises(UserError, match=r"^personal.frame: .* with a bias; '2' is not"):
        Run(
            get("fedavg")(train=TrainConfig(), personal=TRAINING),
            federation,
            Serial(federation, no_bias),
            seed=0,
            rounds=1,
            cohort=2,
        )


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_says_its_personal_model_is_made_of(method):
    cls = get(method)
    with started(cls(train=TRAIN)) as run:
        run.step()
        assert (cls.personal_from == "own") == (not run.algorithm.public(run.server))
        if cls.personal_from == "global":  # whatever the client keeps does not matter
            side, data = run._side, run.federation.train(0)
            empty = {**run.state(0), **side.algorithm.init_client(side.w0, side.client(0))}
            task = run.task.view(data)
            public = run.algorithm.public(run.server)
            models = [
                run.algorithm.personal_model(task, state, public, data, run._side._rng(0, 1))
                for state in (run.state(0), empty)
            ]
            check_equal({"w": models[0]}, {"w": models[1]}, method)
