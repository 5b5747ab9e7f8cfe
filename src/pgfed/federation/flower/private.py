"""All that pgfed uses of Flower beyond its documented packages; no other module does.

Documented are `flwr.app`, `flwr.serverapp`, `flwr.clientapp` and the commands. What is here may
move with any release of Flower, so pyproject.toml bounds the version, and a new release is this
file's work. tests/federation/test_private.py names each need, and says what breaks without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pgfed.engine.durable import sha256

COMPONENT = "pgfed"  # as it calls itself to Flower
FLEET = "/v1/fleet/"  # where the SuperLink answers SuperNodes
HEALTH = "/health"
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})

# An ASGI application, as uvicorn serves it
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


# -- the SuperLink -----------------------------------------------------------------------------


def run_superlink(around: Callable[[App], App]) -> None:
    """As `flower-superlink`, with the same arguments; what it serves is put into ``around``."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    serve = uvicorn.run
    uvicorn.run = lambda app, **options: serve(around(app), **options)
    flower_superlink()


class ControlClient:
    """The SuperLink's Control interface. All of it raises httpx.HTTPError."""

    def __init__(self, address: str, *, insecure: bool, authority: bytes | None) -> None:
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=insecure,
            root_certificates=authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=COMPONENT)],
        )

    def close(self) -> None:
        self._client.close()

    def nodes(self) -> list[Any]:
        """Each with public_key (PEM), node_id, status and unregistered_at."""
        return list(self._client.ListNodes(ListNodesRequest()).nodes_info)

    def register(self, key: bytes) -> None:
        self._client.RegisterNode(RegisterNodeRequest(public_key=key))

    def unregister(self, node: int) -> None:
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def start(self, app: Path, options: dict[str, Any]) -> int:
        """Start the app in this folder with these options; the number of Flower's run."""
        from flwr.cli.build import build_fab_from_disk

        bundle = build_fab_from_disk(app)
        started = self._client.StartRun(
            StartRunRequest(
                fab=fab_to_proto(Fab(sha256(bundle), bundle, {})),
                override_config=user_config_to_proto(options),
                federation="",
            )
        )
        return int(started.run_id)

    def state(self, run: int) -> str:
        """pending, starting, running, or finished:..."""
        status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return f"{status.status}:{status.sub_status}" if status.sub_status else str(status.status)


# -- a SuperNode -------------------------------------------------------------------------------


class Queue:
    """The messages that wait at the SuperNode at this address for its worker."""

    def __init__(self, supernode: str, secret: bytes) -> None:
        self._supernode = supernode
        self._client = _runtime(
            supernode,
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE),
        )

    def take(self) -> Task | None:
        """The next one, if one is there."""
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        try:
            token = self._client.AcquireTask(request).token
        except httpx.TransportError:  # the SuperNode is not up yet, or starts again
            return None
        if not token:
            return None
        return Task(_runtime(self._supernode, RuntimeTokenHttpInterceptor(token)))


class Task:
    """One message that was taken, to be answered once."""

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client = client

    def answer(self, reply: Callable[[Message, Context], Message]) -> None:
        """Answer with what ``reply`` makes of it; raises httpx.HTTPError or RuntimeError.

        Meanwhile the SuperNode hears that somebody is at work.
        """
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(self._client))
        heartbeat.start()
        try:
            message, context, _, _ = pull_task_input(self._client)
            push_message(self._client, reply(message, context), context)
            push_task_output(self._client, context, SubStatus.COMPLETED, "")
        finally:
            with contextlib.suppress(RuntimeError):  # it had stopped by itself
                heartbeat.stop()
            self._client.close()


def refusal(message: Message, why: str) -> Message:
    """The answer to what cannot be answered."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)


def _runtime(supernode: str, identity: ProtobufClientInterceptor) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=supernode,
        insecure=True,  # on this machine only; the secret and the token protect it
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=COMPONENT), identity],
    )
