"""What goes wrong between machines, with real processes.

Each time: the run ends, nothing is lost, and the run folder says what happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from federation import small
from federation.running import Running, descendants, until
from federation.small import assert_same_as_serial, history
from pgfed.federation.flower.processes import environment, free_port
from pgfed.federation.folders.keys import make_site_key
from pgfed.methods import registry as algorithms

pytestmark = pytest.mark.nightly

ALL = {"cohort": 1.0}  # every site in every round
WAITS = ("--min-replies", "3", "--round-timeout", "40")  # until every site has answered


@pytest.mark.timeout(3600)
def test_every_method_end_to_end(tmp_path):
    methods = [name for name in algorithms.METHODS if name != "local"]
    with Running(tmp_path, methods=methods).all() as federation:
        federation.finish("--min-replies", "2", seconds=3600)
        for method in methods:
            assert_same_as_serial(federation.folder, method)


def test_a_supernode_killed_in_a_round_and_restarted(tmp_path):
    with Running(tmp_path, **ALL).all() as federation:
        run = federation.run(*WAITS)
        worker = federation.catch(1)
        os.kill(federation.child("site-1", "flower-supernode"), signal.SIGKILL)
        os.kill(worker, signal.SIGCONT)
        assert run.wait(900) == 0, federation.said("run")
        assert "asking again" in federation.said("run")
        assert "the SuperNode ended with code -9" in federation.said("site-1")
        assert_same_as_serial(federation.folder, "pgfed")


def test_a_worker_killed_in_a_round(tmp_path):
    with Running(tmp_path, **ALL).all() as federation:
        run = federation.run("--min-replies", "3", "--round-timeout", "150")
        os.kill(federation.catch(1), signal.SIGKILL)
        assert run.wait(900) == 0, federation.said("run")
        assert "the worker ended with code -9" in federation.said("site-1")
        assert_same_as_serial(federation.folder, "pgfed")


def test_a_superlink_killed_in_a_round_and_resumed(tmp_path):
    with Running(tmp_path, **ALL).all() as federation:
        run = federation.run(*WAITS)
        until(lambda: federation.status().get("round", 0) >= 1, "a round has been run")
        until(lambda: federation.doing(1, "training"), "the next one goes on")
        os.kill(federation.child("server", "pgfed.federation.flower.superlink"), signal.SIGKILL)
        assert run.wait(120) != 0
        assert "go on with --resume" in federation.said("run")
        assert federation.processes["server"].wait(60) == 1
        until(lambda: not federation.left_over(), "the server app has ended with the SuperLink", 90)
        federation.serve()
        federation.finish(*WAITS, "--resume")
        assert "going on after round" in federation.said("run")
        assert_same_as_serial(federation.folder, "pgfed")


def test_a_late_site_misses_the_round_and_is_back_later(tmp_path):
    with Running(tmp_path, rounds=5, **ALL).all() as federation:
        run = federation.run("--min-replies", "2", "--round-timeout", "40")
        worker = federation.catch(1)
        until(lambda: federation.status()["sites"][1]["missed"] == 1, "client 1 missed a round")
        os.kill(worker, signal.SIGCONT)
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
    with Running(tmp_path, rounds=25, evaluate_every=25, **ALL) as federation:
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


def test_strangers_and_impostors(tmp_path):
    """A node without a registered key does not get in; one with another site's id gets no seat."""
    with Running(tmp_path, **ALL) as federation:
        place = federation.folder.path
        stranger, impostor = small.site_path(place, 1), small.site_path(place, 2)
        for name in ("site.key", "site.pub"):
            (stranger / name).unlink()
        make_site_key(stranger / "site.key", stranger / "site.pub", "stranger")
        file = impostor / "site.toml"
        file.write_text(file.read_text().replace("client = 2", "client = 0"))
        federation.all()
        federation.finish("--round-timeout", "60")
        assert "claims to be client 0 but does not hold" in federation.said("run")
        log = (stranger / "log" / "supernode.log").read_text()
        assert "Failed to initialize the connection" in log
        told = history(federation.folder, "pgfed")
        assert [[d["client"] for d in r["dropped"]] for r in told] == [[1, 2]] * 3
        wanted = small.serial(federation.folder, "pgfed", lose=lambda t, i: i != 0)
        named = wanted.task.named(wanted.personal_model(0))
        assert small.same(small.model_at(federation.folder, 0, "pgfed"), named)


# Python runs this at its start: the site's worker turns bad in round 2.
POISON = """
import sys
if "pgfed.federation.site.worker" in sys.orig_argv:
    from pgfed.federation.site.answers import Site

    honest = Site._train

    def train(self, head, parts, node):
        reply, results = honest(self, head, parts, node)
        if head["round"] == 2:
            results["update"]["w"][0] = float("nan")
        return reply, results

    Site._train = train
"""


def test_a_site_that_sends_nan(tmp_path):
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(POISON)
    with Running(tmp_path / "f", **ALL) as federation:
        federation.site(0)
        before = os.environ.get("PYTHONPATH")  # where the pgfed under test may lie
        path = os.pathsep.join([str(hook), *([before] if before else [])])
        federation.site(1, PYTHONPATH=path)
        federation.site(2)
        federation.serve()
        federation.finish("--min-replies", "2")
        told = history(federation.folder, "pgfed")
        nan = {"client": 1, "reason": "w: holds NaN or infinite values"}
        assert [r["dropped"] for r in told] == [[], [nan], []]
        wanted = small.serial(federation.folder, "pgfed", lose=lambda t, i: (t, i) == (2, 1))
        for client in range(small.SITES):
            named = wanted.task.named(wanted.personal_model(client))
            assert small.same(small.model_at(federation.folder, client, "pgfed"), named)


def test_with_flowers_own_commands(tmp_path):
    """Stock SuperNodes, which start a process per message, and `flwr run`."""
    with Running(tmp_path, rounds=2) as federation:
        federation.serve()
        folder = federation.folder
        for client in range(small.SITES):
            site = small.site_path(folder.path, client)
            command = [
                *("flower-supernode", "--superlink", folder.agreement.server),
                *("--root-certificates", str(site / "ca.crt"), "--port", str(free_port())),
                *("--auth-supernode-private-key", str(site / "site.key")),
                *("--node-config", f"site='{site}'"),
            ]
            with (tmp_path / f"stock-{client}.out").open("wb") as out:
                federation.processes[f"stock-{client}"] = subprocess.Popen(
                    command, env=environment(tmp_path / f"flwr-{client}"), stdout=out, stderr=out
                )
        home = tmp_path / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.here]\naddress = "{folder.agreement.server}"\n'
            f'root-certificates = "{folder.server / "ca.crt"}"\n'
        )
        flwr = [str(Path(sys.executable).with_name("flwr")), "run", str(folder.app), "here"]
        done = subprocess.run(
            [*flwr, "--run-config", "min-replies=2", "--stream"],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert federation.status().get("state") == "finished", done.stdout + done.stderr
        assert_same_as_serial(folder, "pgfed")
        for client in range(small.SITES):
            federation.seen |= set(descendants(federation.processes[f"stock-{client}"].pid))


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
        assert codes["control/list-runs"] == codes["runtime/acquire-task"] == "403"
        assert codes["fleet/pull-messages"] != "403"
        run = federation.run("--min-replies", "3", "--round-timeout", "60")
        until(lambda: federation.status().get("round", 0) >= 1, "a round has been run")
        until(lambda: federation.doing(2, "training"), "the next one goes on")
        ip("link", "set", cable, "down")
        with pytest.raises(AssertionError):
            until(lambda: run.poll() is not None, "the run goes on meanwhile", 30)
        ip("link", "set", cable, "up")
        assert run.wait(900) == 0, federation.said("run")
        assert_same_as_serial(federation.folder, "pgfed")
