"""`pgfed federation site`: one process that asks the server for work and does it.

It holds the data and opens no port. No code comes from the server: what is done is what the
installed pgfed and the site's own experiment say.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import httpx
from flwr.app import Message

from pgfed.engine.client import become_worker
from pgfed.errors import UserError, one_line
from pgfed.federation.flower.private import Fleet, Unreadable, refusal
from pgfed.federation.flower.records import MESSAGE
from pgfed.federation.folders.folder import SiteFolder
from pgfed.federation.folders.keys import load_private
from pgfed.federation.site.answers import Site
from pgfed.federation.site.data import is_there

RECEIVE = 600.0  # seconds that a message may take to come
LIVE = 10.0  # seconds between two signs of life
AGAIN = (0.5, 10.0)  # seconds until the next try after a failure: at first, and at most
DATA = 10.0  # seconds between two looks for data that is not there

log = logging.getLogger(__name__)


class Stopped(BaseException):
    """Somebody told us to stop; as KeyboardInterrupt, it is no failure of what was being done."""


def attend(folder: SiteFolder, data: str, say: Callable[[str], None]) -> None:
    """Take part until told to stop."""
    with _stoppable() as stopping, _alone(folder):
        file = folder.file
        say(f"{file.names[file.client]} of {file.federation}, server {file.server}")
        become_worker()
        _wait_for_data(folder, data, say)
        site = Site(folder, data)
        n_train, n_test = (getattr(site.federation, n)[site.client] for n in ("n_train", "n_test"))
        say(f"{n_train} samples to train on, {n_test} to test on")
        authority = None if folder.file.insecure else folder.authority.read_bytes()
        fleet = Fleet(
            folder.file.server,
            load_private(folder.key),
            insecure=folder.file.insecure,
            authority=authority,
        )
        with contextlib.closing(fleet):
            Attendance(site, fleet, say, stopping).go_on()


class Attendance:
    """A site at the server: asks for messages, answers them, and comes back after any failure."""

    def __init__(
        self, site: Site, fleet: Fleet, say: Callable[[str], None], stopping: threading.Event
    ) -> None:
        self._site, self._fleet, self._say, self._stopping = site, fleet, say, stopping
        self._here = False
        self._wait = AGAIN[0]
        self._told = ""  # what was last said of a failure
        self._over = threading.Event()

    def go_on(self) -> None:
        """Until told to stop."""
        signs = threading.Thread(target=self._live, daemon=True)
        signs.start()
        try:
            while not self._stopping.is_set():
                try:
                    self._take_part()
                except (httpx.HTTPError, Unreadable) as error:
                    self._failed(error)
        finally:
            self._over.set()
            signs.join(LIVE)
            if self._here:
                with contextlib.suppress(httpx.HTTPError):
                    self._fleet.go()

    def _take_part(self) -> None:
        if not self._here:
            self._fleet.come()
            self._here = True
            self._say("connected")
        message = self._fleet.receive(RECEIVE, self._site.longest)
        if message is not None:
            self._fleet.answer(self._reply(message))
        self._wait, self._told = AGAIN[0], ""

    def _reply(self, message: Message) -> Message:
        if message.metadata.message_type != MESSAGE or not message.has_content():
            return refusal(message, "not a message of pgfed")
        return Message(self._site.answer(message.content, self._fleet.node), reply_to=message)

    def _failed(self, error: Exception) -> None:
        """Say what is wrong, once; then try again, ever slower."""
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
        why = _why(error)
        if status == httpx.codes.FORBIDDEN:
            why = "the run ended meanwhile; its message is forgotten"
        if status == httpx.codes.UNAUTHORIZED and self._here:
            self._here = False  # the server was started anew and knows us no more: come again
        elif why != self._told:
            self._say(why)
            self._told = why
        self._over.wait(self._wait)
        self._wait = min(2 * self._wait, AGAIN[1])

    def _live(self) -> None:
        """Signs of life, also while the site is at work for long."""
        while not self._over.wait(LIVE):
            if self._here:
                # A failure shows where work is asked for, and is told there.
                with contextlib.suppress(httpx.HTTPError):
                    self._fleet.live()


def _why(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        said = error.response
        return one_line(f"the server refuses ({said.status_code}): {said.text.strip()[:300]}")
    if isinstance(error, httpx.HTTPError):
        return one_line(f"the server cannot be reached ({error or type(error).__name__})")
    return one_line(f"a message could not be received or sent: {error}")


def _wait_for_data(folder: SiteFolder, data: str, say: Callable[[str], None]) -> None:
    """A disk may be mounted after this has been started."""
    told = False
    while (missing := is_there(folder, data)) is not None:
        if not told:
            say(f"data: {missing} is not there, or empty; waiting for it")
        told = True
        time.sleep(DATA)


@contextlib.contextmanager
def _alone(folder: SiteFolder) -> Iterator[None]:
    """Two processes with one key would take each other's messages."""
    folder.states.mkdir(exist_ok=True)
    with (folder.states / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder.path}: this site is running already") from None
        with contextlib.suppress(OSError):  # a full disk is named when something must be written
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        yield


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """SIGTERM, as systemd sends it, ends the block as Ctrl+C does.

    It also sets the event: an exception is lost where Python runs a finalizer at that moment.
    """
    stopping = threading.Event()

    def raise_stopped(number: int, frame: object) -> None:
        stopping.set()
        raise Stopped

    before = signal.signal(signal.SIGTERM, raise_stopped)
    try:
        yield stopping
    except (Stopped, KeyboardInterrupt):
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
