"""Messages between a run and the sites, laid into and taken out of Flower's link state.

Nothing here waits: a reply is given when all of it has come, and what is not whole when its time is
over is forgotten. A site that asks for messages has nothing to do, so whatever it was sent and has
not answered is sent again: it was restarted, or the answer to its last request was lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message

from pgfed.errors import OneLine
from pgfed.federation.flower.guard import Visitor
from pgfed.federation.flower.link import Link, inflate
from pgfed.federation.flower.private import Unreadable
from pgfed.federation.flower.records import BadRecord

SLACK = 64 * 1024  # bytes of a reply beside its arrays


class Stopped(OneLine):
    """The server is being stopped."""


@dataclass
class _Ask:
    visitor: Visitor
    bare: Message
    most: int  # bytes that its reply may have
    reply: Message | None = None  # announced, perhaps not whole

    @property
    def failed(self) -> bool:
        """Flower itself answers: the site is away."""
        return self.reply is not None and self.reply.has_error()


class LinkGrid:
    """For one run at a time, in a thread beside the event loop's."""

    def __init__(
        self, link: Link, visitors: Mapping[int, Visitor], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._link, self._loop = link, loop
        self._by_seat = visitors  # sites come and go
        self._asks: dict[str, _Ask] = {}
        self._lock = threading.RLock()
        self._stopped = False

    # -- for the run ---------------------------------------------------------------------------

    def get_node_ids(self) -> set[int]:
        self._check()
        admitted = {visitor.node for visitor in list(self._by_seat.values())}
        return self._link.online() & admitted

    def seat(self, node: int) -> int:
        """The client whose key this node signs with."""
        return next(i for i, visitor in list(self._by_seat.items()) if visitor.node == node)

    def push_message(self, message: Message, most: int) -> str:
        """Send it; its name, or "" if that cannot be. ``most``: bytes of the reply's arrays."""
        self._check()
        node = message.metadata.dst_node_id
        visitor = next((v for v in list(self._by_seat.values()) if v.node == node), None)
        if visitor is None:
            return ""
        with self._lock:
            try:
                name, bare = self._link.send(message)
            except Unreadable:
                return ""
            self._asks[name] = _Ask(visitor, bare, most)
        self._loop.call_soon_threadsafe(visitor.expect, name, most + most // 64 + SLACK)
        self._loop.call_soon_threadsafe(visitor.bell.set)
        return name

    def pull_message(self, name: str) -> Message | None:
        """The reply to this message if it is there, once; raises BadRecord for a bad one."""
        self._check()
        with self._lock:
            ask = self._asks.get(name)
            if ask is None:
                return None
            contents: dict[str, bytes] | None = None
            try:
                if not ask.visitor.over:
                    contents = self._whole(name, ask)
                    if contents is None and not ask.failed:
                        return None
            except Unreadable as error:
                self.forget([name])
                raise BadRecord(str(error)) from None
            self.forget([name])
        if ask.failed:
            return ask.reply
        if contents is None or ask.reply is None:
            raise BadRecord(f"its reply is larger than the {ask.most} bytes expected")
        try:
            return inflate(ask.reply, contents, ask.most + SLACK)
        except Unreadable as error:
            raise BadRecord(str(error)) from None

    def forget(self, names: Iterable[str]) -> None:
        """Nobody waits for the replies to these messages any more."""
        with self._lock:
            for name in names:
                ask = self._asks.pop(name, None)
                if ask is not None:
                    self._link.forget(name)
                    self._loop.call_soon_threadsafe(ask.visitor.settle, name)

    def end(self) -> None:
        """The run is over: what a site was asked in it and has not answered counts no more."""
        with self._lock:
            self.forget(list(self._asks))

    def stop(self) -> None:
        """Whoever waits for messages hears of it."""
        self._stopped = True

    def _check(self) -> None:
        if self._stopped:
            raise Stopped("the server was stopped")

    def _whole(self, name: str, ask: _Ask) -> dict[str, bytes] | None:
        """The objects of its reply, if all are there."""
        ask.reply = ask.reply or self._link.reply(name)
        if ask.reply is None or ask.failed:
            return None
        return self._link.contents(ask.reply)

    # -- for the guard -------------------------------------------------------------------------

    def send_again(self, visitor: Visitor) -> None:
        """It has nothing to do: ring for what it was sent and has not answered."""
        with self._lock:
            for name, ask in self._asks.items():
                if ask.visitor is not visitor:
                    continue
                try:
                    whole = self._whole(name, ask) is not None
                except Unreadable:
                    continue  # the run is told when it looks
                if not whole and not ask.failed:
                    self._link.send_again(ask.bare)
                    ask.reply = None
                    visitor.used = 0
                    visitor.bell.set()
