"""All that the server uses of Flower beyond its documented packages, apart from `private`.

A site does not import it: Flower's state brings a database's library with it.
"""

from __future__ import annotations

from types import SimpleNamespace

from fastapi import FastAPI
from flwr.app import Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    SubStatus,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    validate_object_content,
)
from flwr.supercore.object_store import NoObjectInStoreError, ObjectStore
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from pgfed.federation.flower.private import MAX_OBJECTS, Unreadable, check_arrays
from pgfed.federation.flower.shelf import Shelf


class Store(ObjectStore):
    """What sites are sent on one shelf, what they send on another.

    Flower keeps both together, and believes what a site says of the children of an object: one
    that announces another's array with made-up children spoils it. Here the shelf that sites read
    is written by the server alone, and of the other, nothing but bytes is believed, by their hash.
    """

    def __init__(self) -> None:
        self.asks, self.replies = Shelf(), Shelf()
        self.trees: dict[str, ObjectTree] = {}

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        names = {tree.object_id for tree in iterate_object_tree(object_tree)}
        return self.replies.announce(object_tree.object_id, names)

    def put(self, object_id: str, object_content: bytes) -> None:
        if object_id != get_object_id(object_content):
            raise ValueError("the content has another hash")
        validate_object_content(object_content)
        self.replies.put(object_id, object_content)

    def get_object_tree(self, object_id: str) -> ObjectTree:
        if object_id not in self.trees:
            raise NoObjectInStoreError(object_id)
        return self.trees[object_id]

    def get(self, object_id: str) -> bytes | None:
        return self.asks.get(object_id)

    def delete(self, object_id: str) -> None:
        """A site has its message. It stays until it is answered: the site may come again."""

    def delete_objects_in_run(self, run_id: int) -> None:
        self.clear()

    def clear(self) -> None:
        self.trees.clear()
        self.asks.clear()
        self.replies.clear()

    def __contains__(self, object_id: str) -> bool:
        return self.asks.get(object_id) is not None

    def __len__(self) -> int:
        return len(self.asks) + len(self.replies)


class Replies(InMemoryLinkState):
    """Flower's state, which takes from sites replies to what they were asked, and nothing else.

    Flower itself also takes messages that a site writes in the server's name, and objects that hang
    on another name than their reply's: these would stay for as long as the run. So would what is
    noted of a reply whose objects do not come.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(NoOpFederationManager(simulation=False), store)
        self._objects = store.replies

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        about = message.metadata
        answers = about.reply_to_message_id and about.message_id == object_tree.object_id
        if answers:
            stored, missing = super().store_message_and_object_tree(
                message, object_tree, session_id
            )
            if stored:
                return stored, missing
        self._cleanup_push_session(session_id, cleanup_messages=False)
        return False, []

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """With all of their replies, whether somebody has looked at these or not."""
        with self.lock:
            known = self.message_ins_id_to_message_res_id
            replies = [known[name] for name in message_ins_ids if name in known]
            super().delete_messages(message_ins_ids)
            for name in replies:
                session = self._object_push_session_by_root.get(name)
                if session is not None:
                    self._cleanup_push_session(session, cleanup_messages=False)
                self._objects.drop(name)

    def store_object(
        self, run_id: int, session_id: str, object_id: str, object_content: bytes
    ) -> bool:
        with self.lock:  # Flower takes its two locks in one order here, and in the other above
            return bool(super().store_object(run_id, session_id, object_id, object_content))

    def get_object(self, run_id: int, object_id: str) -> bytes | None:
        with self.lock:
            found: bytes | None = super().get_object(run_id, object_id)
            return found


class Link:
    """Flower's link state in this process, with a node for each key."""

    def __init__(self) -> None:
        self._store = Store()
        self._state = Replies(self._store)
        self._nodes: dict[bytes, int] = {}  # by the key's PEM
        self._run = self._task = 0

    def app(self) -> FastAPI:
        """Flower's interface for sites as an ASGI app, and nothing else of Flower's."""
        app = FastAPI(
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            middleware=[
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
            ],
        )
        app.state.linkstate_factory = SimpleNamespace(state=lambda: self._state)
        app.state.enable_supernode_auth = True
        app.include_router(fleet)
        return app

    # -- a run ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on messages can be sent, from this process and one run at a time."""
        self._run = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        self._task = self._state.get_run_info(run_ids=[self._run])[0].primary_task_id or 0
        if not (self._state.claim_task(self._task) and self._state.activate_task(self._task)):
            raise RuntimeError("Flower does not start a run")
        TaskIdentity.run_id, TaskIdentity.task_id = self._run, self._task
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def keep(self) -> None:
        """To be called every half minute, or Flower gives up on the run."""
        if self._task:
            self._state.acknowledge_task_heartbeat(self._task)

    def end(self) -> None:
        self._state.finish_task(self._task, SubStatus.COMPLETED, "")
        self._state.cleanup_run(self._run)
        self._task = 0

    # -- nodes ---------------------------------------------------------------------------------

    def node(self, key: bytes) -> int:
        """The node of this key, made when it is first asked for."""
        if key not in self._nodes:
            node = self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
            self._nodes[key] = node
        return self._nodes[key]

    def online(self) -> set[int]:
        info = self._state.get_node_info(statuses=[NodeStatus.ONLINE])
        return {node.node_id for node in info}

    def alive(self, node: int) -> None:
        """There was a sign of life of it."""
        self._state.acknowledge_node_heartbeat(node, HEARTBEAT_DEFAULT_INTERVAL)

    def gone(self, node: int) -> None:
        """So that it may come again at once: Flower admits only who is away."""
        self._state.deactivate_node(node)

    # -- messages ------------------------------------------------------------------------------

    def send(self, message: Message) -> tuple[str, Message]:
        """Lay a message ready for its node; its name, and what stands for it here."""
        with no_object_id_recompute():
            name: str = message.object_id
            message.metadata.__dict__["_message_id"] = name
            objects = get_all_nested_objects(message)
            self._store.trees[name] = get_object_tree(message)
            for missing in self._store.asks.announce(name, objects):
                self._store.asks.put(missing, objects[missing].deflate())
        bare = remove_content_from_message(message)
        if self._state.store_message_ins(bare) is None:
            self.forget(name)
            raise Unreadable("the message could not be sent")
        return name, bare

    def send_again(self, bare: Message) -> None:
        """As if it had never been delivered."""
        self._state.delete_messages({bare.metadata.message_id})
        bare.metadata.delivered_at = ""
        self._state.store_message_ins(bare)

    def reply(self, name: str) -> Message | None:
        """The announced reply to this message, without its content; given once."""
        found = self._state.get_message_res({name}, self._run)
        return found[0] if found else None

    def contents(self, reply: Message) -> dict[str, bytes] | None:
        """All objects of a reply by their names; None as long as some are missing."""
        found: dict[str, bytes] = {}
        wanted = [reply.metadata.message_id]
        while wanted:
            name = wanted.pop()
            if name in found:
                continue
            content = self._store.replies.get(name)
            if not content:
                return None
            if len(found) == MAX_OBJECTS:
                raise Unreadable(f"more than {MAX_OBJECTS} objects")
            found[name] = content
            wanted += get_object_head_values_from_object_content(content)[1]
        return found

    def forget(self, name: str) -> None:
        """Nobody waits for an answer to this message any more."""
        self._state.delete_messages({name})
        self._store.asks.drop(name)
        self._store.trees.pop(name, None)


def inflate(reply: Message, contents: dict[str, bytes], most: int) -> Message:
    """The message that these objects make; ``most``: bytes that its arrays may take."""
    check_arrays(contents, most)
    name = reply.metadata.message_id
    message = inflate_object_from_contents(name, contents)
    if not isinstance(message, Message):
        raise Unreadable(f"a {type(message).__name__}, not a message")
    return message
