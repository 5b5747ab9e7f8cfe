"""A federation of real processes on loopback; all of them end, by their process ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from federation import small
from pgfed.federation.flower.processes import free_port
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


def children(pid: int) -> dict[int, str]:
    """The children of a process: id -> command line."""
    found = {}
    try:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found[int(child)] = " ".join(word.decode() for word in words)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid: int) -> list[int]:
    near = list(children(pid))
    return [*near, *(far for child in near for far in descendants(child))]


class Running:
    """Server and sites of `small`, as processes of their own."""

    def __init__(self, path: Path, host: str = "127.0.0.1", **changes: Any) -> None:
        self.path = path
        self.folder: FederationFolder = small.make(path, f"{host}:{free_port()}", **changes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.seen: set[int] = set()  # descendants, some of which may outlive their parents

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            self.seen |= set(descendants(process.pid))
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        until(lambda: not self.left_over(), "all processes have ended", 60)

    def left_over(self) -> list[int]:
        """Processes of ours that are still there; a zombie is not."""
        alive = []
        for pid in self.seen:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                alive.append(pid)
        return alive

    # -- starting ------------------------------------------------------------------------------

    def start(self, name: str, *words: str, before: Sequence[str] = (), **env: str) -> None:
        """Start `pgfed federation ...`, with ``before`` in front of it."""
        with (self.path / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [*before, *PGFED, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
            )

    def serve(self) -> None:
        self.start("server", "server", str(self.folder.path))
        until(lambda: self._ready("server", "ready at"), "the server is ready")

    def site(self, client: int, *, before: Sequence[str] = (), **env: str) -> None:
        path = small.site_path(self.folder.path, client)
        self.start(f"site-{client}", "site", str(path), before=before, **env)

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

    def status(self) -> dict[str, Any]:
        path = self.folder.run / "status.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def doing(self, client: int, what: str) -> bool:
        status = self.status()
        return bool(status) and status["sites"][client]["doing"] == what

    def child(self, name: str, command: str) -> int:
        """The child of this process whose command line holds this."""

        def find() -> int | None:
            found = children(self.processes[name].pid)
            return next((pid for pid, line in found.items() if command in line), None)

        pid = until(find, f"{name} has started {command}")
        self.seen |= set(descendants(self.processes[name].pid))
        return int(pid)

    def catch(self, client: int) -> int:
        """Stop a site's worker while it is training; its process id."""
        pid = self.child(f"site-{client}", "pgfed.federation.site.worker")
        while True:
            until(lambda: self.doing(client, "training"), f"client {client} is training")
            os.kill(pid, signal.SIGSTOP)
            # If its answer is on the way already, the server will have it in a moment.
            try:
                until(lambda: not self.doing(client, "training"), "", 6)
            except AssertionError:
                return pid
            os.kill(pid, signal.SIGCONT)
