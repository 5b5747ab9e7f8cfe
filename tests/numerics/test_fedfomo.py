"""FedFomo against its paper's formulae in float64, and METHODS' invariant Q7."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from numerics.reference import Net, problem
from numerics.setup import batch_orders, cohorts, finish, float64, held, make_run, normed_network
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import FederationInfo
from pgfed.methods.fedfomo import FedFomo
from pgfed.methods.local import Local
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.settings import TrainConfig
from pgfed.model.layout import Layout

N, M, ROUNDS = 6, 4, 7
NET = Net(4, 5, 3)
TRAIN = TrainConfig(epochs=2, batch_size=3, lr=0.1)


def by_hand(w0, data, train, most, include_self, momentum, lost):
    """Yields ({i: theta_i}, {i: anchor_i}, P, who answered) after each round.

    ``lost``: (round, place in its cohort) of the replies that get lost.
    """
    theta, anchor = dict.fromkeys(range(N), w0), dict.fromkeys(range(N), w0)
    v, P = np.zeros((N, NET.d)), np.eye(N)
    uploaded = {}
    for t, cohort in enumerate(cohorts(0, ROUNDS, N, M), start=1):
        fresh = {}
        for i in cohort:
            if (t, cohort.index(i)) in lost:
                continue
            x, y = data[i]
            n_val = max(1, len(y) // 5)
            x_val, y_val = x[-n_val:], y[-n_val:]
            x, y = x[:-n_val], y[:-n_val]
            lot = ServerRng(0, t).generator("candidates", i).permutation(len(uploaded))
            place = {j: lot.tolist().index(k) for k, j in enumerate(sorted(uploaded))}
            best = sorted(uploaded, key=lambda j, i=i, p=place: (-P[i, j], p[j]))[:most]
            models = {j: uploaded[j] for j in best}
            if include_self:
                models[i] = theta[i]
            before = NET.loss_gradient(anchor[i], x_val, y_val)[0]
            weight = {}
            for j, model in models.items():
                gain = before - NET.loss_gradient(model, x_val, y_val)[0]
                weight[j] = max(0, gain / (np.linalg.norm(model - anchor[i]) + 1e-5))
            total = sum(weight.values())
            if total > 0:
                weight = {j: w / total for j, w in weight.items()}
                theta[i] = sum(weight[j] * models[j] for j in models)
                for j in best:
                    P[i, j] += weight[j]
            anchor[i] = theta[i]
            for k in batch_orders(len(y), train.batch_size, client=i, round=t, epochs=train.epochs):
                v[i] = momentum * v[i] + NET.gradient(theta[i], x[k], y[k])
                theta[i] = theta[i] - train.lr * v[i]
            fresh[i] = theta[i]
        uploaded = fresh
        yield theta, anchor, P, sorted(uploaded)


def preference(server):
    P = np.eye(N)
    P.flat[server["pairs"].numpy()] += float64(server["preference"])
    return P


@pytest.mark.parametrize("most", [2, 8])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("lost", [set(), {(2, 0), (3, 1), (3, 2), (5, 3)}])
@pytest.mark.parametrize(
    ("batch_size", "policy", "momentum"), [(0, "paper", 0.9), (3, "official", 0.0)]
)
def test_follows_the_paper(most, include_self, lost, batch_size, policy, momentum):
    train = TrainConfig(epochs=2, batch_size=batch_size, lr=0.1, momentum_policy=policy)
    method = FedFomo(train=train, candidates=most, fomo_include_self=include_self)
    drawn = cohorts(0, ROUNDS, N, M)
    run = make_run(
        method,
        problem(N),
        cohort=M,
        rounds=ROUNDS,
        lose=lambda t, i: (t, drawn[t - 1].index(i)) in lost,
    )
    w0 = float64(run.task.initial())
    for theta, anchor, P, answered in by_hand(
        w0, held(run), train, most, include_self, momentum, lost
    ):
        run.step()
        np.testing.assert_allclose(preference(run.server), P, atol=5e-5)
        for i in range(N):
            np.testing.assert_allclose(float64(run.personal_model(i)), theta[i], atol=1e-5)
            if run.touched(i):
                np.testing.assert_allclose(float64(run.state(i)["anchor"]), anchor[i], atol=1e-5)
        # The server keeps the models of those who answered last, and no others.
        assert run.server["ids"].tolist() == answered
        assert run.server["models"].shape == (len(answered), NET.d)
        for i, model in zip(answered, run.server["models"], strict=True):
            assert torch.equal(model, run.state(i)["w"])
    assert np.abs(P - np.eye(N)).max() > 1  # somebody was liked more than once
    n = np.array([len(y) for _, y in held(run)])
    mean = sum(n[i] * theta[i] for i in range(N)) / n.sum()
    np.testing.assert_allclose(float64(run.global_model()), mean, atol=1e-5)


@pytest.fixture
def client():
    """(run, a trained client's state, its data, its generator): the client is number 1."""
    run = make_run(FedFomo(train=TRAIN), problem(N), cohort=N, rounds=2)
    run.step()
    return run, run.state(1), run.federation.train(1), Rng(0, 1, 2)


def message(run, *ids):
    return {
        "ids": torch.tensor(ids),
        **{f"model_{j}": run.server["models"][j] for j in ids},
    }


def test_weights_are_shares(client):
    run, state, data, rng = client
    _, update = run.algorithm.local_update(run.task, state, message(run, *range(N)), data, rng)
    assert (update["weights"] >= 0).all()
    assert float(update["weights"].sum()) == pytest.approx(1)
    assert int((update["weights"] > 0).sum()) > 1


def test_copies_of_the_anchor_weigh_nothing(client):
    run, state, data, rng = client
    method = FedFomo(train=TRAIN, fomo_include_self=False)
    anchors = {"ids": torch.tensor([3, 4]), "model_3": state["anchor"], "model_4": state["anchor"]}
    new, update = method.local_update(run.task, state, anchors, data, rng)
    assert update["weights"].tolist() == [0, 0]
    assert torch.equal(new["anchor"], state["w"])  # it goes on from its own model


def test_own_model_alone_stays_as_it_is(client):
    run, state, data, rng = client
    new, update = run.algorithm.local_update(run.task, state, message(run, 1), data, rng)
    assert update["weights"].tolist() == [1]  # it improves on the anchor
    assert torch.equal(new["anchor"], state["w"])


def test_a_client_that_paused_keeps_its_training(client):
    """Only a stranger's model arrives, better than the anchor: without self it takes over."""
    run, state, data, rng = client
    cut = len(data) - max(1, len(data) // 5)
    validation = data.rows(cut, len(data))
    loss = {j: run.task.loss(run.server["models"][j], validation) for j in range(N) if j != 1}
    stranger = min(loss, key=loss.get)
    assert loss[stranger] < run.task.loss(state["anchor"], validation)
    sent = message(run, stranger)
    alone = FedFomo(train=TRAIN, fomo_include_self=False)
    new, update = alone.local_update(run.task, state, sent, data, rng)
    assert update["weights"].tolist() == [1]
    assert torch.equal(new["anchor"], run.server["models"][stranger])
    new, update = run.algorithm.local_update(run.task, state, sent, data, rng)
    share = float(update["weights"])
    assert 0 < share < 1
    mixed = share * run.server["models"][stranger] + (1 - share) * state["w"]
    torch.testing.assert_close(new["anchor"], mixed)


@pytest.mark.parametrize("include_self", [True, False])
def test_without_candidates_it_is_local_on_its_training_part(include_self):
    method = FedFomo(train=TRAIN, candidates=0, fomo_include_self=include_self)
    run = make_run(method, problem(N), cohort=M, rounds=3)
    states = {i: {"w": run.task.initial()} for i in range(N)}
    for t, cohort in enumerate(cohorts(0, 3, N, M), start=1):
        record = run.step()
        assert record["bytes_down"] == 0
        for i in cohort:
            data = run.federation.train(i)
            part = data.rows(0, len(data) - len(data) // 5)
            args = (states[i], {}, part, Rng(0, i, t))
            states[i], _ = Local(train=TRAIN).local_update(run.task, *args)
    for i in range(N):
        assert torch.equal(run.personal_model(i), states[i]["w"])
    assert record["samples"] == sum(
        2 * ((n - n // 5) // 3) * 3 for n in (len(run.federation.train(i)) for i in cohort)
    )


def test_few_samples():
    """Two samples: one to train on, one to validate. One sample: nothing to validate."""
    data = problem(N)
    data[0], data[1] = (data[0][0][:1], data[0][1][:1]), (data[1][0][:2], data[1][1][:2])
    run = finish(make_run(FedFomo(train=TRAIN), data, cohort=N, rounds=3))
    P = preference(run.server)
    assert P[0].tolist() == np.eye(N)[0].tolist()
    assert P[1].sum() > 1.5
    alone = finish(make_run(Local(train=TRAIN), data, cohort=N, rounds=3))
    assert torch.equal(run.personal_model(0), alone.personal_model(0))


def test_a_round_without_answers_is_followed_by_one_without_candidates():
    run = make_run(FedFomo(train=TRAIN), problem(N), cohort=M, rounds=4, lose=lambda t, i: t == 2)
    for _ in range(2):
        run.step()
    assert run.server["models"].shape == (0, NET.d)
    before = {i: run.state(i)["w"] for i in range(N)}
    record = run.step()
    assert record["bytes_down"] == 0
    for i in record["cohort"]:
        assert torch.equal(run.state(i)["anchor"], before[i])


def test_statistics_are_mixed_but_do_not_count_as_distance():
    run = make_run(FedFomo(train=TRAIN), problem(N), cohort=N, rounds=2, model=normed_network)
    run.step()
    d, state = run.task.d, run.state(1)
    data, rng = run.federation.train(1), Rng(0, 1, 2)
    models, validation = run.server["models"], data.rows(len(data) - len(data) // 5, len(data))
    before = run.task.loss(state["anchor"], validation)
    gains = torch.tensor([before - run.task.loss(model.clone(), validation) for model in models])
    weights = (gains / ((models - state["anchor"])[:, :d].norm(dim=1) + 1e-5)).clamp(min=0)
    weights /= weights.sum()
    new, update = run.algorithm.local_update(run.task, state, message(run, *range(N)), data, rng)
    torch.testing.assert_close(update["weights"], weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(new["anchor"], weights @ models, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [2, 8])
def test_bytes(most):
    run = make_run(
        FedFomo(train=TRAIN, candidates=most),
        problem(N),
        cohort=M,
        rounds=5,
        lose=lambda t, i: (t, i) == (3, cohorts(0, 3, N, M)[2][0]),
    )
    answered = 0
    while not run.finished:
        record = run.step()
        sent = min(most, answered)
        answered = M - len(record["dropped"])
        assert record["bytes_down"] == 4 * M * sent * NET.d
        assert record["bytes_up"] == 4 * answered * (NET.d + sent)
        assert record["bytes_eval"] == 0
    assert record["overhead_down"] == 8 * M * sent


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"candidates": -1}, "method.fedfomo.candidates: must be >= 0, found -1"),
        (
            {"validation_share": 1.0},
            "method.fedfomo.validation_share: must be in (0, 1), found 1",
        ),
    ],
)
def test_impossible_values(options, line):
    with pytest.raises(UserError) as caught:
        FedFomo(**options)
    assert str(caught.value) == line


def test_equal_preferences_are_sent_to_all_alike():
    """With more models than candidates nobody is passed over: by ids the lowest would always go.

    100 clients, 25 per round, 40 rounds in which nobody likes anybody: no quarter of the ids is
    sent less than half as often as another.
    """
    clients, drawn, candidates = 100, 25, 8
    method = FedFomo(train=TRAIN, candidates=candidates)
    w0 = torch.zeros(3)
    server = method.init_server(w0, FederationInfo(clients, drawn, Layout(b=0, h=3)))
    sent = np.zeros(clients, dtype=int)
    for t, cohort in enumerate(cohorts(0, 40, clients, drawn), start=1):
        rng = ServerRng(0, t)
        messages = method.messages(server, cohort, rng)
        updates = {}
        for i in cohort:
            ids = messages[i].get("ids", torch.empty(0, dtype=torch.int64))
            assert len(ids) == min(candidates, len(server["ids"]))
            sent[ids.numpy()] += 1
            updates[i] = {"w": w0, "weights": torch.zeros(len(ids)), "n": 1}
        server = method.aggregate(server, updates, Mean(), rng)
    quarters = sent.reshape(4, -1).sum(1)
    assert quarters.min() >= quarters.max() / 2, quarters


def test_the_lot_is_drawn_anew_for_each_client_and_round():
    method = FedFomo(train=TRAIN, candidates=2)
    server = method.init_server(torch.zeros(3), FederationInfo(9, 6, Layout(b=0, h=3)))
    server = {**server, "ids": torch.arange(6), "models": torch.zeros(6, 3)}
    chosen = {
        (t, i): tuple(method.chosen(server, i, ServerRng(0, t)).tolist())
        for t in range(1, 9)
        for i in (6, 7, 8)
    }
    again = {(t, i): tuple(method.chosen(server, i, ServerRng(0, t)).tolist()) for t, i in chosen}
    assert chosen == again
    assert len({chosen[1, i] for i in (6, 7, 8)} | {chosen[t, 6] for t in range(1, 9)}) > 3
