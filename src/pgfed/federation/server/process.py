"""`pgfed federation server`: one process that serves the sites and runs the experiment.

    sites -> gate (connections, TLS 1.3) -> guard (signatures, limits) -> Flower's interface
                                                  Flower's link state <- grid <- the run's thread

Our own commands reach it over a Unix socket; nothing else listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from typing import Any

from pgfed.errors import Unwritable, UserError, is_full
from pgfed.federation.flower.gate import Gate
from pgfed.federation.flower.grid import LinkGrid, Stopped
from pgfed.federation.flower.guard import Guard, Visitor
from pgfed.federation.flower.link import Link
from pgfed.federation.folders.folder import FederationFolder, is_loopback
from pgfed.federation.folders.keys import expiry_warning, load_public, public_pem
from pgfed.federation.server.backend import QuorumError
from pgfed.federation.server.conduct import Options, conduct, unfinished
from pgfed.federation.server.control import Handler, Request, listening
from pgfed.federation.server.lobby import Lobby
from pgfed.federation.server.status import FILE

KEEP = 20.0  # seconds between two signs to Flower that the run goes on
AGAIN = 10.0  # seconds until a run is gone on with for which there was no room on the disk
STOPPING = 10.0  # seconds that a run has to end when the server is stopped

log = logging.getLogger(__name__)


def serve(folder: FederationFolder, say: Callable[[str], None], *, resume: bool = False) -> None:
    """Serve until told to stop; ``resume``: go on with a run that was interrupted."""
    asyncio.run(Server(folder, say).serve(resume))


class Server:
    """The sites' keys, the way to them, and one run at a time."""

    def __init__(self, folder: FederationFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._link = Link()
        self._visitors: dict[int, Visitor] = {}  # by seat
        self._by_key: dict[bytes, Visitor] = {}
        self._lobby = Lobby(lambda: self._admit({}))
        self._admit({})
        self._over: Callable[[], None] = lambda: None
        self._tls = None if folder.agreement.insecure else _tls()
        self._show_certificate({})
        self._run: threading.Thread | None = None
        self._ending = threading.Event()
        self._began = time.time()

    async def serve(self, resume: bool) -> None:
        agreement, stop = self._folder.agreement, asyncio.Event()
        self._over = stop.set
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self._grid = LinkGrid(self._link, self._visitors, loop)
        guard = Guard(
            self._link.app(),
            self._lobby,
            self._by_key,
            alive=lambda visitor: self._link.alive(visitor.node),
            arrives=lambda visitor: self._link.gone(visitor.node),
            wants=self._grid.send_again,
        )
        gate = Gate(guard, _interface(agreement.host), agreement.port, self._tls)
        async with (
            listening(self._folder, self._commands),
            _beside(gate.serve(), stop),
            _beside(self._keep(), stop),
        ):
            if (warning := expiry_warning(self._folder)) is not None:
                self._say(warning)
            self._say(f"ready at {agreement.server} for {len(self._visitors)} sites")
            options = unfinished(self._folder) if resume else None
            if options is not None:
                self._say("going on with the run that was interrupted")
                self._start(options)
            await stop.wait()
            await self._stop()

    def _show_certificate(self, request: Request) -> Request:
        """The one in the folder now, to whoever connects from now on."""
        place = self._folder.server
        try:
            if self._tls is not None:
                self._tls.load_cert_chain(place / "server.crt", place / "server.key")
        except OSError as error:  # ssl.SSLError is one
            raise UserError(f"{place / 'server.crt'}: cannot be used ({error})") from None
        return {}

    # -- the run -------------------------------------------------------------------------------

    @property
    def _running(self) -> bool:
        return self._run is not None and self._run.is_alive()

    def _start(self, options: Options) -> None:
        (self._folder.run / FILE).unlink(missing_ok=True)  # it tells of the run before
        self._link.begin()
        self._run = threading.Thread(target=self._conduct, args=(options,), daemon=True)
        self._run.start()

    def _conduct(self, options: Options) -> None:
        try:
            while not self._conducted(options):
                options = unfinished(self._folder) or options
            log.info("the run is finished")
        except (UserError, QuorumError, Stopped, OSError) as error:
            log.error("the run ended: %s", error)
        except Exception:
            log.exception("the run failed")
        finally:
            self._grid.end()
            self._link.end()

    def _conducted(self, options: Options) -> bool:
        """Whether the run came to its end; False where the server's disk is full, after a pause.

        Somebody makes room, sooner or later: the run then goes on by itself.
        """
        try:
            conduct(self._grid, self._folder, options)
        except (Unwritable, OSError) as error:
            if not is_full(error):
                raise
            log.error("the run waits, disk full at the server: %s", error)
            if self._ending.wait(AGAIN):
                raise Stopped("the server was stopped") from None
            return False
        return True

    async def _keep(self) -> None:
        while True:
            self._link.keep()
            await asyncio.sleep(KEEP)

    async def _stop(self) -> None:
        """What counts is on disk: a run that does not end in time is left behind."""
        self._grid.stop()
        self._ending.set()
        if self._run is not None:
            await asyncio.to_thread(self._run.join, STOPPING)

    # -- who is admitted -----------------------------------------------------------------------

    def _admit(self, request: Request) -> Request:
        """The sites whose keys are in the folder now, and nobody else; and who is invited."""
        self._folder = FederationFolder(self._folder.path)  # there may be more seats
        self._lobby.look(self._folder)
        seats = range(self._folder.agreement.seats)
        keys = {i: load_public(self._folder.key(i)) for i in seats if self._folder.key(i).is_file()}
        pems = {i: public_pem(key) for i, key in keys.items()}
        if len(set(pems.values())) < len(pems):
            raise UserError(f"{self._folder.key(0).parent}: two sites have the same key")
        for i, visitor in list(self._visitors.items()):
            if pems.get(i) not in self._by_key or self._by_key[pems[i]] is not visitor:
                self._dismiss(i, visitor)
        for i, pem in pems.items():
            name = self._folder.agreement.names[i]
            if i not in self._visitors:
                self._visitors[i] = Visitor(i, name, self._link.node(pem), keys[i])
                self._by_key[pem] = self._visitors[i]
            self._visitors[i].name = name
        return {"sites": [visitor.name for visitor in self._visitors.values()]}

    def _dismiss(self, seat: int, visitor: Visitor) -> None:
        """Its connections end now, and its key opens none any more."""
        del self._visitors[seat]
        del self._by_key[public_pem(visitor.public)]
        self._link.gone(visitor.node)
        for connection in visitor.connections:
            connection.drop()

    # -- our own commands ----------------------------------------------------------------------

    @property
    def _commands(self) -> dict[str, Handler]:
        return {
            "run": self._begin,
            "status": self._status,
            "admit": self._admit,
            "renew": self._show_certificate,
            "stop": self._end,
        }

    def _end(self, request: Request) -> Request:
        self._say("told to stop")
        self._over()
        return {}

    def _begin(self, request: Request) -> Request:
        if self._running:
            raise UserError(f"{self._folder.path}: a run is going on; `status` shows it")
        options = Options(**request["options"])
        self._folder.check_run(resume=options.resume)
        self._start(options)
        return {"options": asdict(options)}

    def _status(self, request: Request) -> Request:
        """Whether a run goes on, and for each site how long ago it gave a sign of life."""
        now = time.monotonic()
        sites: list[dict[str, Any]] = [
            {
                "name": visitor.name,
                "age": None if visitor.seen is None else round(now - visitor.seen, 1),
                "refused": visitor.refused,
            }
            for visitor in self._visitors.values()
        ]
        return {
            "running": self._running,
            "up": round(time.time() - self._began),
            "sites": sites,
            "invited": self._lobby.invited,
        }


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _interface(host: str) -> str:
    """What to listen on: this machine alone where its address is, else all of it; IPv6 where the
    address is one, and not unasked, as firewalls may know IPv4 alone."""
    if ":" in host:
        return "::1" if is_loopback(host) else "::"
    return "127.0.0.1" if is_loopback(host) else "0.0.0.0"


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> AsyncIterator[None]:
    """Done meanwhile, and ended at the end; if it fails, all ends: a supervisor starts it again."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
