"""What goes wrong between machines, with real processes; tests/faults/federation has the rest.

Each time: the run ends, nothing is lost, and the run folder says what happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from any_model import ANY_MODEL
from federation import small
from federation.running import Running, until
from federation.small import assert_same_as_serial, history

pytestmark = pytest.mark.nightly

ALL = {"cohort": 1.0}  # every site in every round


@pytest.mark.timeout(3600)
def test_every_method_end_to_end(tmp_path):
    methods = [name for name in ANY_MODEL if name != "local"]
    with Running(tmp_path, methods=methods).all() as federation:
        federation.finish("--min-replies", "2", seconds=3600)
        for method in methods:
            assert_same_as_serial(federation.folder, method)


def test_a_late_site_misses_the_round_and_is_back_later(tmp_path):
    with Running(tmp_path, rounds=5, **ALL).all() as federation:
        run = federation.run("--min-replies", "2", "--round-timeout", "40")
        site = federation.catch(1)
        until(lambda: federation.status()["sites"][1]["missed"] == 1, "client 1 missed a round")
        os.kill(site, signal.SIGCONT)
        assert run.wait(900) == 0, federation.said("run")
        told = history(federation.folder, "pgfed")
        missed = {r["round"] for r in told for d in r["dropped"] if d["client"] == 1}
        assert missed
        assert 5 not in missed
        assert {d["reason"] for r in told for d in r["dropped"]} == {"no reply within 40 s"}
        # What it did too late does not count, on either side.
        wanted = small.serial(federation.folder, "pgfed", lose=lambda t, i: i == 1 and t in missed)
        for client in range(small.SITES):
            named = wanted.task.named(wanted.personal_model(client))
            assert small.same(small.model_at(federation.folder, client, "pgfed"), named)


def test_a_seat_is_taken_while_the_run_goes_on(tmp_path):
    with Running(tmp_path, rounds=80, evaluate_every=80, **ALL) as federation:
        for client in (0, 1):
            federation.site(client)
        federation.serve()
        run = federation.run("--min-replies", "2", "--round-timeout", "40")
        until(lambda: federation.status().get("round", 0) >= 1, "a round has been run")
        federation.site(2)
        assert run.wait(1200) == 0, federation.said("run")
        told = history(federation.folder, "pgfed")
        assert told[0]["dropped"] == [{"client": 2, "reason": "not connected"}]
        assert not told[-1]["dropped"]


def test_without_tls_on_loopback(tmp_path):
    with Running(tmp_path, insecure=True).all() as federation:
        federation.finish("--min-replies", "2")
        assert_same_as_serial(federation.folder, "pgfed")


# -- a network that fails ----------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespace():
    """A network namespace with a cable to this one: (name, our end, our address)."""
    name = f"pgfed{uuid.uuid4().hex[:6]}"
    here, there = f"{name}a", f"{name}b"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces are not allowed here")
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("addr", "add", "10.213.7.1/24", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", "10.213.7.2/24", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name, here, "10.213.7.1"
    finally:
        ip("netns", "del", name)


ASK = """
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile=sys.argv[2])
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=b""), context=context)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_a_cable_is_cut_and_mended(tmp_path, namespace):
    """One site in a network of its own; over that network only the sites' door is open."""
    name, cable, address = namespace
    inside = ("ip", "netns", "exec", name)
    with Running(tmp_path, address, **ALL) as federation:
        federation.site(0)
        federation.site(1)
        federation.site(2, before=inside)
        federation.serve()
        url = f"https://{federation.folder.agreement.server}"
        ca = str(federation.folder.server / "ca.crt")
        codes = {}
        for path in ("control/list-runs", "runtime/acquire-task", "fleet/pull-messages"):
            command = [*inside, sys.executable, "-c", ASK, f"{url}/v1/{path}", ca]
            codes[path] = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        assert codes["control/list-runs"] == codes["runtime/acquire-task"] == "404"
        assert codes["fleet/pull-messages"] == "401"
        run = federation.run("--min-replies", "3", "--round-timeout", "60")
        until(lambda: federation.status().get("round", 0) >= 1, "a round has been run")
        until(lambda: federation.doing(2, "training"), "the next one goes on")
        ip("link", "set", cable, "down")
        with pytest.raises(AssertionError):
            until(lambda: run.poll() is not None, "the run goes on meanwhile", 30)
        ip("link", "set", cable, "up")
        assert run.wait(900) == 0, federation.said("run")
        assert_same_as_serial(federation.folder, "pgfed")
