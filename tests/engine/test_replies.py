"""A bad reply is dropped and recorded, and leaves no trace: as if it had been lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch

from pgfed.engine.backends.base import Payload, Serial
from pgfed.engine.exchange.replies import Form, collect, refusal, score_refusal
from pgfed.engine.rounds import Run
from pgfed.methods.registry import METHODS, get
from pgfed.methods.values import Kind, Message, State, Update
from pgfed.model.kinds import CLASSES
from pgfed.model.layout import Layout
from pgfed.testing import TRAIN, check_equal, outcome, small_model, trivial_federation

LIAR, ROUND = 2, 3  # who sends the bad reply, and when: PGFed's first full message is round 2's
Answers = list[tuple[int, list[State]]]
Tamper = Callable[[list[State], list[State]], Answers]  # (its reply, its reply of round 1)


class Tampering(Serial):
    """Serial, with one client's results replaced on their way to the server."""

    def __init__(self, stage: str, tamper: Tamper) -> None:
        super().__init__(trivial_federation(), small_model)
        self.stage, self.tamper = stage, tamper

    def map(
        self, stage: str, round: int, clients: Sequence[int], common: Message, payload: Payload
    ) -> Iterator[tuple[int, list[State]]]:
        for client, result in super().map(stage, round, clients, common, payload):
            if client == LIAR and round == 1 and stage == "train":
                self.first = result
            if (stage, client, round) == (self.stage, LIAR, ROUND):
                yield from self.tamper(result, self.first)
            else:
                yield client, result


def run_with(backend: Serial, method: str, **options: Any) -> Run:
    algorithm = get(method)(train=TRAIN)
    clients = len(backend.federation)
    return Run(
        algorithm, backend.federation, backend, seed=3, rounds=ROUND + 1, cohort=clients, **options
    )


@cache
def outcome_if_lost(method: str) -> dict[str, Any]:
    backend = Serial(trivial_federation(), small_model)
    return outcome(run_with(backend, method, lose=lambda t, i: (t, i) == (ROUND, LIAR)))


def check_as_if_lost(method: str, tamper: Tamper, reason: str, **options: Any) -> None:
    expected = dict(outcome_if_lost(method))
    run = run_with(Tampering("train", tamper), method, **options)
    found = outcome(run)
    for record in run.history:
        dropped = record["dropped"]
        if record["round"] == ROUND:
            assert [d["client"] for d in dropped] == [LIAR]
            assert reason in dropped[0]["reason"]
        else:
            assert not dropped
    for out in (expected, found):
        del out[f"round {ROUND}"]  # the reason, and the bytes of what was refused, do differ
    check_equal(expected, found, reason)


def changed(**values: Any) -> Tamper:
    """The reply with other entries in its update; a callable changes what was there."""

    def tamper(reply: list[State], first: list[State]) -> Answers:
        state, update, echo = reply
        new = {k: v(update[k]) if callable(v) else v for k, v in values.items()}
        return [(LIAR, [state, {**update, **new}, echo])]

    return tamper


def with_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def put(vector: torch.Tensor) -> torch.Tensor:
        out = vector.clone()
        out[len(out) // 2] = value
        return out

    return put


def without(key: str) -> Tamper:
    def tamper(reply: list[State], first: list[State]) -> Answers:
        state, update, echo = reply
        return [(LIAR, [state, {k: v for k, v in update.items() if k != key}, echo])]

    return tamper


def echoing(**values: Any) -> Tamper:
    return lambda reply, first: [(LIAR, [*reply[:2], {**reply[2], **values}])]


BAD: dict[str, tuple[Tamper, str]] = {
    "NaN": (changed(w=with_value(math.nan)), "w: holds NaN or infinite values"),
    "infinite": (changed(w=with_value(-math.inf)), "w: holds NaN or infinite values"),
    "too short": (changed(w=lambda w: w[:-1]), "w: shape"),
    "too long": (changed(w=lambda w: torch.cat([w, w[:1]])), "w: shape"),
    "a matrix": (changed(w=lambda w: w[None]), "w: shape"),
    "a number for a vector": (changed(w=1.0), "w: not a float32 tensor"),
    "float64": (changed(w=lambda w: w.double()), "w: not a float32 tensor"),
    "integers": (changed(w=lambda w: w.long()), "w: not a float32 tensor"),
    "a missing key": (without("w"), "keys: w missing"),
    "a missing count": (without("n"), "keys: n missing"),
    "an extra key": (changed(state=torch.zeros(3)), "keys: 1 not asked for, the first 'state'"),
    "a long extra key": (changed(**{"k" * 10_000: 1}), "keys: 1 not asked for"),
    "a huge n": (changed(n=10**12), "n: 1000000000000 is not a count between 1 and 20"),
    "an endless n": (changed(n=10**5000), "n: an integer of 16610 bits"),
    "one too many": (changed(n=21), "n: 21 is not a count"),
    "n = 0": (changed(n=0), "n: 0 is not a count"),
    "negative n": (changed(n=-5), "n: -5 is not a count"),
    "n is true": (changed(n=True), "n: True is not a count"),
    "n is a float": (changed(n=3.0), "n: 3.0 is not a count"),
    "n is a tensor": (changed(n=torch.tensor(3)), "n: Tensor is not a count"),
    "a replayed round": (lambda reply, first: [(LIAR, first)], "round: answers round 1, asked was"),
    "a round to come": (echoing(round=ROUND + 1), f"round: answers round {ROUND + 1}"),
    "no round": (echoing(round=None), "round: answers round None"),
    "round is a float": (echoing(round=float(ROUND)), "round: answers round 3.0"),
    "NaN seconds": (echoing(seconds=math.nan), "seconds: nan is not a duration"),
    "a part too few": (lambda reply, first: [(LIAR, reply[:2])], "2 parts"),
    "two answers": (lambda reply, first: [(LIAR, reply), (LIAR, reply)], "answered 2 times"),
    "a second, better answer": (
        lambda reply, first: [*changed(w=with_value(math.nan))(reply, first), (LIAR, reply)],
        "answered 2 times",
    ),
    "no answer": (lambda reply, first: [], "no reply"),
}
BAD_PGFED: dict[str, tuple[Tamper, str]] = {
    "NaN in the gradient": (changed(gradient=with_value(math.nan)), "gradient: holds NaN"),
    "a model for a gradient": (changed(gradient=torch.zeros(3)), "gradient: shape (3,)"),
    "NaN risk": (changed(r=math.nan), "r: nan is not a finite number"),
    "a risk beyond float32": (changed(r=1e39), "r: 1e+39 is not a finite number"),
    "integer risk": (changed(r=1), "r: 1 is not a finite number"),
    "an alpha too many": (changed(alpha=torch.ones(7)), "alpha: shape (7,), expected (6,)"),
    "NaN alpha": (changed(alpha=with_value(math.nan)), "alpha: holds NaN"),
}


@pytest.mark.parametrize("method", ["fedavg", "pgfed"])
@pytest.mark.parametrize(("tamper", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_reply_is_as_if_lost(method: str, tamper: Tamper, reason: str) -> None:
    check_as_if_lost(method, tamper, reason)


@pytest.mark.parametrize(("tamper", "reason"), BAD_PGFED.values(), ids=BAD_PGFED.keys())
def test_bad_reply_of_pgfed_is_as_if_lost(tamper: Tamper, reason: str) -> None:
    check_as_if_lost("pgfed", tamper, reason)


@pytest.mark.parametrize("method", METHODS)
def test_nan_is_as_if_lost_in_every_method(method: str) -> None:
    vectors = [k for k, kind in get(method).leaves.items() if kind not in ("count", "row")]
    if vectors:
        tamper = changed(**{vectors[0]: with_value(math.nan)})
        check_as_if_lost(method, tamper, f"{vectors[0]}: holds NaN")
    else:  # nothing leaves the client, so that there is nothing to poison: the least is the echo
        check_as_if_lost(method, echoing(round=1), "answers round 1")


def test_who_was_not_asked_is_not_heard() -> None:
    """A reply in the name of a client outside the cohort changes nothing but the record."""
    honest = run_with(Serial(trivial_federation(), small_model), "fedavg")
    backend = Tampering("train", lambda reply, first: [(LIAR, reply), (99, reply)])
    run = run_with(backend, "fedavg")
    one, two = outcome(honest), outcome(run)
    assert two[f"round {ROUND}"]["dropped"] == [{"client": 99, "reason": "was not asked"}]
    two[f"round {ROUND}"]["dropped"] = []
    check_equal(one, two, "an uninvited reply")


def test_answers_in_any_order_are_collected_by_client() -> None:
    echo = {"round": 4, "seconds": 0.5}
    replies, refused = collect(
        [(5, [{}, {"n": 5}, echo]), (1, [{}, {"n": 1}, echo]), (3, []), (5, [{}, {}, echo])],
        [1, 3, 5],
        4,
    )
    assert replies == {1: [{}, {"n": 1}, echo]}
    assert refused == {3: "0 parts, expected state, update and echo", 5: "answered 2 times"}


# -- the bound on the norm -------------------------------------------------------------------------


def longer(times: float) -> Tamper:
    """A model ``times`` as far from the start as it may be."""

    def tamper(reply: list[State], first: list[State]) -> Answers:
        state, update, echo = reply
        w = update["w"]
        return [(LIAR, [state, {**update, "w": w + times * torch.ones_like(w)}, echo])]

    return tamper


@pytest.mark.parametrize("method", ["fedavg", "pgfed"])
def test_norm_bound_drops_long_updates(method: str) -> None:
    check_as_if_lost(method, longer(1e3), "allowed at most 100", max_update_norm=100.0)


def test_norm_bound_drops_long_gradients() -> None:
    tamper = changed(gradient=lambda g: g + 1e3)
    check_as_if_lost("pgfed", tamper, "gradient: norm", max_update_norm=100.0)


def test_norm_bound_is_on_the_step_from_what_was_sent() -> None:
    form = Form(Layout(b=2, h=2))
    declared: dict[str, Kind] = {"w": "model", "n": "count"}
    start = torch.tensor([100.0, 0.0, 0.0, 0.0])
    update: Update = {"w": start + torch.tensor([0.0, 3.0, 4.0, 0.0]), "n": 1}  # a step of length 5
    assert refusal(declared, form, {"w": start}, update, 1, 5.0) is None
    reason = refusal(declared, form, {"w": start}, update, 1, 4.9)
    assert reason == "w: norm 5, allowed at most 4.9"
    # FedFomo sends no model to start from: there is no step to bound.
    assert refusal(declared, form, {}, update, 1, 4.9) is None
    largest = {"w": torch.full((4,), 3e38), "n": 1}
    reason = refusal(declared, form, {"w": -largest["w"]}, largest, 1, 1e30)
    assert reason == "w: norm inf, allowed at most 1e+30"


# -- scores, and what is shared after the last round -----------------------------------------------

SCORES = {
    "test_n": 9,
    "test_score": 4 / 9,
    "test_loss": 3.5,
    "validation_n": 0,
    "validation_loss": 0.0,
}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"test_score": 1.5}, "test_score: 1.5 is not between 0 and 1"),
        ({"test_score": -0.1}, "test_score: -0.1 is not between 0 and 1"),
        ({"test_score": math.nan}, "test_score: nan is not between 0 and 1"),
        ({"test_n": 9.0}, "9.0 test samples"),
        ({"validation_n": math.nan}, "nan validation samples"),
        ({"test_loss": None}, "test_loss: None is not a number"),
    ],
)
def test_impossible_scores_are_not_used(values: State, reason: str) -> None:
    assert score_refusal(SCORES, CLASSES) is None
    assert score_refusal({**SCORES, "test_loss": math.nan}, CLASSES) is None  # diverged, and honest
    assert score_refusal({**SCORES, **values}, CLASSES) == reason

    honest = run_with(Serial(trivial_federation(), small_model), "fedavg")
    run = run_with(Tampering("score", lambda s, first: [(LIAR, [{**s[0], **values}])]), "fedavg")
    for _ in range(ROUND):
        honest.step()
        before = run.score[LIAR]
        run.step()
    (dropped,) = run.history[-1]["dropped"]
    assert dropped["client"] == LIAR
    assert dropped["reason"].startswith("score: ")
    assert run.score[LIAR] == before
    assert torch.equal(run.server["w"], honest.server["w"])


@pytest.mark.parametrize("method", ["fedper", "lg-fedavg", "fedfomo"])
def test_bad_share_is_left_out_of_the_global_model(method: str) -> None:
    (key,) = (k for k, kind in get(method).shares.items() if kind != "count")

    def at_the_end(result: Callable[[Update], Answers]) -> torch.Tensor:
        backend = Tampering("share", lambda reply, first: result(reply[0]))
        run = run_with(backend, method)
        for _ in range(ROUND):
            run.step()
        return run.global_model()

    without_it = at_the_end(lambda share: [])
    for bad in ({key: torch.full((3,), 1.0)}, {"n": 10**12}, {"more": 1}):
        found = at_the_end(lambda share, bad=bad: [(LIAR, [{**share, **bad}])])
        assert torch.equal(found, without_it)
    assert not torch.equal(at_the_end(lambda share: [(LIAR, [share])]), without_it)
