"""The process at a site that does the work its SuperNode receives.

It stands in the place of Flower's SuperExec. That one starts a process per message, and runs the
code that came with the run; this one stays, keeps the data loaded, and runs the installed pgfed
only: no code from the server is executed at a site.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pgfed.engine.client import become_worker
from pgfed.errors import UserError
from pgfed.federation.flower.apps import ACTION
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.site.answers import Site

POLL = 0.25  # seconds between two looks at the SuperNode's queue
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})

log = logging.getLogger(__name__)


def work(site: Site, supernode: str, secret: bytes) -> None:
    """Take messages from the SuperNode at this address and answer them, for ever."""
    queue = _client(
        supernode, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while True:
        try:
            token = queue.AcquireTask(request).token
        except httpx.TransportError:  # the SuperNode is not up yet, or starts again
            token = ""
        if token:
            _do(site, _client(supernode, RuntimeTokenHttpInterceptor(token)))
        else:
            time.sleep(POLL)


def _do(site: Site, task: RuntimeHttpClient) -> None:
    """Answer one message. What goes wrong on the way costs this site the round."""
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(task))
    heartbeat.start()
    try:
        message, context, _, _ = pull_task_input(task)
        push_message(task, _reply(site, message, context), context)
        push_task_output(task, context, SubStatus.COMPLETED, "")
    except (httpx.HTTPError, RuntimeError) as error:
        log.warning("a message could not be answered: %s", error)
    finally:
        with contextlib.suppress(RuntimeError):  # it had stopped by itself
            heartbeat.stop()
        task.close()


def _reply(site: Site, message: Message, context: Context) -> Message:
    if message.metadata.message_type != f"query.{ACTION}" or not message.has_content():
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "not a message of pgfed")
        return Message(error, reply_to=message)
    return Message(site.answer(message.content, context.node_id), reply_to=message)


def _client(supernode: str, identity: ProtobufClientInterceptor) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=supernode,
        insecure=True,  # on this machine only; the secret and the token protect it
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="pgfed"), identity],
    )


def main() -> int:
    folder, data, supernode, secret = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # Ctrl+C is the parent's to handle; Flower's heartbeat raises it too, for a task given up on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_worker()
    try:
        site = Site(SiteFolder(Path(folder)), data)
    except UserError as error:
        print("pgfed:", error, file=sys.stderr)
        return 2
    log.info(
        "client %d: %d samples to train on, %d to test on",
        site.client,
        site.federation.n_train[site.client],
        site.federation.n_test[site.client],
    )
    work(site, supernode, Path(secret).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
