"""The page of a run that is going on, for a browser on this machine.

`pgfed watch DIR --serve` answers on 127.0.0.1 with two things, the page and how far the run is,
and with nothing else: no path of a request is ever a path of a file. The page is made when somebody
looks and the run has moved on since; a look at an unchanged run costs nothing.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.errors import UserError
from pgfed.report.pages.page import render
from pgfed.results.comparison import Group, Method, group
from pgfed.results.folder.layout import CLIENTS, seed_folder
from pgfed.results.folder.reader import load
from pgfed.results.folder.running import Progress, Standing, Watched
from pgfed.results.formats import count, duration
from pgfed.results.runs import Clients, RunData, SeedRun

HOST = "127.0.0.1"
PAGE, PROGRESS = "/", "/progress.json"
PATIENCE = 10.0  # seconds for a request to arrive
MOST = 16  # requests at a time; more are turned away
LIKE = "This page answers GET requests of browsers on this machine only.\n"


# -- what is shown -----------------------------------------------------------------------------


def live_page(standing: Standing) -> str:
    """The report on what has finished, with a banner, and the curves of what has not."""
    found, running = so_far(standing)
    found = replace(found, running=standing.state != "finished")
    return render([found], live=banner(standing), running=running)


def so_far(standing: Standing) -> tuple[Group, list[Method]]:
    """What has finished, and the rest as far as it is; either may be nothing."""
    watched = standing.watched
    if any(_written(watched.folder, one) for one in standing.progress):
        (found,) = group([load(watched.folder)])
        data = found.folders[0]
    else:
        data = _nothing_yet(watched)
        found = Group(watched.experiment.name, [data], [])
    rest: dict[str, dict[int, SeedRun]] = {}
    for one in standing.progress:
        if one.scores and one.seed not in data.runs.get(one.method, {}):
            run = SeedRun(one.method, one.seed, one.history, {})
            rest.setdefault(one.method, {})[one.seed] = run
    running = [
        Method(name, f"{name} (running)", watched.methods[name], data.settings(name), runs)
        for name, runs in rest.items()
    ]
    return found, running


def _written(folder: Path, one: Progress) -> bool:
    return (seed_folder(folder, one.method, one.seed) / CLIENTS).is_file()


def _nothing_yet(watched: Watched) -> RunData:
    n = len(watched.names)
    none = np.zeros(n, dtype=np.int64)
    clients = Clients(none, none, watched.names, None, None, [])
    return RunData(
        path=watched.folder,
        experiment=watched.experiment,
        environment={},
        clients=clients,
        metric=watched.metric,
        methods=watched.methods,
        runs={},
    )


def banner(standing: Standing) -> dict[str, Any]:
    """How far it is, in words; `/progress.json` has the same, and the page keeps it up to date."""
    one = standing.current
    words = {"running": "Running", "finished": "Finished", "stopped": "Not running"}
    facts = [words[standing.state]]
    if one is not None:
        facts.append(f"{one.method}, seed {one.seed}: round {one.done} of {one.rounds}")
    facts.append(f"{standing.done:,} of {count(standing.total, 'round')} in all")
    if standing.seconds_left is not None:
        facts.append(f"about {duration(standing.seconds_left)} left")
    missing = standing.missing()
    return {
        "state": standing.state,
        "facts": facts,
        "share": standing.done / max(1, standing.total),
        "warnings": standing.warnings()
        + ([f"Missing in the last round: {', '.join(missing)}."] if missing else []),
        "rounds": standing.done,
    }


# -- the server --------------------------------------------------------------------------------


class LivePage:
    """The page and the progress of one run, made again only when the run has moved on."""

    def __init__(self, folder: Path) -> None:
        self._watched = Watched(folder)  # says what is wrong with the folder before anyone looks
        self._lock = threading.Lock()  # of what is made: one at a time
        self._made: tuple[tuple[str, int], str] | None = None

    def page(self) -> str:
        with self._lock:
            standing = self._watched.standing()
            key = standing.state, standing.done
            if self._made is None or self._made[0] != key:
                self._made = key, live_page(standing)
            return self._made[1]

    def progress(self) -> str:
        with self._lock:
            standing = self._watched.standing()
        return json.dumps({**standing.as_json(), "banner": banner(standing)}, allow_nan=False)


class LiveServer(ThreadingHTTPServer):
    """Answers browsers of this machine, so many at a time."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, folder: Path, port: int) -> None:
        self.shown = LivePage(folder)
        self.free = threading.BoundedSemaphore(MOST)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UserError(
                f"--port: {port} cannot be used ({error.strerror}); allowed: a free one, or 0 for "
                "any"
            ) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = PATIENCE
    server_version, sys_version = "pgfed", ""

    def do_GET(self) -> None:
        makers: dict[str, tuple[str, Callable[[], str]]] = {
            PAGE: ("text/html; charset=utf-8", self.server.shown.page),
            PROGRESS: ("application/json", self.server.shown.progress),
        }
        # A name that leads here by a stranger's DNS must not read the page (DNS rebinding).
        if self.headers.get("Host") not in self._own_names():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", LIKE)
        elif self.path not in makers:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", LIKE)
        else:
            kind, make = makers[self.path]
            try:
                self._answer(HTTPStatus.OK, kind, make())
            except UserError as error:  # a file that is damaged, or gone
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n")

    def _own_names(self) -> list[str]:
        return [f"{name}:{self.server.server_port}" for name in (HOST, "localhost")]

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for people."""


def serve(folder: Path, port: int, tell: Callable[[str], None]) -> None:
    """Until Ctrl+C."""
    with LiveServer(folder, port) as server:
        tell(f"Live page: {server.address} (Ctrl+C ends it; the run goes on)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
