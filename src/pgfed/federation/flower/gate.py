"""The one port that is open to others: who is let as far as a request.

uvicorn speaks HTTP, but it has no limits before the first request. So connections are accepted
here: whoever has not signed a request after a few seconds is put out, each address may have so many
of these strangers, and where one too many comes, the one that has waited longest goes. Someone who
opens thousands of silent connections pushes out his own; a site needs a fraction of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pgfed.errors import UserError
from pgfed.federation.flower.guard import App, Receive, Scope, Send

STRANGER = 10.0  # seconds that a connection has to show a signature
PER_ADDRESS = 32  # strangers from one address
STRANGERS = 256  # and altogether
IDLE = 60.0  # seconds that a site's connection is kept between two requests
HEADERS = 16_384  # bytes
ENDING = 2.0  # seconds for requests to end with the server

log = logging.getLogger(__name__)
logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not of what strangers send


class Knock(H11Protocol):
    """A connection: a stranger's until a site has signed a request on it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.introduced: asyncio.Future[None] = self.loop.create_future()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        served = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["connection"] = self
            await served(scope, receive, send)

        self.app = app

    def introduce(self) -> None:
        if not self.introduced.done():
            self.introduced.set_result(None)

    def drop(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for future in (self.introduced, self.ended):
            if not future.done():
                future.set_result(None)


class Gate:
    """Listens on one port and serves one ASGI app; plain HTTP without ``tls``."""

    def __init__(self, app: App, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._config = uvicorn.Config(
            app,
            http=Knock,
            ws="none",
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,  # nobody is believed to speak for another address
            server_header=False,
            access_log=False,
            log_config=None,
            h11_max_incomplete_event_size=HEADERS,
            timeout_keep_alive=int(IDLE),
        )
        self._config.load()
        self._state = ServerState()
        self._listener = _listen(host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], str] = {}  # oldest first, with their address
        self._room = min(STRANGERS, _files() // 4)

    async def serve(self) -> None:
        """For ever; cancelled, it ends all connections."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(self._listener)
                except OSError as error:  # they went away again, or there are too many files
                    log.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(0.1)
                    continue
                origin = origin_of(address[0])
                self._make_room(origin)
                task = asyncio.create_task(self._attend(sock))
                self._strangers[task] = origin
                self._tasks.add(task)
                task.add_done_callback(self._done)
        finally:
            self._listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._state.tasks:  # requests whose connections are no more end by themselves
                await asyncio.wait(self._state.tasks, timeout=ENDING)

    def _make_room(self, address: str) -> None:
        same = [task for task, other in self._strangers.items() if other == address]
        if len(same) >= PER_ADDRESS:
            self._put_out(same[0])
        elif len(self._strangers) >= self._room:
            self._put_out(next(iter(self._strangers)))

    def _put_out(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)

    async def _attend(self, sock: socket.socket) -> None:
        """One connection, from the first byte of TLS to its end."""
        loop = asyncio.get_running_loop()
        knock: Knock | None = None

        def make() -> Knock:
            nonlocal knock
            knock = Knock(self._config, self._state, {})
            return knock

        try:
            async with asyncio.timeout(STRANGER):
                await loop.connect_accepted_socket(make, sock, ssl=self._tls)
                assert knock is not None
                await knock.introduced
            self._strangers.pop(_this_task(), None)
            await knock.ended
        except (OSError, TimeoutError):  # no TLS, or none of ours; ssl.SSLError is an OSError
            pass
        finally:
            if knock is not None and knock.transport is not None:
                knock.drop()
            with contextlib.suppress(OSError):
                sock.close()


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def origin_of(address: str) -> str:
    """By which strangers are counted: of IPv6, one has a whole network of addresses."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if not isinstance(found, ipaddress.IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"port {port}: cannot be used ({error.strerror})") from None
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _files() -> int:
    """How many files this process may have open; as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
