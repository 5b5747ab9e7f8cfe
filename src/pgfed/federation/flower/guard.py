"""Who may speak to Flower's interface for sites, how much, and how often.

A request carries its site's signature in its headers. It is checked before a byte of the body is
read: strangers cost a signature check and nothing else. Behind it, every site has a limit for each
kind of request, and for its replies a number of bytes that is known from what it was asked.

The status of a refusal matters to clients of Flower's: 503 is tried again, 401 means that the site
is not admitted, 413 ends a reply, and anything else may end a client's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from pgfed.errors import one_line
from pgfed.federation.flower.private import AHEAD, BEHIND, CHUNK, FLEET, KEY, SIGNATURE, STAMP

log = logging.getLogger(__name__)

# The requests that sites make, and the most bytes that each may have.
LIMITS = {
    "activate-node": 4096,
    "deactivate-node": 4096,
    "send-node-heartbeat": 4096,
    "pull-messages": 4096,
    "pull-object": 4096,
    "push-messages": 1 << 16,
    "push-object": CHUNK + 4096,
}
PUSHES = ("push-messages", "push-object")
OURS = "/v1/pgfed/"  # what is not Flower's: how a site joins, and what is agreed on
AGREEMENT = f"{OURS}agreement"
AT_ONCE = 8  # requests of one site, and connections
HOLD = 20.0  # seconds until a site that asks for messages hears that there are none
BODY = 60.0  # seconds that a body may take to come
QUIET = (600.0, 10.0)  # seconds between two lines of the log about a site: the same, and others

# An ASGI application, as uvicorn serves it
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Connection(Protocol):
    """What a request came on."""

    ended: asyncio.Future[None]

    def introduce(self) -> None:
        """A site has signed on it."""

    def drop(self) -> None:
        """End it at once."""


class Refusal(Exception):
    """A request is not let through; says why, in the words of the answer and of the log."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Visitor:
    """A site, as the guard knows it."""

    seat: int
    name: str
    node: int  # as Flower calls it
    public: ec.EllipticCurvePublicKey
    seen: float | None = None  # when it last sent a signed request, by the monotonic clock
    refused: str = ""  # why it was last refused, if it was not let through since
    expected: dict[str, int] = field(default_factory=dict)  # message -> bytes its reply may have
    used: int = 0  # bytes sent of them
    over: bool = False  # it sent more
    busy: int = 0  # requests at this moment
    connections: list[Connection] = field(default_factory=list)  # oldest first
    told: tuple[str, float] = ("", 0.0)  # what the log last said of it, and when
    polls: int = 0  # of these requests for messages, the number of the last
    bell: asyncio.Event = field(default_factory=asyncio.Event)  # there is a message for it

    def meet(self, connection: Connection) -> None:
        """It has signed on this connection; of too many, the oldest is dropped."""
        if connection in self.connections:
            return
        self.connections = [other for other in self.connections if not other.ended.done()]
        self.connections.append(connection)
        if len(self.connections) > AT_ONCE:
            self.connections.pop(0).drop()
        connection.introduce()

    def complain(self, why: str) -> None:
        """Into the log, which a site cannot fill, so that older lines are rotated away."""
        before, when = self.told
        now = time.monotonic()
        if not before or now - when > QUIET[why != before]:
            log.warning("%s refused: %s", self.name, why)
            self.told = why, now

    def expect(self, message: str, size: int) -> None:
        self.expected[message] = size

    def settle(self, message: str) -> None:
        """Nobody waits for the reply to this message any more."""
        self.expected.pop(message, None)
        if not self.expected:
            self.used, self.over = 0, False

    def spend(self, size: int) -> None:
        """Count what it sends; refuse what was not asked for."""
        if not self.expected:
            raise Refusal(413, "nothing was asked")
        self.used += size
        most = sum(self.expected.values())
        if self.used > most:
            self.over = True
            raise Refusal(413, f"the reply is larger than the {most} bytes expected")


class Guard:
    """An ASGI app around Flower's, which lets through what sites may do.

    ``lobby``: for what is not Flower's. ``alive``, ``arrives``, ``wants``: told of each request let
    through, of a site that comes, and of one that asks for messages; each with its visitor.
    """

    def __init__(
        self,
        app: App,
        lobby: App,
        visitors: dict[bytes, Visitor],
        *,
        alive: Callable[[Visitor], None],
        arrives: Callable[[Visitor], None],
        wants: Callable[[Visitor], None],
    ) -> None:
        self.visitors = visitors
        self._app, self._lobby = app, lobby
        self._alive, self._arrives, self._wants = alive, arrives, wants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            if scope["path"].startswith(OURS) and scope["path"] != AGREEMENT:
                await self._lobby(scope, receive, send)
                return
            kind = _kind(scope)
            visitor = self._recognise(scope)
            async with self._let_in(visitor, kind, scope):
                await self._serve(visitor, kind, scope, receive, send)
        except Refusal as refusal:
            await respond(send, refusal.status, f"{refusal}\n".encode())

    def _recognise(self, scope: Scope) -> Visitor:
        """The site whose signature this request has."""
        headers = dict(scope["headers"])
        signed = [name for name, _ in scope["headers"] if name in (KEY, STAMP, SIGNATURE)]
        if len(signed) > len(set(signed)):  # Flower would look at others than we do
            raise Refusal(401, "signed twice")
        try:
            visitor = self.visitors.get(b64decode(headers[KEY], validate=True))
            stamp = headers[STAMP].decode("ascii")
            signature = b64decode(headers[SIGNATURE], validate=True)
            age = (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()
        except (KeyError, ValueError, TypeError):
            raise Refusal(401, "not signed") from None
        if visitor is None:
            raise Refusal(401, "this key is not admitted")
        try:
            visitor.public.verify(signature, stamp.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Refusal(401, "the signature is wrong") from None
        if not -AHEAD < age < BEHIND:
            side = "ahead of" if age < 0 else "behind"
            why = f"clock {abs(age):.0f} s {side} the server's"
            visitor.complain(why)
            visitor.refused = why
            raise Refusal(401, why)
        visitor.meet(scope["connection"])
        return visitor

    @contextlib.asynccontextmanager
    async def _let_in(self, visitor: Visitor, kind: str, scope: Scope) -> AsyncIterator[None]:
        """Within its limits."""
        if visitor.busy >= AT_ONCE:
            raise Refusal(503, f"{AT_ONCE} requests at once are allowed")
        size = length(scope)
        most = LIMITS.get(kind, 0)
        if size > most:
            raise Refusal(413, f"{size} bytes; allowed: {most}")
        visitor.seen, visitor.refused = time.monotonic(), ""
        visitor.busy += 1
        try:
            if kind in PUSHES:
                try:
                    visitor.spend(size)
                except Refusal as refusal:
                    visitor.complain(str(refusal))
                    raise
            yield
        finally:
            visitor.busy -= 1

    async def _serve(
        self, visitor: Visitor, kind: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if kind == AGREEMENT:
            scope["seat"] = visitor.seat
            await self._lobby(scope, receive, send)
            return
        if kind == "activate-node":
            self._arrives(visitor)
        else:
            self._alive(visitor)
        if kind == "pull-messages":
            await self._hold(visitor, scope)
        try:
            await self._app(scope, _impatient(receive, scope["connection"]), send)
        except Exception as error:  # on what a site made up; uvicorn would log a page of it
            why = one_line(f"Flower failed on its {kind} ({type(error).__name__}: {error})")
            visitor.complain(why)
            raise Refusal(500, "not understood") from None

    async def _hold(self, visitor: Visitor, scope: Scope) -> None:
        """Until there is a message; Flower's own clients would ask every three seconds.

        Only the last of a site's requests is given messages: the others came from connections that
        are lost, or from a process that is no more.
        """
        visitor.polls += 1
        mine = visitor.polls
        self._wants(visitor)
        ended = scope["connection"].ended
        ringing = asyncio.ensure_future(visitor.bell.wait())
        await asyncio.wait([ringing, ended], timeout=HOLD, return_when=asyncio.FIRST_COMPLETED)
        ringing.cancel()
        if visitor.polls != mine or ended.done():
            raise Refusal(503, "asked again elsewhere")
        visitor.bell.clear()


def _kind(scope: Scope) -> str:
    path = str(scope["path"])
    kind = path.removeprefix(FLEET)
    known = path == AGREEMENT or (path != kind and kind in LIMITS)
    if scope["method"] != "POST" or not known:
        raise Refusal(404, "nothing here")
    return kind


def length(scope: Scope) -> int:
    headers = dict(scope["headers"])
    found = headers.get(b"content-length", b"")
    # In chunks a body may be longer than it says.
    if not found.isdigit() or len(found) > 12 or b"transfer-encoding" in headers:
        raise Refusal(411, "content-length is needed")
    return int(found)


def _impatient(receive: Receive, connection: Connection) -> Receive:
    """The same, but a body that does not come is not waited for."""
    end = time.monotonic() + BODY
    whole = False

    async def hurried() -> Scope:
        nonlocal whole
        try:
            async with asyncio.timeout(None if whole else end - time.monotonic()):
                message = await receive()
        except TimeoutError:
            connection.drop()
            return {"type": "http.disconnect"}
        whole = not message.get("more_body", False)
        return message

    return hurried


async def respond(send: Send, status: int, body: bytes) -> None:
    """The connection is closed: whatever else was to come on it is not read."""
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
