"""How fast clients train: the paper's table of local speed (E10), on this machine.

CIFAR-10's shapes with random pixels, 50 clients, the paper's CNN. Each method takes turns with
FedAvg, so that whatever else the machine does meets both; ratios are medians over the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Protocol, Self

import numpy as np

from pgfed.data.federation import Federation, Shard
from pgfed.engine.backends.process import Process
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.averaging import Mean
from pgfed.methods.contract import Algorithm
from pgfed.methods.randomness import Rng, ServerRng
from pgfed.methods.registry import METHODS, folder, get
from pgfed.methods.settings import TrainConfig
from pgfed.methods.values import Message, State, Update
from pgfed.model.networks import Factory
from pgfed.model.task import Task
from pgfed.paper.printed import METHODS as PAPER_NAMES
from pgfed.paper.printed import tables

CLIENTS = 50
CIFAR = (3, 32, 32)
EPOCHS = 5
TURNS = 2  # at least, beside one to warm up
FOREVER = 10**9  # rounds: never scored, never at an end


@dataclass(frozen=True)
class Speed:
    """Of one method at one batch size. Shares are of FedAvg's images per second."""

    method: str
    batch_size: int
    images_per_second: float
    share: float
    # Where the method takes a gradient pass after training: the same without that pass.
    images_per_second_without_pass: float | None
    share_without_pass: float | None
    # The pass by itself, as a multiple of FedAvg's images per second.
    pass_share: float | None
    paper_share: float | None  # batch 128 on a V100; without the pass
    turns: int


def measure(
    names: Sequence[str],
    batch_size: int,
    *,
    seconds: float,
    epochs: int = EPOCHS,
    samples: int = 256,
    workers: int = 0,
    input_shape: tuple[int, ...] = CIFAR,
    model: str | Factory = "cnn",
    refused: Callable[[UserError], None] | None = None,
) -> Iterator[Speed]:
    """The speed of each method, in about ``seconds`` each (two turns at least).

    ``samples``: training samples per client; at least one batch. ``refused`` is told why a method
    does not train this model with so many clients; without it that is an error.
    """
    data = random_federation(max(samples, batch_size), input_shape=input_shape)
    train = TrainConfig(epochs=epochs, batch_size=batch_size, lr=0.001)

    def lane(method: Algorithm) -> Lane:
        return Lane(method, data, model, workers)

    with lane(get("fedavg")(train=train)) as fedavg:
        fedavg.turn()
        for name in names:
            method = get(name)(train=train)
            with ExitStack() as stack:
                try:
                    lanes = [fedavg, stack.enter_context(lane(method))]
                except UserError as error:
                    if refused is None:
                        raise
                    refused(error)
                    continue
                if "gradient" in method.leaves.values():
                    lanes.append(stack.enter_context(lane(GradientPass(train=train))))
                for new in lanes[1:]:
                    new.turn()
                turns = in_turns(lanes, seconds)
            yield _speed(folder(name), train, turns)


class Timed(Protocol):
    def turn(self) -> float:
        """Seconds per image, of one more turn."""


def in_turns(lanes: Sequence[Timed], seconds: float, least: int = TURNS) -> list[list[float]]:
    """Each lane's seconds per image, turn by turn, for so many seconds."""
    turns: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(turns) < least or time.perf_counter() < end:
        turns.append([lane.turn() for lane in lanes])
    return turns


def _speed(name: str, train: TrainConfig, turns: list[list[float]]) -> Speed:
    """From rows of seconds per image: FedAvg, the method, and its gradient pass if it has one."""
    without = share_without = pass_share = None
    if len(turns[0]) == 3:
        # The pass goes over the samples once, training `epochs` times.
        rest = [own - one / train.epochs for _, own, one in turns]
        without = 1 / median(rest)
        share_without = median(base / r for (base, _, _), r in zip(turns, rest, strict=True))
        pass_share = median(base / one for base, _, one in turns)
    return Speed(
        method=name,
        batch_size=train.batch_size,
        images_per_second=1 / median(row[1] for row in turns),
        share=median(row[0] / row[1] for row in turns),
        images_per_second_without_pass=without,
        share_without_pass=share_without,
        pass_share=pass_share,
        paper_share=_paper(name),
        turns=len(turns),
    )


def of_paper() -> list[str]:
    """The methods of the paper's table."""
    return [name for name in METHODS if _paper(name) is not None]


def _paper(name: str) -> float | None:
    for row in tables()["local_computation_speed"]:
        if row["method"] == PAPER_NAMES.get(name):
            return float(row["relative_speed_percent"]) / 100
    return None


class Lane:
    """One method on worker processes of its own; a turn is a round, without scoring."""

    def __init__(
        self,
        method: Algorithm,
        data: Federation,
        model: str | Factory = "cnn",
        workers: int = 0,
        cohort: int = 0,
    ) -> None:
        self._pool = Process(data, model, workers=workers)
        # By default two clients for each worker: nobody waits long for the last one.
        cohort = min(len(data), cohort or 2 * self._pool.workers)
        try:
            self._run = Run(
                method,
                data,
                self._pool,
                seed=0,
                rounds=FOREVER,
                cohort=cohort,
                evaluate_every=FOREVER,
            )
        except BaseException:
            self._pool.end()  # a method that refuses leaves no workers behind
            raise

    def turn(self) -> float:
        """Seconds of client work per image."""
        record = self._run.step()
        if record["dropped"]:
            raise AssertionError(f"not the work that was to be timed: {record['dropped']}")
        return float(record["train_seconds"] / record["samples"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.end()
        self._run.store.close()


@dataclass(frozen=True, kw_only=True)
class GradientPass(Algorithm):
    """Nothing but the pass that PGFed makes over a client's samples after training."""

    name = "gradient-pass"
    summary = "the gradient pass of PGFed alone, to be timed"
    leaves = {"gradient": "gradient", "n": "count"}

    def images(self, n: int) -> int:
        return super().images(n) // self.train.epochs

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        _, gradient = task.mean_gradient(message["w"], data, rng, self.train.batch_size)
        return {}, {"gradient": gradient, "n": len(data)}

    def aggregate(
        self, server: State, updates: Mapping[int, Update], mean: Mean, rng: ServerRng
    ) -> State:
        return server


def random_federation(
    samples: int, *, clients: int = CLIENTS, input_shape: tuple[int, ...] = CIFAR
) -> Federation:
    """Random images of ten classes: ``samples`` to train on per client, a third as many to test."""
    rng = np.random.default_rng(0)
    each = samples + samples // 3
    return Federation.from_arrays(
        rng.integers(0, 256, size=(clients * each, *input_shape), dtype=np.uint8),
        rng.integers(0, 10, size=clients * each),
        client=np.repeat(np.arange(clients), each),
        split=np.tile(np.arange(each) >= samples, clients),
        class_names=[str(k) for k in range(10)],
        name="random pixels",
    )
