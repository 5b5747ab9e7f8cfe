"""Ray gives the bits of one process, whatever dies meanwhile. Real instances, on loopback."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from any_model import ANY_MODEL
from pgfed.data.datasets import load
from pgfed.data.federation import Federation, Shard, build
from pgfed.engine.backends.base import Backend, Serial
from pgfed.engine.backends.queue import Queue
from pgfed.engine.backends.ray import Ray
from pgfed.engine.client import ClientError
from pgfed.engine.exchange.compression import Compression
from pgfed.engine.rounds import Run
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm
from pgfed.methods.fedavg import FedAvg
from pgfed.methods.pgfed_mo import PGFedMo
from pgfed.methods.randomness import Rng, draw_cohort
from pgfed.methods.registry import get
from pgfed.methods.settings import TrainConfig
from pgfed.methods.values import Message, State, Update
from pgfed.model.task import Task
from pgfed.testing import check_equal, outcome

SEED, CLIENTS, COHORT = 3, 6, 3
TRAIN = TrainConfig(epochs=1, batch_size=16, lr=0.05)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build(load("digits", None), clients=CLIENTS, seed=1)


def make_run(algorithm: Algorithm, backend: Backend, *, rounds: int = 3, **more: Any) -> Run:
    clients = backend.federation
    return Run(algorithm, clients, backend, seed=SEED, rounds=rounds, cohort=COHORT, **more)


def run_all(algorithm: Algorithm, backend: Backend) -> dict[str, Any]:
    return outcome(make_run(algorithm, backend))


# -- methods that go wrong ---------------------------------------------------------------------


def first_time(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class ActorDies(PGFedMo):
    """In round 2, the process that serves ``client`` ends: once, or without ``marker`` always."""

    client: int
    marker: str = ""

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        due = rng.round == 2 and rng.client == self.client
        if due and (not self.marker or first_time(self.marker)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local_update(task, state, message, data, rng)


@dataclass(frozen=True, kw_only=True)
class NodeDies(PGFedMo):
    """In round 2, the first actor that does not run on node ``spare`` loses its node."""

    spare: str
    marker: str

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        import ray

        here = ray.get_runtime_context().get_node_id()
        if rng.round == 2 and here != self.spare and first_time(self.marker):
            node = os.getppid()
            assert Path(f"/proc/{node}/comm").read_text().strip() == "raylet"
            os.kill(node, signal.SIGKILL)
            threading.Event().wait(60)  # an actor ends with its node
            raise AssertionError("outlived the node")
        return super().local_update(task, state, message, data, rng)


@dataclass(frozen=True, kw_only=True)
class Raises(FedAvg):
    user: bool

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        raise UserError("method: needs more data") if self.user else ZeroDivisionError("oh")


@dataclass(frozen=True, kw_only=True)
class WritesToMessage(FedAvg):
    """Breaks the contract, on memory that must be its own."""

    def local_update(
        self, task: Task, state: State, message: Message, data: Shard, rng: Rng
    ) -> tuple[State, Update]:
        message["w"].add_(0.0)
        return super().local_update(task, state, message, data, rng)


class Unsendable(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.base = nn.Linear(features, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.base(x.flatten(1)))
        return out


# -- an instance of our own --------------------------------------------------------------------


def on_terminate(number: int, frame: Any) -> None:
    raise SystemExit(number)


@pytest.fixture(scope="class")
def ray(federation: Federation) -> Iterator[Ray]:
    before = signal.signal(signal.SIGTERM, on_terminate)
    with Ray(federation, "mlp", workers=2) as backend:
        yield backend
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def pgfed_mo(federation: Federation) -> dict[str, Any]:
    """What must come out, whatever dies."""
    return run_all(PGFedMo(train=TRAIN), Serial(federation, "mlp"))


class TestOwnInstance:
    @pytest.mark.parametrize("method", ANY_MODEL)
    def test_same_bits_as_serial(self, method: str, ray: Ray, federation: Federation) -> None:
        algorithm = get(method)(train=TRAIN)
        expected = run_all(algorithm, Serial(federation, "mlp"))
        check_equal(expected, run_all(algorithm, ray), "serial and Ray")

    @pytest.mark.parametrize("kind", ["int8", "top-k"])
    def test_same_bits_with_fewer_bytes(self, kind: str, ray: Ray, federation: Federation) -> None:
        results = [
            outcome(make_run(PGFedMo(train=TRAIN), backend, compression=Compression(kind, 0.1)))
            for backend in (Serial(federation, "mlp"), ray)
        ]
        check_equal(results[0], results[1], "serial and Ray, compressed")

    def test_a_killed_actor_changes_nothing(
        self, ray: Ray, pgfed_mo: dict[str, Any], tmp_path: Path
    ) -> None:
        marker = tmp_path / "died"
        client = draw_cohort(SEED, 2, CLIENTS, COHORT)[1]
        dies = ActorDies(train=TRAIN, client=client, marker=str(marker))
        check_equal(pgfed_mo, run_all(dies, ray), "with a killed actor")
        assert marker.exists()

    @pytest.mark.nightly
    def test_work_that_always_kills_ends_the_run(self, ray: Ray, pgfed_mo: dict[str, Any]) -> None:
        client = draw_cohort(SEED, 2, CLIENTS, COHORT)[0]
        run = make_run(ActorDies(train=TRAIN, client=client), ray)
        run.step()
        with pytest.raises(ClientError, match=f"round 2, client {client}, train: .* died 3 times"):
            run.step()
        check_equal(pgfed_mo, run_all(PGFedMo(train=TRAIN), ray), "after a run that failed")

    @pytest.mark.parametrize(
        ("user", "kind", "message"),
        [
            (True, UserError, r"^method: needs more data$"),
            (False, ClientError, r"^fedavg, round 1, client \d, train: ZeroDivisionError: oh\n"),
        ],
    )
    def test_errors_keep_their_class(
        self, user: bool, kind: type[Exception], message: str, ray: Ray
    ) -> None:
        with pytest.raises(kind, match=message) as caught:
            make_run(Raises(train=TRAIN, user=user), ray).step()
        assert type(caught.value) is kind
        traces = getattr(caught.value, "__notes__", [])
        assert user != any('raise UserError("method' in trace for trace in traces)

    def test_what_arrives_is_the_clients_own(self, ray: Ray, federation: Federation) -> None:
        expected = run_all(FedAvg(train=TRAIN), Serial(federation, "mlp"))
        check_equal(expected, run_all(WritesToMessage(train=TRAIN), ray), "written to")

    def test_a_model_that_cannot_travel(self, ray: Ray, federation: Federation) -> None:
        def factory(shape: tuple[int, ...], classes: int) -> nn.Module:
            return Unsendable(int(torch.Size(shape).numel()), classes)

        local = Ray(federation, factory, workers=2)  # joins the instance that is there
        with local, pytest.raises(UserError, match=r"cannot be sent to Ray's actors: .*lock"):
            make_run(FedAvg(train=TRAIN), local)

    def test_another_cluster_than_the_connected_one(self, ray: Ray, federation: Federation) -> None:
        make_run(FedAvg(train=TRAIN), ray)
        with pytest.raises(UserError, match=r"engine.address: .*already connected"):
            make_run(FedAvg(train=TRAIN), Ray(federation, "mlp", address="127.0.0.1:1"))

    def test_it_listens_on_loopback_only(self, ray: Ray) -> None:
        import ray as package

        make_run(FedAvg(train=TRAIN), ray)
        assert package.get_runtime_context().gcs_address.startswith("127.0.0.1:")

    def test_the_callers_signal_handler_stays(self, ray: Ray) -> None:
        make_run(FedAvg(train=TRAIN), ray)
        assert signal.getsignal(signal.SIGTERM) is on_terminate

    def test_nothing_is_left_behind(self, ray: Ray) -> None:
        import ray as package

        make_run(FedAvg(train=TRAIN), ray)
        folder = ray._cluster.folder
        assert folder is not None
        assert os.path.isdir(folder)
        assert processes_in(folder)
        ray.end()
        assert not package.is_initialized()
        assert not os.path.exists(folder)
        assert ended(folder)


def processes_in(folder: str) -> list[int]:
    """The processes whose command line names this folder, as Ray's do."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found


def ended(folder: str, seconds: float = 30.0) -> bool:
    """Wait for processes that were told to end."""
    deadline = time.monotonic() + seconds
    while processes_in(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# -- a cluster of two nodes --------------------------------------------------------------------


@pytest.fixture(scope="class")
def cluster() -> Iterator[Any]:
    """Two nodes with one core each, as `ray start` starts them, but on loopback."""
    folder = tempfile.mkdtemp(prefix="pgfed-ray-", dir="/tmp")
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    node = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        with quiet():
            import ray._private.ray_constants as constants
            from ray.cluster_utils import Cluster

            # Or Ray takes 127.0.0.1 in an address for the machine's outward one.
            patch.setattr(constants, "ENABLE_RAY_CLUSTER", False)
            cluster = Cluster(
                initialize_head=True,
                head_node_args={**node, "include_dashboard": False, "_system_config": quick},
            )
            cluster.add_node(**node)
        yield cluster
        with quiet():
            cluster.shutdown()
    assert ended(folder)
    shutil.rmtree(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Ray leaves files and processes of its own to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield
        gc.collect()


class TestCluster:
    def test_a_killed_node_changes_nothing(
        self, cluster: Any, federation: Federation, pgfed_mo: dict[str, Any], tmp_path: Path
    ) -> None:
        import ray as package

        marker = tmp_path / "died"
        dies = NodeDies(train=TRAIN, spare=cluster.head_node.node_id, marker=str(marker))
        with Ray(federation, "mlp", address=cluster.address) as backend:
            run = make_run(dies, backend)
            assert backend.workers == 2
            check_equal(pgfed_mo, outcome(run), "with a killed node")
            assert marker.exists()
            # The next run makes do with the node that is left.
            check_equal(pgfed_mo, run_all(PGFedMo(train=TRAIN), backend), "one node")
        assert not package.is_initialized()

    def test_a_program_that_is_connected_stays_so(
        self, cluster: Any, federation: Federation
    ) -> None:
        import ray as package

        with quiet():
            package.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            with Ray(federation, "mlp", address=cluster.address, workers=1) as backend:
                make_run(FedAvg(train=TRAIN), backend).step()
            assert package.is_initialized()
        finally:
            with quiet():
                package.shutdown()


# -- without any instance ----------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1:{closed}", "nowhere", "127.0.0.1:port"])
def test_no_cluster_at_the_address(address: str, federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    backend = Ray(federation, "mlp", address=address.format(closed=closed))
    with pytest.raises(UserError, match=r"engine.address: no Ray cluster at .* allowed: auto"):
        make_run(FedAvg(train=TRAIN), backend)


def test_ray_is_not_installed(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'pgfed\[ray\]'"):
        make_run(FedAvg(train=TRAIN), Ray(federation, "mlp"))


def test_other_devices_are_refused(federation: Federation) -> None:
    with pytest.raises(UserError, match=r"engine\.device: found 'xpu'"):
        Ray(federation, "mlp", device="xpu")


def test_an_end_without_a_beginning(federation: Federation) -> None:
    backend = Ray(federation, "mlp")
    backend.end()
    backend.end()


# -- the queue that Ray and the worker processes share -------------------------------------------


def test_the_longest_go_first_and_the_many_in_groups() -> None:
    n = np.array([3, 9, 5, 9])
    queue = Queue("train", 1, range(4), n, workers=2)
    assert [queue.take() for _ in range(4)] == [[1], [3], [2], [0]]
    assert not queue
    many = Queue("score", 1, range(128), np.ones(128, dtype=np.int64), workers=2)
    assert [many.take() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_deadly_client_is_named_and_takes_nobody_along() -> None:
    queue = Queue("score", 7, range(64), np.ones(64, dtype=np.int64), workers=1)
    served: list[int] = []

    def serve() -> None:
        while queue:
            work = queue.take()
            if 5 in work:
                queue.put_back(work, "the actor")
            else:
                served.extend(work)

    with pytest.raises(ClientError, match=r"round 7, client 5, score: the actor died 3 times"):
        serve()
    assert served == [0, 1, 2, 3, 4]
