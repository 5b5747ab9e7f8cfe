"""From other machines, the SuperLink's port serves sites and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from pgfed.federation.flower.superlink import guarded


def answer(path: str, client: tuple[str, int] | None, kind: str = "http") -> int | None:
    """The status that a request gets; None if nothing is answered."""
    said: list[dict] = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        said.append(message)

    asyncio.run(guarded(app)({"type": kind, "path": path, "client": client}, None, send))
    return said[0]["status"] if said else None


CLOSED = (
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/acquire-task",
    "/v1/runtime/pull-messages",
    "/docs",
    "/openapi.json",
    "/",
    "/v1/fleet/../control/start-run",
)


@pytest.mark.parametrize("path", CLOSED)
def test_closed_to_other_machines(path):
    assert answer(path, ("10.0.0.5", 1)) == 403
    assert answer(path, ("::ffff:10.0.0.5", 1)) == 403


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/health"])
def test_open_to_sites(path):
    assert answer(path, ("10.0.0.5", 1)) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_all_open_to_this_machine(host):
    assert answer("/v1/control/start-run", (host, 1)) == 200


def test_nobody_in_particular_is_not_this_machine():
    assert answer("/v1/control/start-run", None) == 403
    assert answer("/v1/control/start-run", ("localhost.evil.example", 1)) == 403
    assert answer("/v1/control/start-run", ("10.0.0.5", 1), kind="websocket") is None
