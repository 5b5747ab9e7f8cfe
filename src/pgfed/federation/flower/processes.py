"""The processes of a federation: a SuperLink at the server, SuperNode and worker at a site."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pgfed.errors import UserError
from pgfed.federation.folders.folder import FederationFolder, SiteFolder, is_loopback
from pgfed.federation.folders.keys import write_private
from pgfed.modules import handed_on

AGAIN = 5.0  # seconds until a process that ended is started again
STARTING = 120.0  # seconds the SuperLink may take to answer
STOPPING = 10.0  # seconds a process has to end when told to
MISTAKE = 2  # exit code of what does not mend itself

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
}
SAFE = {"PYTHONSAFEPATH": "1"}


class Stopped(Exception):
    """Somebody told us to stop."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """No telemetry, no look-ups, Flower's files in a folder of ours, its commands on the path.

    Nothing is imported from the current folder, which may be one that somebody handed out.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, **SAFE, "PATH": path, "FLWR_HOME": str(home), **more}


def start(command: list[str], env: dict[str, str], log: Path | None) -> subprocess.Popen[bytes]:
    """A child that ends when this process does, even by SIGKILL."""
    parent = os.getpid()

    def die_with_parent() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to handle
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

    with contextlib.ExitStack() as stack:
        out = None if log is None else stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=die_with_parent,
        )  # fmt: skip


def stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOPPING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM, as systemd sends it, ends the block as Ctrl+C does."""

    def raise_stopped(number: int, frame: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, raise_stopped)
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


# -- the server --------------------------------------------------------------------------------


def serve(
    folder: FederationFolder, say: Callable[[str], None], module_path: Sequence[Path] = ()
) -> None:
    """Run the SuperLink until told to stop; own modules are also found in ``module_path``."""
    from pgfed.federation.flower.control import Control

    agreement = folder.agreement
    host = "127.0.0.1" if is_loopback(agreement.host) else "0.0.0.0"
    command = [
        *(sys.executable, "-m", "pgfed.federation.flower.superlink"),
        *("--host", host, "--port", str(agreement.port)),
        *("--database", str(folder.server / "superlink.db")),
        "--disable-runtime-dependency-installation",
    ]
    if agreement.insecure:
        command += ["--insecure"]
    else:
        command += ["--enable-supernode-auth"]
        for option, file in (("ca-certfile", "ca.crt"), ("certfile", "server.crt")):
            command += [f"--ssl-{option}", str(folder.server / file)]
        command += ["--ssl-keyfile", str(folder.server / "server.key")]
    _check_port(host, agreement.port)
    told = {"PGFED_FEDERATION": str(folder.path), **handed_on(module_path)}
    env = environment(folder.server / "flwr", **told)
    log = folder.server / "superlink.log"
    with stoppable():
        child = start(command, env, log)
        try:
            control = Control(folder)
            end = time.monotonic() + STARTING
            while not control.is_up():
                if child.poll() is not None or time.monotonic() > end:
                    raise UserError(f"the SuperLink did not start; see {log}")
                time.sleep(0.2)
            if not agreement.insecure:
                control.register_sites()
            control.close()
            say(f"ready at {agreement.server} for {agreement.seats} sites; Flower's log: {log}")
            code = child.wait()
            say(f"the SuperLink ended with code {code}; see {log}")
            raise SystemExit(1)  # a supervisor starts it again
        finally:
            stop(child)


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"port {port}: cannot be used ({error.strerror})") from None


# -- a site ------------------------------------------------------------------------------------


def attend(
    folder: SiteFolder, data: str, say: Callable[[str], None], module_path: Sequence[Path] = ()
) -> None:
    """Run the SuperNode and the worker until told to stop; what ends is started again.

    The modules that site.toml allows are also found in ``module_path``.

    A node that comes back is refused for about a minute, while the server still believes its
    predecessor to be there, and ends; so it is tried again and again.
    """
    folder.states.mkdir(exist_ok=True)
    folder.logs.mkdir(exist_ok=True)
    secret = folder.states / "worker.secret"  # between SuperNode and worker, on this machine
    secret.unlink(missing_ok=True)
    write_private(secret, secrets.token_bytes(32))
    port = free_port()
    env = environment(folder.states / "flwr", **handed_on(module_path))
    node = [
        *("flower-supernode", "--superlink", folder.file.server),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]
    if folder.file.insecure:
        node += ["--insecure"]
    else:
        node += ["--root-certificates", str(folder.authority)]
        node += ["--auth-supernode-private-key", str(folder.key)]
    worker = [
        *(sys.executable, "-m", "pgfed.federation.site.worker"),
        *(str(folder.path), data, f"127.0.0.1:{port}", str(secret)),
    ]
    log = folder.logs / "supernode.log"
    say(f"client {folder.file.client} of {folder.file.federation}, server {folder.file.server}")
    with stoppable():
        children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            while True:
                for name, command, out in (("worker", worker, None), ("SuperNode", node, log)):
                    child = children.get(name)
                    code = None if child is None else child.poll()
                    if name == "worker" and code == MISTAKE:
                        raise SystemExit(MISTAKE)  # the worker has said what is wrong
                    if code is not None:
                        why = f" (see {log})" if out else ""
                        say(f"the {name} ended with code {code}{why}; starting it again")
                        time.sleep(AGAIN)
                    if child is None or code is not None:
                        children[name] = start(command, env, out)
                time.sleep(0.2)
        finally:
            for child in children.values():
                stop(child)


def free_port() -> int:
    """A port of this machine that nothing uses.

    From below those that systems hand out by themselves: it is still free a little later.
    """
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UserError("found no free port between 20000 and 32000")
