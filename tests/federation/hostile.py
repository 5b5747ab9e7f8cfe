"""A site that holds a seat and misbehaves, on Flower's own client."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
from flwr.app import Array, Message, RecordDict

from federation.flower_private import (
    Node,
    ObjectTree,
    PushMessagesRequest,
    message_to_proto,
)
from pgfed.federation.flower import private
from pgfed.federation.flower.records import RAW, unpack
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.folders.keys import load_private
from pgfed.federation.site.answers import Site

SILENT = 7.0  # seconds: longer than a round of the test may take

Trick = Callable[["Hostile", Message, RecordDict], None]  # what to do in the place of an answer


def fleet_of(folder: SiteFolder) -> private.Fleet:
    return private.Fleet(
        folder.file.server,
        load_private(folder.key),
        insecure=False,
        authority=folder.authority.read_bytes(),
    )


class Hostile(threading.Thread):
    """Honest but for the rounds in which it plays a trick; ``codes``: what it was answered."""

    def __init__(self, folder: Path, tricks: dict[int, Trick]) -> None:
        super().__init__(daemon=True)
        self.site = Site(SiteFolder(folder))
        self.fleet = fleet_of(self.site.folder)
        self.tricks = tricks
        self.codes: dict[int, int] = {}
        self.over = threading.Event()

    def run(self) -> None:
        with contextlib.closing(self.fleet):
            self._take_part()

    def _take_part(self) -> None:
        self.fleet.come()
        while not self.over.is_set():
            try:
                message = self.fleet.receive(30, self.site.longest)
            except (httpx.HTTPError, private.Unreadable):  # its round was over meanwhile
                continue
            if message is None:
                continue
            head, _ = unpack(message.content)
            answer = self.site.answer(message.content, self.fleet.node)
            trick = self.tricks.get(head.get("round", 0)) if head["stage"] == "train" else None
            try:
                if trick is None:
                    self.fleet.answer(Message(answer, reply_to=message))
                else:
                    trick(self, message, answer)
            except private.Unreadable:  # the round was over before all of it was sent
                continue
            except httpx.HTTPStatusError as error:
                self.codes[head["round"]] = error.response.status_code
            except httpx.HTTPError:  # the connection was closed while it was still sending
                self.codes[head["round"]] = 0

    def announce(self, reply: Message, tree: ObjectTree) -> None:
        """A reply with this tree of objects; none of them is sent, and no more is asked for."""
        reply.metadata.__dict__["_message_id"] = tree.object_id
        bare = private.remove_content_from_message(reply)
        self.fleet._client.PushMessages(
            PushMessagesRequest(
                node=Node(node_id=self.fleet.node),
                messages_list=[message_to_proto(bare)],
                message_object_trees=[tree],
            )
        )
        self.over.wait(SILENT)


def half_sent(site: Hostile, message: Message, answer: RecordDict) -> None:
    """The reply is announced, and its arrays do not come."""
    reply = Message(answer, reply_to=message)
    site.announce(reply, private.get_object_tree(reply))


def large(size: int) -> Trick:
    """So many bytes where a hundred kilobytes were expected."""

    def trick(site: Hostile, message: Message, answer: RecordDict) -> None:
        answer["update.arrays"]["w"] = Array("float32", (1,), RAW, os.urandom(size))
        site.fleet.answer(Message(answer, reply_to=message))

    return trick


def growing_tree(site: Hostile, message: Message, answer: RecordDict) -> None:
    """Each object has the next one as its child three times over: 3^100 of them."""
    tree = ObjectTree(object_id=f"{0:064x}")
    for n in range(1, 90):
        child = ObjectTree(object_id=tree.object_id)
        tree = ObjectTree(object_id=f"{n:064x}", children=[tree, child, child])
    site.announce(Message(answer, reply_to=message), tree)


def repeated_chunk(site: Hostile, message: Message, answer: RecordDict) -> None:
    """One array of 40 kB, said to be 20,000 times as long."""
    array: Array = answer["update.arrays"]["w"]
    array.__dict__["_chunks"] = array.slice_array() * 20_000
    site.fleet.answer(Message(answer, reply_to=message))
