"""A federation of real processes on loopback; all of them end, by their process ids."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit
from typing import Any, Self

from federation import small
from pgfed.federation.folders.folder import FederationFolder

PGFED = [sys.executable, "-m", "pgfed", "federation"]
PATIENCE = 300.0  # seconds; on a busy machine everything takes long


def until(happened: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for something to be so, and give back what it is."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)
    return found


def free_port() -> int:
    """A port of this machine that nothing uses.

    From below those that systems hand out by themselves: it is still free a little later.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Running:
    """Server and sites of `small`, as processes of their own."""

    def __init__(self, path: Path, host: str = "127.0.0.1", **changes: Any) -> None:
        self.path = path
        self.folder: FederationFolder = small.make(path, f"{host}:{free_port()}", **changes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- starting ------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *words: str,
        program: Sequence[str] = PGFED,
        before: Sequence[str] = (),
        files: int = 0,
    ) -> None:
        """Start `pgfed federation ...`, with ``before`` in front; ``files``: it may have open."""
        limit = (lambda: setrlimit(RLIMIT_NOFILE, (files, files))) if files else None
        with (self.path / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [*before, *program, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=limit,
            )

    def serve(self, *options: str, files: int = 0) -> None:
        self.start("server", "server", str(self.folder.path), *options, files=files)
        until(lambda: self._ready("server", "ready at"), "the server is ready")

    def site(
        self, client: int, *, program: Sequence[str] = PGFED, before: Sequence[str] = ()
    ) -> None:
        path = small.site_path(self.folder.path, client)
        self.start(f"site-{client}", "site", str(path), program=program, before=before)

    def all(self) -> Self:
        """Server and three sites."""
        for client in range(small.SITES):
            self.site(client)
        self.serve()
        return self

    def run(self, *options: str) -> subprocess.Popen[bytes]:
        self.start("run", "run", str(self.folder.path), *options)
        return self.processes["run"]

    def finish(self, *options: str, seconds: float = 2 * PATIENCE) -> None:
        """Run to the end."""
        assert self.run(*options).wait(seconds) == 0, self.said("run")

    # -- looking -------------------------------------------------------------------------------

    def said(self, name: str) -> str:
        return (self.path / f"{name}.out").read_text()

    def _ready(self, name: str, text: str) -> bool:
        assert self.processes[name].poll() is None, self.said(name)
        return text in self.said(name)

    def are_here(self) -> bool:
        """All sites have come to the server."""
        return all("connected" in self.said(f"site-{i}") for i in range(small.SITES))

    def status(self) -> dict[str, Any]:
        path = self.folder.run / "status.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def doing(self, client: int, what: str) -> bool:
        status = self.status()
        return bool(status) and status["sites"][client]["doing"] == what

    def kill(self, name: str) -> None:
        """As the kernel does when memory runs out; nothing is left of it."""
        self.processes[name].kill()
        self.processes[name].wait(60)

    def catch(self, client: int) -> int:
        """Stop a site while it is training; its process id."""
        pid = self.processes[f"site-{client}"].pid
        while True:
            until(lambda: self.doing(client, "training"), f"client {client} is training")
            os.kill(pid, signal.SIGSTOP)
            # If its answer is on the way already, the server will have it in a moment.
            try:
                until(lambda: not self.doing(client, "training"), "", 2)
            except AssertionError:
                return pid
            os.kill(pid, signal.SIGCONT)
