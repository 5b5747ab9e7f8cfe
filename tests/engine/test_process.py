"""Worker processes: the same bits as one process, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.engine.backends.base import Serial
from pgfed.engine.backends.process import Process
from pgfed.engine.client import ClientError
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm, Message, Rng, State, Update, sgd
from pgfed.methods.registry import get
from pgfed.model.task import Task
from pgfed.testing import check_equal, make, outcome, small_model, started, trivial_federation


def pool(workers: int) -> Process:
    return Process(trivial_federation(), small_model, workers=workers)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("method", ["local", "fedavg", "pgfed", "pgfed-mo", "pgfed-ce"])
def test_any_number_of_workers_gives_the_bits_of_one_process(method: str, workers: int) -> None:
    with started(make(get(method), {})) as run:
        expected = outcome(run)
    with started(make(get(method), {}), pool(workers)) as run:
        check_equal(expected, outcome(run), f"{workers} workers")


def test_more_workers_than_clients() -> None:
    with started(make(get("fedavg"), {}), pool(9)) as run:
        assert run.step()["dropped"] == []


@dataclass(frozen=True, kw_only=True)
class Mortal(Algorithm):
    """FedAvg, but training client 2 ends its worker, as often as the folder has files to remove."""

    name = "mortal"
    summary = "for tests"
    leaves = {"w": "model", "n": "count"}

    deaths: str = ""

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        w, v = sgd(task, message["w"], data, rng, self.train, velocity=state.get("v"))
        left = sorted(Path(self.deaths).iterdir()) if self.deaths else []
        if rng.client == 2 and left:
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.keep(v=v), {"w": w, "n": len(data)}

    def personal_model(
        self, task: Task, state: State, public: Message, data: Shard, rng: Rng
    ) -> Tensor:
        w: Tensor = public["w"]
        return w


def test_a_dead_worker_is_replaced_and_the_result_is_the_same(tmp_path: Path) -> None:
    with started(make(Mortal, {})) as run:
        expected = outcome(run)
    for k in range(2):
        (tmp_path / str(k)).touch()
    with started(make(Mortal, {"deaths": str(tmp_path)}), pool(2)) as run:
        before = set(run.backend.pids())  # type: ignore[attr-defined]
        got = outcome(run)
        after = set(run.backend.pids())  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir()), "no worker died: the test tested nothing"
    assert len(after) == 2
    assert before != after
    check_equal(expected, got, "after two deaths")


def test_work_that_always_kills_its_worker_is_named(tmp_path: Path) -> None:
    for k in range(50):
        (tmp_path / str(k)).touch()
    message = r"client 2, train: the worker process died 3 times"
    with started(make(Mortal, {"deaths": str(tmp_path)}), pool(2)) as run:
        with pytest.raises(ClientError, match=message):
            outcome(run)
        assert len(list(tmp_path.iterdir())) == 47


def test_an_idle_worker_that_died_is_replaced() -> None:
    with started(make(get("fedavg"), {})) as run:
        expected = outcome(run)
    with started(make(get("fedavg"), {}), pool(2)) as run:
        run.step()
        for pid in run.backend.pids():  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
        check_equal(expected, outcome(run), "after both idle workers died")


@dataclass(frozen=True, kw_only=True)
class Failing(Algorithm):
    name = "failing"
    summary = "for tests"
    leaves = {"w": "model", "n": "count"}

    user: bool = False

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        if self.user:
            raise UserError("method.failing.user: must be false")
        raise ValueError("no such luck")


@pytest.mark.parametrize("backend", [Serial, Process])
def test_an_error_says_where_it_happened(backend: Any) -> None:
    with (
        started(make(Failing, {}), backend(trivial_federation(), small_model)) as run,
        pytest.raises(
            ClientError, match=r"failing, round 1, client \d, train: ValueError: no such luck"
        ),
    ):
        run.step()


@pytest.mark.parametrize("backend", [Serial, Process])
def test_a_users_mistake_stays_one(backend: Any) -> None:
    algorithm = make(Failing, {"user": True})
    with (
        started(algorithm, backend(trivial_federation(), small_model)) as run,
        pytest.raises(UserError, match=r"^method.failing.user: must be false$"),
    ):
        run.step()


def test_the_callers_threads_and_random_state_are_left_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        with started(make(get("pgfed"), {})) as run:
            run.step()
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.rand(3), expected)
    finally:
        torch.set_num_threads(before)


ENDLESS = """
import sys
from pgfed.methods.registry import get
from pgfed.engine.backends.process import Process
from pgfed.testing import TRAIN, make, small_model, started, trivial_federation
from dataclasses import replace
long = make(get("fedavg"), {"train": replace(TRAIN, epochs=10**9)})
with started(long, Process(trivial_federation(), small_model, workers=2)) as run:
    print(*run.backend.pids(), flush=True)
    run.step()
"""


def alive(pid: int) -> bool:
    """Running, and not a zombie that waits for a parent to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent(how: signal.Signals) -> None:
    shared_before = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(alive(pid) for pid in workers)
        parent.send_signal(how)
        parent.wait(timeout=30)
        deadline = time.monotonic() + 20
        while any(alive(pid) for pid in workers):
            assert time.monotonic() < deadline, f"workers {workers} are still running"
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout is not None:
            parent.stdout.close()
    left = {name for name in set(os.listdir("/dev/shm")) - shared_before if "torch" in name}
    assert not left
