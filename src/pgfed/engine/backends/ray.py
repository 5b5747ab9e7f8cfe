"""Actors on a Ray cluster, one thread each: beyond one machine, with the same results.

An actor serves many clients, one at a time. It holds the data and the model; a client's state and
message travel to it and back, so an actor or a node that dies takes nothing with it: another actor
does the client's work again, with the same result. Clients with the most work go first.

Every node needs the same versions of pgfed and torch, and a user's own models and methods where
Python finds them. Ray isolates nobody from anybody: a cluster belongs to one owner.
"""

from __future__ import annotations

import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from traceback import format_exception
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pgfed.data.federation import Federation
from pgfed.engine.backends.cluster import Cluster
from pgfed.engine.backends.pool import Died, Own, Pool
from pgfed.engine.backends.process import available_cores
from pgfed.engine.backends.queue import ATTEMPTS
from pgfed.engine.client import ClientError, ClientSide, become_worker
from pgfed.errors import UserError
from pgfed.methods.values import Message, State
from pgfed.model.kinds import CLASSES
from pgfed.model.networks import Factory
from pgfed.model.objectives import Objective
from pgfed.model.task import Task
from pgfed.version import __version__

START_SECONDS = 120.0  # how long actors may take to start, and a cluster to offer room for them
ALIGNMENT = 64  # bytes; torch's own on CPUs, and the widest vector's

Packed = dict[str, Any]  # a flat dictionary with arrays in place of tensors


@dataclass(frozen=True)
class _Trouble:
    """An error as an actor reports it: exceptions themselves do not survive Ray unchanged."""

    message: str
    user: bool
    trace: str = ""

    @classmethod
    def of(cls, error: Exception) -> _Trouble:
        return cls(str(error), isinstance(error, UserError), "".join(format_exception(error)))

    def error(self) -> UserError | ClientError:
        if self.user:
            return UserError(self.message)
        error = ClientError(self.message)
        error.add_note(self.trace)  # what `--debug` shows
        return error


@dataclass(frozen=True)
class _Start:
    """What a run's client side is made of again in an actor."""

    side: ClientSide  # without its data, model and start, which are:
    # The module itself and not its factory: nothing the factory read or drew can differ.
    module: nn.Module
    head: str
    objective: Objective
    w0: NDArray[np.float32]

    @classmethod
    def of(cls, side: ClientSide) -> _Start:
        task = side.task
        bare = replace(side, task=None, federation=None, w0=None)  # type: ignore[arg-type]
        return cls(bare, task.module, task.head_name, task.objective, _array(side.w0))

    def side_on(self, federation: Federation, device: str) -> ClientSide:
        task = Task(
            self.module,
            federation.input_shape,
            example=federation.example(),
            head=self.head,
            objective=self.objective,
            device=device,
        )
        w0 = _copy(self.w0).to(task.device)
        return replace(self.side, task=task, federation=federation, w0=w0)


class Ray(Pool[Any, Any]):
    """Actors on a Ray cluster.

    ``address``: "auto" (the cluster this machine is a node of) or "host:port"; empty: an instance
    of our own on this machine, reachable from this machine only. ``workers = 0``: one actor per
    core of the cluster, or ``per_device`` per GPU where ``device`` is cuda. The server's arithmetic
    stays on the CPU. Actors and data stay in place from one run to the next, until `end`.
    """

    def __init__(
        self,
        federation: Federation,
        model: str | Factory,
        *,
        workers: int = 0,
        per_device: int = 1,
        address: str = "",
        device: torch.device | str = "cpu",
        head: str | None = None,
        objective: Objective = CLASSES,
    ) -> None:
        super().__init__(federation, model, head=head, objective=objective)
        if torch.device(device).type not in ("cpu", "cuda"):
            raise UserError(f"engine.device: found {str(device)!r}; allowed with Ray: cpu, cuda")
        self.workers = workers  # 0: known once connected
        self._wanted, self._per_gpu = workers, per_device
        self._cluster = Cluster(address, workers or available_cores())
        self._actor_device = str(device)
        self._kind = "GPU" if torch.device(device).type == "cuda" else "CPU"
        self._data: Any = None
        self._run: Any = None
        self._actors: list[Any] = []
        self._idle: list[Any] = []
        self._loading: dict[Any, Any] = {}  # call of `load` -> its actor
        self._early_deaths = 0  # in a row, of actors that had not yet started

    @property
    def _ray(self) -> Any:
        return self._cluster.ray

    def _connect(self) -> None:
        self._cluster.connect()
        found = int(self._ray.cluster_resources().get(self._kind, 0))
        gpu = self._kind == "GPU"
        self.workers = self._wanted or found * (self._per_gpu if gpu else 1)
        if not self.workers:
            raise UserError(
                f"engine.address: the Ray cluster has no {self._kind}s to run clients on"
            )
        self._data = self._ray.put(
            (
                replace(self.federation, x=torch.empty(0), y=torch.empty(0)),
                _array(self.federation.x),
                _array(self.federation.y),
            )
        )
        # A dead actor is replaced here and not by Ray: its work goes to another one at once.
        self._actor_class = self._ray.remote(
            num_cpus=1, num_gpus=1 / self._per_gpu if gpu else 0, max_restarts=0, max_task_retries=0
        )(_Actor)

    # -- actors --------------------------------------------------------------------------------

    def begin(self, side: ClientSide) -> None:
        if self._ray is None:
            try:
                self._connect()
            except BaseException:
                self.end()
                raise
        try:
            self._run = self._ray.put(_Start.of(side))
        except TypeError as error:
            raise UserError(
                "engine.backend: the model or method cannot be sent to Ray's actors: "
                f"{error.__cause__ or error}"
            ) from None
        fresh = not self._actors
        self._idle, self._loading = [], {}
        for actor in self._actors:
            self._load(actor)
        while len(self._actors) < self.workers:
            self._start()
        # Starting is not training: it is waited for here, so that round 1 takes no longer. On a
        # busy cluster the run begins with the actors that found room; the others may come later.
        while self._loading and (fresh or not self._idle):
            ready, _ = self._ray.wait(list(self._loading), timeout=START_SECONDS)
            if not ready:
                break
            self._loaded(ready[0])
        if not self._idle:
            raise self._no_room()

    def _start(self) -> None:
        actor = self._actor_class.remote(sys.path)
        self._actors.append(actor)
        self._load(actor)

    def _load(self, actor: Any) -> None:
        # A reference within a list is not followed by Ray: the actor looks it up, and reports.
        call = actor.load.remote(__version__, self._actor_device, [self._data, self._run])
        self._loading[call] = actor

    def _loaded(self, call: Any) -> None:
        """An actor has started, or failed to."""
        actor = self._loading.pop(call)
        try:
            trouble = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._early_deaths += 1
            if self._early_deaths >= ATTEMPTS:
                raise UserError(
                    f"engine.backend: Ray's actors die as they start (is the same version of pgfed "
                    f"installed on every node?): {_last_line(error)}"
                ) from None
            self._kill(actor)
            self._start()
            return
        if trouble is not None:
            raise trouble.error()
        self._early_deaths = 0
        self._idle.append(actor)

    def _kill(self, actor: Any) -> None:
        self._actors.remove(actor)
        self._ray.kill(actor)

    def _no_room(self) -> UserError:
        return UserError(
            f"engine.address: no actor could start on the Ray cluster within {START_SECONDS:.0f} s;"
            f" free: {self._ray.available_resources().get(self._kind, 0):.0f} "
            f"of {self.workers} {'GPUs' if self._kind == 'GPU' else 'cores'}"
        )

    # -- work ----------------------------------------------------------------------------------

    def _open(self, common: Message) -> Any:
        return self._ray.put(_pack(common))

    def _send(
        self, actor: Any, stage: str, round: int, work: list[int], common: Any, own: Own
    ) -> Any:
        packed = [(None if s is None else _pack(s), _pack(message)) for s, message in own]
        return actor.call.remote(stage, round, work, [common], packed)

    def _wait(self, calls: list[Any]) -> Sequence[Any]:
        timeout = None if calls else START_SECONDS
        ready, _ = self._ray.wait([*calls, *self._loading], timeout=timeout)
        if not ready:
            raise self._no_room()
        if ready[0] in self._loading:
            self._loaded(ready[0])
            return []
        return list(ready)

    def _receive(
        self, call: Any, stage: str, round: int, work: list[int]
    ) -> Iterator[list[State]] | UserError | ClientError:
        try:
            results = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            return ClientError(f"round {round}, clients {work}, {stage}: {_last_line(error)}")
        except self._ray.exceptions.RayError as error:  # the actor, its node, or the reply
            raise Died(f"Ray's actor ({type(error).__name__})") from None
        if isinstance(results, _Trouble):
            return results.error()
        return ([_unpack(part) for part in parts] for parts in results)

    def _abandon(self, actors: Sequence[Any]) -> None:
        for actor in actors:  # free again when done with it
            if actor in self._actors:
                self._load(actor)

    def end(self) -> None:
        if self._ray is None:
            return
        if self._ray.is_initialized():
            for actor in self._actors:
                self._ray.kill(actor)
        self._actors, self._idle, self._loading = [], [], {}
        self._data = self._run = None
        self._cluster.close()


class _Actor:
    """The client side of a run, on one core or GPU somewhere in the cluster."""

    def __init__(self, path: list[str]) -> None:
        # What the driver can import (a user's own model), an actor can where the folders exist.
        sys.path += [folder for folder in path if folder not in sys.path]
        become_worker()
        self._federation: Federation | None = None
        self._known = ""
        self._common: Message = {}

    def load(self, version: str, device: str, references: list[Any]) -> _Trouble | None:
        """Make ready for the clients of a run."""
        import ray

        data, run = references
        try:
            if version != __version__:
                raise UserError(
                    f"engine.backend: pgfed is {version} here and {__version__} on the Ray "
                    f"node {socket.gethostname()}; every node needs the same version"
                )
            if self._federation is None:
                federation, x, y = ray.get(data)
                self._federation = replace(federation, x=_view(x), y=_view(y)).to(device)
            start: _Start = ray.get(run)
            self._side = start.side_on(self._federation, device)
        except UserError as error:
            return _Trouble.of(error)
        except Exception as error:
            return _Trouble(
                f"engine.backend: the run cannot be loaded on the Ray node {socket.gethostname()} "
                f"(own models and methods must be importable there): {_last_line(error)}",
                user=True,
            )
        return None

    def call(
        self,
        stage: str,
        round: int,
        clients: list[int],
        common: list[Any],
        own: list[tuple[Packed | None, Packed]],
    ) -> list[list[Packed]] | _Trouble:
        """One stage of some clients' work."""
        import ray

        (reference,) = common
        if reference.hex() != self._known:
            self._common, self._known = _unpack(ray.get(reference)), reference.hex()
        results = []
        try:
            for client, (state, message) in zip(clients, own, strict=True):
                parts = self._side.call(
                    stage,
                    client,
                    round,
                    None if state is None else _unpack(state),
                    {**self._common, **_unpack(message)},
                )
                results.append([_pack(part) for part in parts])
        except Exception as error:
            return _Trouble.of(error)
        return results


# -- tensors as arrays, which Ray carries without copies -------------------------------------------


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().contiguous().numpy()


def _pack(values: State) -> Packed:
    return {k: _array(v) if isinstance(v, Tensor) else v for k, v in values.items()}


def _unpack(values: Packed) -> State:
    return {k: _copy(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}


def _copy(array: NDArray[Any]) -> Tensor:
    """What Ray delivers is read-only and lies anywhere: into memory of its own, aligned by torch,
    as results must not depend on where a message happened to lie."""
    tensor = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    tensor.numpy()[...] = array
    return tensor


def _view(array: NDArray[Any]) -> Tensor:
    """The samples, in memory that all actors of a node share; nobody writes to them."""
    if array.ctypes.data % ALIGNMENT:
        return _copy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
