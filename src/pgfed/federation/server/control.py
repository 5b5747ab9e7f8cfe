"""The server, asked from its own machine: one line of JSON over a Unix socket, one line back.

Nobody but the server's user (and root, who may do all anyway) can use it: the folder that it lies
in is closed to others, so is the socket, and the other end's user is asked of the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from pgfed.errors import UserError, one_line
from pgfed.federation.folders.folder import FederationFolder

LONGEST = 1 << 20  # bytes of a line
PATIENCE = 30.0  # seconds for the other end
_ROOM = 100  # bytes that a socket's path may have

Request = dict[str, Any]
Handler = Callable[[Request], Request]  # may raise UserError


def ask(folder: FederationFolder, do: str, **more: Any) -> Request:
    """Ask the server of this federation; raises UserError if it is not there, or refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(PATIENCE)
        try:
            with _near(folder.socket) as path:
                client.connect(path)
            client.sendall(json.dumps({"do": do, **more}).encode() + b"\n")
            with client.makefile("rb") as stream:
                answer: Request = json.loads(stream.readline(LONGEST))
        except PermissionError:
            raise UserError(
                f"{folder.socket}: is another user's; be the one who runs the server"
            ) from None
        except (OSError, ValueError) as error:
            absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            why = "" if absent else f" ({getattr(error, 'strerror', None) or error})"
            raise UserError(
                f"{folder.path}: the server does not answer{why}; is `pgfed federation server "
                f"{folder.path}` running?"
            ) from None
    if "error" in answer:
        raise UserError(str(answer["error"]))
    return answer


def is_there(folder: FederationFolder) -> bool:
    """Whether the server is running."""
    try:
        ask(folder, "status")
    except UserError:
        return False
    return True


def tell(folder: FederationFolder, do: str) -> str:
    """Have a server that is running look at its folder; what to say of that."""
    if not is_there(folder):
        return "the server will know when it is started"
    ask(folder, do)
    return "the server knows"


def is_running(folder: FederationFolder) -> bool:
    """Whether a run is going on; without a server none is."""
    return is_there(folder) and bool(ask(folder, "status")["running"])


@contextlib.asynccontextmanager
async def listening(folder: FederationFolder, handlers: dict[str, Handler]) -> AsyncIterator[None]:
    """Answer at the folder's socket meanwhile."""

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                if _is_ours(writer.get_extra_info("socket")):
                    answer = _answer(handlers, await reader.readline())
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        writer.close()

    with _bound(folder.socket) as listener:
        server = await asyncio.start_unix_server(attend, sock=listener, limit=LONGEST)
        try:
            yield
        finally:
            server.close()
            folder.socket.unlink(missing_ok=True)


def _answer(handlers: dict[str, Handler], line: bytes) -> Request:
    try:
        request = json.loads(line)
        do = request["do"]
        if do not in handlers:
            raise UserError(f"do: found {do!r:.40}; allowed: {', '.join(handlers)}")
        return handlers[do](request)
    except UserError as error:
        return {"error": str(error)}
    except (KeyError, TypeError, ValueError) as error:
        return {"error": one_line(f"not understood ({type(error).__name__}: {error})")}


def _is_ours(other: Any) -> bool:
    """Whether the other end is this process's user, or root."""
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux: the modes of folder and socket protect it
        return True
    form = "3i"
    size = struct.calcsize(form)
    _, user, _ = struct.unpack(form, other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user in (os.getuid(), 0)


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    """The socket, readable by its owner alone from the moment it is there."""
    path.unlink(missing_ok=True)  # of a server that was killed: the port tells if one is running
    path.parent.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _near(path) as near:
            listener.bind(near)
    finally:
        os.umask(before)
    listener.listen()
    listener.setblocking(False)
    with listener:
        yield listener


@contextlib.contextmanager
def _near(path: Path) -> Iterator[str]:
    """The path as a socket's address may have it: these are short."""
    if len(os.fsencode(path)) <= _ROOM:
        yield str(path)
        return
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        near = f"/proc/self/fd/{handle}/{path.name}"
        if not os.path.isdir(os.path.dirname(near)):
            raise UserError(f"{path}: too long for a socket; allowed: {_ROOM} bytes")
        yield near
    finally:
        os.close(handle)
