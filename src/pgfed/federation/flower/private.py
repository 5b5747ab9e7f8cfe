"""What pgfed uses of Flower beyond its documented packages; `link` has the server's part of it.

Documented are `flwr.app`, `flwr.serverapp`, `flwr.clientapp` and the commands. What is in these two
files, and in no other, may move with any release of Flower: pyproject.toml bounds the version, and
a new release is their work. tests/federation/test_private.py names each need, and says what breaks
without it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from pgfed.federation.flower.records import UNREADABLE

FLEET = "/v1/fleet/"  # where Flower's interface for sites is
KEY, STAMP, SIGNATURE = (
    name.encode()
    for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
)
AHEAD = SYSTEM_TIME_TOLERANCE  # seconds that a site's clock may be ahead of the server's
BEHIND = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE  # and behind
CHUNK = 5 * 2**20  # bytes of an array that travel in one request
MAX_OBJECTS = 10_000  # of one message: more than any model of ours is split into
LONGEST = CHUNK + (1 << 16)  # bytes of an answer of the server's
logging.getLogger("flwr").setLevel(logging.CRITICAL)  # we say what happens, in our own words


class Unreadable(Exception):
    """What was received does not make a message; says why."""


def check_arrays(contents: Mapping[str, bytes], most: int) -> None:
    """An array may name one chunk many times, so that few bytes on the way are many in memory."""
    total = 0
    for content in contents.values():
        kind, children, length = get_object_head_values_from_object_content(content)
        if kind == "Array":
            body = json.loads(content[len(content) - length :])
            total += sum(len(contents[children[i]]) for i in body["arraychunk_ids"])
        if total > most:
            raise Unreadable(f"its arrays take more than the {most} bytes expected")


# -- a site ------------------------------------------------------------------------------------


class Fleet:
    """A site's connection. All of it raises httpx.HTTPError, or Unreadable."""

    def __init__(
        self,
        address: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        insecure: bool,
        authority: bytes | None,
    ) -> None:
        public = key.public_key()
        self._key = public_key_to_bytes(public)
        self._client = FleetHttpClient.from_server_address(
            address, insecure, authority, interceptors=[NodeAuthHttpInterceptor(key, public)]
        )
        # Flower would follow the server to any address, and read whatever it sends.
        self._client._client.follow_redirects = False
        self._client._client.event_hooks = {"response": [_check_length]}
        self._node = Node()

    @property
    def node(self) -> int:
        """As the server calls this site; 0 until it has come."""
        return int(self._node.node_id)

    def come(self) -> None:
        interval = HEARTBEAT_DEFAULT_INTERVAL
        request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=interval)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)

    def go(self) -> None:
        self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node))

    def live(self) -> None:
        """Tell that this site is there while it is at work."""
        interval = HEARTBEAT_DEFAULT_INTERVAL
        self._client.SendNodeHeartbeat(
            SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=interval)
        )

    def receive(self, seconds: float, most: int) -> Message | None:
        """The next message, whole; None if there is none within the server's patience.

        ``most``: bytes that it may have.
        """
        try:
            return self._receive(seconds, most)
        except (ObjectPullError, *UNREADABLE) as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from None

    def _receive(self, seconds: float, most: int) -> Message | None:
        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        pull = make_pull_object_fn_protobuf(
            self._client.PullObject, self._node, head.metadata.run_id
        )
        names = list({tree.object_id for tree in iterate_object_tree(tree)})
        if len(names) > MAX_OBJECTS:
            raise Unreadable(f"more than {MAX_OBJECTS} objects")
        contents = pull_objects(names, _bounded(pull, most), max_time=seconds)
        check_arrays(contents, most)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message):
            raise Unreadable(f"a {type(message).__name__}, not a message")
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def answer(self, reply: Message) -> None:
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            pushed = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, reply.metadata.run_id, pushed.session_id
            )
            try:
                push_objects(objects, push, object_ids_to_push=set(pushed.objects_to_push))
            except ObjectPushError as error:
                raise Unreadable(str(error)) from None

    def close(self) -> None:
        self._client.close()


def _check_length(response: httpx.Response) -> None:
    """Before the body is read. What is encoded, or sent in chunks, may be longer than it says."""
    length = response.headers.get("content-length", "")
    hidden = {"content-encoding", "transfer-encoding"} & set(response.headers)
    if hidden or not length.isdecimal() or int(length) > LONGEST:
        why = f"its answer has no length, or one above {LONGEST} bytes"
        raise httpx.RemoteProtocolError(why, request=response.request)


def _bounded(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    """The same, until so many bytes have come."""
    left, lock = most, threading.Lock()

    def counted(name: str) -> bytes:
        nonlocal left
        content = pull(name)
        with lock:
            left -= len(content)
            if left < 0:
                raise ObjectPullError(name, f"the message is larger than {most} bytes")
        return content

    return counted


def refusal(message: Message, why: str) -> Message:
    """The answer to what cannot be answered."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
