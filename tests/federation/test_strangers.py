"""What strangers and hostile sites do, against a real server on loopback.

The numbers are small, and every attack ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from federation import small
from federation.flower_private import interceptor
from federation.hostile import (
    Hostile,
    fleet_of,
    half_sent,
    large,
    repeated_chunk,
)
from federation.running import Running, until
from federation.small import history
from pgfed.federation.flower.gate import PER_ADDRESS, STRANGER
from pgfed.federation.flower.guard import AT_ONCE

FILES = 256  # that the server may have open


@pytest.fixture(scope="module")
def federation():
    """A server without sites, in a place where others may look."""
    place = Path(tempfile.mkdtemp(prefix="pgfed-"))
    place.chmod(0o755)
    try:
        with Running(place / "f") as running:
            running.serve(files=FILES)
            yield running
    finally:
        shutil.rmtree(place)


def memory(federation: Running, key: str = "VmRSS") -> float:
    """Of the server, in MB."""
    text = Path(f"/proc/{federation.processes['server'].pid}/status").read_text()
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    assert found
    return int(found[1]) / 1024


def context(federation: Running) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(federation.folder.server / "ca.crt"))


def knock(federation: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", federation.folder.agreement.port), 10)


@contextlib.contextmanager
def encrypted(federation: Running) -> Iterator[ssl.SSLSocket]:
    with (
        knock(federation) as plain,
        context(federation).wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


def said(connection: socket.socket) -> bytes:
    """All that comes until the other end closes; what was sent and not read may reset it."""
    connection.settimeout(STRANGER + 5)
    answer = b""
    try:
        while part := connection.recv(65536):
            answer += part
    except ConnectionError:
        pass
    return answer


# -- strangers ---------------------------------------------------------------------------------

LOCAL = """
import encodings.idna, json, os, socket, ssl, sys, urllib.error, urllib.request
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
url, path = sys.argv[1:]
context = ssl._create_unverified_context()
found = []
for where in ("control/start-run", "control/list-nodes", "runtime/acquire-task",
              "fleet/pull-messages", "fleet/get-fab", "fleet/../control/list-runs"):
    headers = {"X-Forwarded-For": "127.0.0.1", "Content-Type": "application/protobuf"}
    request = urllib.request.Request(f"{url}/v1/{where}", data=b"", headers=headers)
    try:
        found.append(urllib.request.urlopen(request, context=context).status)
    except urllib.error.HTTPError as error:
        found.append(error.code)
client = socket.socket(socket.AF_UNIX)
try:
    client.connect(path)
    client.sendall(json.dumps({"do": "status"}).encode() + b"\\n")
    found.append(client.recv(1000).decode())
except OSError as error:
    found.append(type(error).__name__)
print(json.dumps(found))
"""


def as_nobody(federation: Running) -> list[object]:
    url = f"https://{federation.folder.agreement.server}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOCAL, url, str(federation.folder.socket)],
        env={"FORWARDED_ALLOW_IPS": "*"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_another_user_of_the_servers_machine_gets_nothing(federation):
    assert as_nobody(federation) == [404, 404, 404, 401, 404, 404, "PermissionError"]
    # Were the folder open by mistake, the kernel would still say who asks.
    folder = federation.folder
    for path, mode in ((folder.path, 0o755), (folder.server, 0o755), (folder.socket, 0o666)):
        path.chmod(mode)
    try:
        assert as_nobody(federation)[-1] in ("", "BrokenPipeError", "ConnectionResetError")
    finally:
        folder.server.chmod(0o700)


def test_nothing_else_listens(federation):
    pid = federation.processes["server"].pid
    inodes = {
        match[1]
        for handle in Path(f"/proc/{pid}/fd").iterdir()
        if (match := re.match(r"socket:\[(\d+)\]", os.readlink(handle)))
    }
    listening = [
        row.split()
        for table in ("tcp", "tcp6", "udp", "udp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    ports = [int(r[1].rpartition(":")[2], 16) for r in listening if r[9] in inodes and r[3] == "0A"]
    assert ports == [federation.folder.agreement.port]


def test_no_token_stands_in_the_list_of_processes(federation):
    words = Path(f"/proc/{federation.processes['server'].pid}/cmdline").read_bytes()
    assert words.split(b"\0")[-3:-1] == [b"server", bytes(federation.folder.path)]


def test_older_tls_is_refused(federation):
    old = context(federation)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with knock(federation) as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain, server_hostname="127.0.0.1")
    with encrypted(federation) as connection:
        assert connection.version() == "TLSv1.3"


def test_a_body_is_not_read_before_the_signature(federation):
    before = memory(federation)
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n"
    with encrypted(federation) as connection:
        connection.sendall(head)
        connection.settimeout(0.2)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += connection.send(bytes(1 << 16))
        except (OSError, TimeoutError):
            pass
        assert said(connection).startswith(b"HTTP/1.1 401") or sent < 16 << 20
    assert memory(federation) < before + 20


def test_silent_and_slow_connections_do_not_keep_a_site_out(federation):
    """Six hundred that say nothing, some that say a byte a second: more than it may have open."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(encrypted(federation))
        slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        for _ in range(600):
            stack.enter_context(knock(federation))
        fleet = fleet_of(small.site_folder(federation.folder, 0))
        stack.callback(fleet.close)
        fleet.come()
        fleet.live()
        assert time.monotonic() - began < STRANGER
        handles = len(list(Path(f"/proc/{federation.processes['server'].pid}/fd").iterdir()))
        assert handles < PER_ADDRESS + 40
        slow.settimeout(STRANGER + 5)
        assert said(slow) == b""  # put out, one way or the other
        assert time.monotonic() - began < STRANGER + 5
        fleet.go()


def test_too_much_in_the_headers(federation):
    with encrypted(federation) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
        assert said(connection)[:12] in (b"HTTP/1.1 400", b"")


# -- sites that are not what they should be ----------------------------------------------------


def test_a_site_within_its_limits(federation, tmp_path):
    """Nothing was asked of it: it may not send; nor may it speak for another, or too large."""
    fleet = fleet_of(small.site_folder(federation.folder, 0))
    fleet.come()
    headers = {"content-type": "application/protobuf"}
    url = f"https://{federation.folder.agreement.server}/v1/fleet"

    def post(kind: str, body: bytes, **more: str) -> httpx.Response:
        signed = fleet._client._interceptors[0]
        request = httpx.Request("POST", f"{url}/{kind}", headers=headers | more, content=body)
        made = type("Made", (), {"request": request})()
        with httpx.Client(verify=context(federation)) as client:
            return signed.intercept(made, lambda c: client.send(c.request))

    assert (post("push-object", b"x").status_code, post("push-messages", b"x").status_code) == (
        413,
        413,
    )
    assert "nothing was asked" in post("push-object", b"x").text
    assert post("pull-messages", bytes(5000)).status_code == 413
    chunks = {"Transfer-Encoding": "chunked"}
    assert post("pull-messages", b"5\r\nabcde\r\n0\r\n\r\n", **chunks).status_code == 411
    assert post("send-node-heartbeat", b"\x0a\x02\x08\x07").status_code == 401  # of node 7
    fleet.go()
    fleet.close()


def test_a_site_has_so_many_connections(federation):
    fleets = [fleet_of(small.site_folder(federation.folder, 0)) for _ in range(30)]
    for fleet in fleets:
        fleet.come()
    kept = Path(f"/proc/{federation.processes['server'].pid}/fd")
    until(lambda: len(list(kept.iterdir())) < AT_ONCE + 25, "the others are dropped", 10)
    for fleet in fleets:
        fleet.close()


def test_a_clock_that_is_wrong_is_named(federation, monkeypatch):
    monkeypatch.setattr(interceptor, "now", lambda: datetime.now(UTC) + timedelta(seconds=12))
    fleet = fleet_of(small.site_folder(federation.folder, 1))
    with pytest.raises(httpx.HTTPStatusError) as error:
        fleet.come()
    fleet.close()
    assert error.value.response.status_code == 401
    assert "clock 12 s ahead of the server's" in error.value.response.text
    assert "site-01 refused: clock 12 s ahead" in federation.said("server")


TIMEOUT = 12.0
TRICKS = {2: half_sent, 3: large(12_000_000), 4: repeated_chunk}  # nightly there are more


def test_a_hostile_site_costs_itself_the_round_and_nobody_anything(tmp_path):
    with Running(tmp_path, cohort=1.0, rounds=4) as running:
        running.site(0)
        running.site(1)
        running.serve()
        hostile = Hostile(small.site_path(running.folder.path, 2), TRICKS)
        hostile.start()
        here = "connected"
        until(
            lambda: all(here in running.said(f"site-{i}") for i in (0, 1)), "the others are there"
        )
        until(lambda: hostile.fleet.node, "it is there, too")
        # Of the honest ones, who is late on a busy machine is asked again.
        running.finish("--round-timeout", f"{TIMEOUT:g}", "--min-replies", "2")
        peak = memory(running, "VmHWM")
        hostile.over.set()
        hostile.join(60)
        told = history(running.folder, "pgfed")
        why = {(r["round"], d["client"]): d["reason"] for r in told for d in r["dropped"]}
        assert why.pop((2, 2)) == f"no reply within {TIMEOUT:g} s"
        assert "larger than the" in why.pop((3, 2))
        assert "its arrays take more than" in why.pop((4, 2))
        assert not why
        assert hostile.codes in ({3: 413}, {3: 0})
        assert peak < 600
        lost = small.serial(running.folder, "pgfed", lose=lambda t, i: i == 2 and t in TRICKS)
        for client in range(small.SITES):
            named = lost.task.named(lost.personal_model(client))
            assert small.same(small.model_at(running.folder, client, "pgfed"), named)
