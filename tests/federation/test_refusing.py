"""With which status the server refuses, and that a site outlives every one of them.

Flower's own client ends, or stays there deaf, after a status that it does not expect: 503 is for
what may be tried again, 401 for who is not admitted, 413 for what is sent and is too large.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from pgfed.federation.flower.gate import origin_of
from pgfed.federation.flower.guard import AT_ONCE, LIMITS, PUSHES, Guard, Visitor
from pgfed.federation.flower.private import FLEET, KEY, SIGNATURE, STAMP, Unreadable
from pgfed.federation.folders.keys import public_pem
from pgfed.federation.site.process import AGAIN, Attendance

KEY_OF_A_SITE = ec.generate_private_key(ec.SECP384R1())


class Connection:
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def introduce(self) -> None:
        pass

    def drop(self) -> None:
        self.ended.set_result(None)


class Door:
    """A guard with one site, and a place behind it where requests stay until told to go."""

    def __init__(self) -> None:
        public = KEY_OF_A_SITE.public_key()
        self.visitor = Visitor(0, "site-00", 1, public)
        self.open = asyncio.Event()
        self.open.set()
        told = {name: (lambda visitor: None) for name in ("alive", "arrives", "wants")}
        self.guard = Guard(self.app, self.app, {public_pem(public): self.visitor}, **told)

    async def app(self, scope, receive, send) -> None:
        await self.open.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def status(
        self, kind: str, size: int = 0, key=KEY_OF_A_SITE, more=(), signer=KEY_OF_A_SITE, signed=""
    ) -> int:
        stamp = datetime.now(UTC).isoformat()
        signature = signer.sign((signed or stamp).encode(), ec.ECDSA(hashes.SHA256()))
        headers = {
            KEY: base64.b64encode(public_pem(key.public_key())),
            STAMP: stamp.encode(),
            SIGNATURE: base64.b64encode(signature),
            b"content-length": str(size).encode(),
        }
        scope = {"type": "http", "method": "POST", "path": f"{FLEET}{kind}"}
        scope |= {"headers": [*more, *headers.items()], "connection": Connection()}
        found: list[int] = []

        async def send(message) -> None:
            found.extend([message["status"]] if "status" in message else [])

        await self.guard(scope, None, send)
        return found[0]


def test_one_request_too_many_is_told_to_come_again():
    async def look() -> list[int]:
        door = Door()
        door.open.clear()
        asked = [
            asyncio.ensure_future(door.status("send-node-heartbeat")) for _ in range(AT_ONCE + 1)
        ]
        while door.visitor.busy < AT_ONCE or not any(task.done() for task in asked):
            await asyncio.sleep(0)
        door.open.set()
        return [await task for task in asked]

    codes = asyncio.run(look())
    assert sorted(codes) == [200] * AT_ONCE + [503]


def test_the_older_of_two_requests_for_messages_is_told_to_come_again():
    async def look() -> list[int]:
        door = Door()
        asked = []
        for number in (1, 2):
            asked.append(asyncio.ensure_future(door.status("pull-messages")))
            while door.visitor.polls < number:
                await asyncio.sleep(0)
        door.visitor.bell.set()
        return [await task for task in asked]

    assert asyncio.run(look()) == [503, 200]


def test_who_is_not_admitted_and_what_is_too_large():
    async def look() -> dict[str, list[int]]:
        door = Door()
        stranger = ec.generate_private_key(ec.SECP384R1())
        return {
            kind: [
                await door.status(kind, key=stranger),
                await door.status(kind, size=most + 1),
                await door.status(kind, size=most) if kind in PUSHES else 0,  # nothing was asked
            ]
            for kind, most in LIMITS.items()
        }

    for kind, codes in asyncio.run(look()).items():
        assert codes == [401, 413, 413 if kind in PUSHES else 0], kind


def test_a_sites_public_key_opens_nothing_without_its_signature():
    """It is no secret; nor is a signature of an hour ago good for now."""

    async def look() -> list[int]:
        door = Door()
        stranger = ec.generate_private_key(ec.SECP384R1())
        before = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        codes = [
            await door.status("send-node-heartbeat", signer=stranger),
            await door.status("send-node-heartbeat", signed=before),
        ]
        assert door.visitor.seen is None  # it counts as no sign of life either
        return codes

    assert asyncio.run(look()) == [401, 401]


@pytest.mark.parametrize("name", [KEY, STAMP, SIGNATURE])
def test_a_request_is_signed_once(name):
    """Of two headers Flower takes the first: another's key, one that was shut out, say."""

    async def look() -> int:
        return await Door().status("send-node-heartbeat", more=[(name, b"AAAA")])

    assert asyncio.run(look()) == 401


def test_a_site_cannot_fill_the_log(monkeypatch, caplog):
    now = [1000.0]
    monkeypatch.setattr("pgfed.federation.flower.guard.time.monotonic", lambda: now[0])

    async def look() -> None:
        door = Door()
        for _ in range(50):
            assert await door.status("push-object", size=10) == 413
            now[0] += 0.1
        assert len(caplog.records) == 1
        for number in range(50):  # always something else
            door.visitor.complain(f"clock {number} s ahead")
            now[0] += 1
        assert len(caplog.records) == 6
        now[0] += 3600
        await door.status("push-object", size=10)
        assert caplog.messages[-1] == "site-00 refused: nothing was asked"

    asyncio.run(look())


def test_what_flower_fails_on_is_one_line_in_the_log(caplog):
    async def look() -> list[int]:
        door = Door()

        async def fail(scope, receive, send) -> None:
            raise IndexError("list index\nout of range")

        door.guard._app = fail
        return [await door.status("send-node-heartbeat") for _ in range(5)]

    assert asyncio.run(look()) == [500] * 5
    (said,) = caplog.messages
    assert said.startswith("site-00 refused: Flower failed on its send-node-heartbeat (IndexError")
    assert said.isprintable()


def test_whoever_has_a_network_of_addresses_is_counted_once():
    assert origin_of("192.0.2.7") == "192.0.2.7"
    assert origin_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert origin_of("2001:db8::1") == origin_of("2001:db8::ffff:2") != origin_of("2001:db8:0:1::1")
    assert origin_of("fe80::1%eth0") == origin_of("fe80::2")


def test_a_site_that_is_let_in_and_refused_in_turns_does_not_hurry(monkeypatch):
    """A server could fill its log, and keep it busy."""
    waits = []
    fleet, site = Fleet([answered(401) for _ in range(20)]), SimpleNamespace(longest=1000)
    attendance = Attendance(site, fleet, lambda _: None, threading.Event())
    monkeypatch.setattr("pgfed.federation.site.process.LIVE", 3600.0)  # no wait of ours
    monkeypatch.setattr(attendance._over, "wait", lambda s: s == 3600.0 or waits.append(s))
    with pytest.raises(Enough):
        attendance.go_on()
    assert len(waits) == 20
    assert (waits[0], waits[-1]) == AGAIN


class Enough(Exception):
    pass


class Fleet:
    """A connection on which everything fails once in each way, and then works."""

    node = 1

    def __init__(self, failures) -> None:
        self.failures = list(failures)
        self.came, self.gone = 0, False

    def come(self) -> None:
        self.came += 1

    def receive(self, seconds: float, most: int):
        if not self.failures:
            raise Enough
        raise self.failures.pop(0)

    def live(self) -> None:
        pass

    def go(self) -> None:
        self.gone = True


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://server/v1/fleet/pull-messages")
    response = httpx.Response(status, text=f"because {status}", request=request)
    return httpx.HTTPStatusError("", request=request, response=response)


def test_a_site_outlives_every_refusal(monkeypatch):
    """It says why, once for each cause, and asks again; 401 makes it come anew."""
    monkeypatch.setattr("pgfed.federation.site.process.AGAIN", (0.0, 0.0))
    failures = [
        *(answered(status) for status in (503, 503, 403, 413, 404, 500, 502, 401)),
        httpx.ConnectError("no route"),
        httpx.ReadTimeout("too late"),
        Unreadable("cut short"),
    ]
    fleet, said, site = Fleet(failures), [], SimpleNamespace(longest=1000)
    with pytest.raises(Enough):
        Attendance(site, fleet, said.append, threading.Event()).go_on()
    assert not fleet.failures
    assert (fleet.came, fleet.gone) == (2, True)
    assert said.count("the server refuses (503): because 503") == 1
    assert "the run ended meanwhile; its message is forgotten" in said
    for status in (404, 413, 500, 502):
        assert f"the server refuses ({status}): because {status}" in said
    assert "the server cannot be reached (no route)" in said
    assert "a message could not be received or sent: cut short" in said
    assert said.count("connected") == 2
