"""`pgfed bench`, on a network and clients small enough to take no time."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from any_model import ANY_MODEL
from cli.cli_tools import Done
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods import apple
from pgfed.methods.randomness import Rng
from pgfed.methods.registry import METHODS
from pgfed.methods.settings import TrainConfig
from pgfed.tuning import speed as bench
from pgfed.tuning.speed import GradientPass, Lane, Speed, measure, random_federation


def small(names: list[str], **options: object) -> list[Speed]:
    settings = {"seconds": 0, "samples": 8, "epochs": 1, "workers": 1}
    shape = {"input_shape": (1, 4, 4), "model": "mlp"}
    return list(measure(names, 4, **settings | shape | options))


def test_every_method_has_a_speed() -> None:
    found = small(ANY_MODEL)
    assert [speed.method for speed in found] == ANY_MODEL
    assert all(speed.images_per_second > 0 and speed.turns == bench.TURNS for speed in found)
    takes_pass = {s.method for s in found if s.share_without_pass is not None}
    assert takes_pass == {"pgfed", "pgfed-mo", "pgfed-ce"}


def test_of_all_methods_those_that_refuse_are_left_out_and_named(
    pgfed: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mlp has no layer that normalises, and 50 clients are too many for Apple's pairs."""
    names = ["fedavg", "fedbn", "apple", "pgfed"]
    monkeypatch.setattr(apple, "LIMIT", 1)
    with pytest.raises(UserError, match="fedbn"):
        small(names)
    left_out: list[UserError] = []
    found = small(names, refused=left_out.append)
    assert [speed.method for speed in found] == ["fedavg", "pgfed"]
    assert ["fedbn" in str(error) for error in left_out] == [True, False]
    assert "apple" in str(left_out[1])
    assert not multiprocessing.active_children()  # of those that refused, too

    def pretend(names: list[str], size: int, **options: Any) -> Iterator[Speed]:
        options["refused"](left_out[0])
        yield from found

    monkeypatch.setattr(bench, "measure", pretend)
    done = pgfed("bench", "all")
    assert done.code == 0
    assert "left out: methods: 'fedbn'" in done.err


class Clock:
    """A lane whose turns take the times it is given."""

    def __init__(self, *times: float) -> None:
        self._times: Iterator[float] = iter(times)

    def turn(self) -> float:
        return next(self._times)


def test_ratios_are_medians_over_turns_and_the_pass_is_taken_off() -> None:
    # FedAvg, the method, one image of the pass; a slow second turn meets all three.
    lanes = [Clock(1.0, 10.0, 1.0), Clock(2.0, 20.0, 2.0), Clock(0.5, 5.0, 0.5)]
    turns = bench.in_turns(lanes, 0, least=3)
    found = bench._speed("pgfed", TrainConfig(epochs=5, batch_size=128), turns)
    assert found.share == pytest.approx(0.5)
    assert found.images_per_second == pytest.approx(0.5)
    # 2 seconds per image, of which 0.5 / 5 are the pass
    assert found.images_per_second_without_pass == pytest.approx(1 / 1.9)
    assert found.share_without_pass == pytest.approx(1 / 1.9)
    assert found.pass_share == pytest.approx(2.0)
    assert found.paper_share == pytest.approx(0.8848)


def test_the_pass_that_is_timed_is_the_one_pgfed_makes() -> None:
    data = random_federation(9, clients=2, input_shape=(1, 4, 4))
    train = TrainConfig(epochs=3, batch_size=4)
    run = Run(GradientPass(train=train), data, Serial(data, "mlp"), seed=0, rounds=2, cohort=2)
    record = run.step()
    assert record["samples"] == 2 * 8  # whole batches of one epoch
    _, update = run.algorithm.local_update(
        run.task, {}, {"w": run.server["w"]}, data.train(1), Rng(0, 1, 1)
    )
    _, gradient = run.task.mean_gradient(run.server["w"], data.train(1), Rng(0, 1, 1), 4)
    assert torch.equal(update["gradient"], gradient)


def test_work_that_was_not_done_is_not_timed() -> None:
    data = random_federation(4, clients=2, input_shape=(1, 4, 4))
    train = TrainConfig(epochs=1, batch_size=4, lr=float("inf"))
    with (
        Lane(
            GradientPass(train=TrainConfig(epochs=1, batch_size=4)), data, "mlp", workers=1
        ) as good,
        Lane(bench.get("fedavg")(train=train), data, "mlp", workers=1) as bad,
    ):
        assert good.turn() > 0
        with pytest.raises(AssertionError, match="not the work"):
            bad.turn()


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What the command asks to be measured; nothing is."""
    asked: list[tuple[object, ...]] = []

    def pretend(names: list[str], size: int, **options: object) -> Iterator[Speed]:
        asked.append((list(names), size, options))
        for name in names:
            extra = (90.0, 0.9, 1.5) if name.startswith("pgfed") else (None, None, None)
            yield Speed(name, size, 1234.5, 0.75, *extra, paper_share=0.88, turns=2)

    monkeypatch.setattr(bench, "measure", pretend)
    return asked


def test_table_has_a_row_per_method_and_the_papers_column(
    pgfed: Callable[..., Done], told: list[tuple[object, ...]]
) -> None:
    done = pgfed("bench", "fedavg", "pgfed", "--batch", "10,128", "--seconds", 3)
    assert done.code == 0, done.err
    assert told == [
        (["fedavg", "pgfed"], size, {"seconds": 3.0, "workers": 0, "refused": None})
        for size in (10, 128)
    ]
    assert done.out.count("1,234") == 4
    assert done.out.count("88.0 %") == 4
    assert done.out.count("90.0 %") == 2
    assert "Batch 10:" in done.out
    assert "Batch 128:" in done.out


def test_json_has_every_figure(pgfed: Callable[..., Done], told: list[tuple[object, ...]]) -> None:
    done = pgfed("bench", "all", "--json")
    rows = json.loads(done.out)
    assert [row["method"] for row in rows] == list(METHODS)
    assert rows[0]["images_per_second"] == 1234.5
    assert rows[0]["batch_size"] == 128


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedagv"], "did you mean 'fedavg'?"),
        (["--batch", "10,x"], "--batch: found 'x'; allowed: whole numbers"),
        (["--batch", "0"], "--batch: found '0'"),
    ],
)
def test_mistakes_are_one_line(
    pgfed: Callable[..., Done], told: list[tuple[object, ...]], words: list[str], message: str
) -> None:
    done = pgfed("bench", *words)
    assert done.code == 2
    assert message in done.line
    assert told == []
