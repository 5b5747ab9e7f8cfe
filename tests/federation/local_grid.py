"""Flower's grid without Flower's processes: sites answer in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from flwr.app import Error, Message, RecordDict

from federation.flower_private import TaskIdentity, message_from_proto, message_to_proto
from pgfed.federation.site.answers import Site

# (node, content of the message) -> content of the reply, an error, or None: no reply
Answer = Callable[[RecordDict, int], RecordDict | Error | None]


class LocalGrid:
    """Every node answers at once; messages make the way through protobuf all the same."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = answers
        self.replies: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.most: dict[str, int] = {}  # message -> bytes that its reply may have
        self.forgotten: list[str] = []
        self._names = count()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return list(self.answers)

    def seat(self, node: int) -> int:
        return node - node_of(0)

    def push_message(self, message: Message, most: int) -> str:
        name = f"message-{next(self._names)}"
        self.most[name] = most
        message.metadata.__dict__["_message_id"] = name
        message.metadata.__dict__["_src_node_id"] = 1
        arrived = message_from_proto(message_to_proto(message))
        self.sent.append(arrived)
        node = message.metadata.dst_node_id
        answer = self.answers[node](arrived.content, node)
        if answer is not None:
            reply = Message(answer, reply_to=arrived)
            self.replies[name] = message_from_proto(message_to_proto(reply))
        return name

    def pull_message(self, name: str) -> Message | None:
        return self.replies.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        self.forgotten += names

    def end(self) -> None:
        pass


def node_of(client: int) -> int:
    return 1000 + client


def grid_of(sites: Iterable[Site]) -> LocalGrid:
    return LocalGrid({node_of(site.client): site.answer for site in sites})
