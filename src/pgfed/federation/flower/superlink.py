"""Flower's SuperLink with its doors to other machines closed but one.

Flower 1.41 serves three interfaces on one port: the sites' (signed by their keys), and two that ask
for no credentials: one starts runs, that is, runs code, the other hands a run's tasks and messages
to whoever asks. Those two are for this machine only.
"""

from __future__ import annotations

from pgfed.federation.flower.private import (
    FLEET,
    HEALTH,
    App,
    Receive,
    Scope,
    Send,
    run_superlink,
)
from pgfed.federation.folders.folder import is_loopback

PUBLIC = (FLEET, HEALTH)


def guarded(app: App) -> App:
    """The same app; from other machines, only what sites need."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_allowed(scope):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"for the server's machine only\n"})

    return guard


def _is_allowed(scope: Scope) -> bool:
    client = scope.get("client")
    here = client is not None and is_loopback(client[0])
    path = str(scope.get("path", ""))
    return here or (path.startswith(PUBLIC) and ".." not in path)


def main() -> None:
    """As `flower-superlink`, with the same arguments."""
    run_superlink(guarded)


if __name__ == "__main__":
    main()
