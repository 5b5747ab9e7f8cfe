"""Processes that are killed, and what `status` says of it. More of this is in test_faults."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
from itertools import count

import pytest

from federation import small
from federation.hostile import fleet_of
from federation.local_grid import grid_of
from federation.running import PGFED, Running, free_port, until
from federation.small import assert_same_as_serial, history
from pgfed.cli.terminal.federation import look
from pgfed.engine.storage import checkpoints
from pgfed.federation.server.conduct import Options
from pgfed.federation.server.process import Server, serve
from pgfed.federation.site.answers import Site
from pgfed.federation.site.process import _alone


def status(federation: Running) -> tuple[int, dict]:
    """The exit code of `status`, and what it tells a program."""
    told = look(federation.folder)
    return int(bool(told["wrong"])), told


def test_the_server_is_killed_while_sites_work_and_goes_on_by_itself(tmp_path):
    """Who is there is known from signs of life; sites come back, and the bits are the same."""
    with Running(tmp_path, cohort=1.0) as federation:
        federation.site(0)
        federation.site(1)
        federation.serve("--resume")  # there is nothing to go on with: it serves
        until(lambda: "connected" in federation.said("site-0"), "site 0 is there")
        until(lambda: "connected" in federation.said("site-1"), "site 1 is there")
        code, told = status(federation)
        assert code == 1
        assert [line.partition(" is missing")[0] for line in told["wrong"]] == ["site-02"]
        assert [site["age"] is None for site in told["server"]["sites"]] == [False, False, True]

        federation.site(2)
        run = federation.run("--min-replies", "3", "--round-timeout", "120")
        until(lambda: federation.status().get("round", 0) >= 1, "a round has been run")
        stopped = federation.catch(1)
        code, told = status(federation)
        assert (code, told["wrong"], told["run"]["state"]) == (0, [], "running")
        federation.kill("server")
        assert run.wait(60) == 1
        assert "go on with --resume" in federation.said("run")
        code, told = status(federation)
        assert (code, told["server"], told["run"]["state"]) == (1, None, "interrupted")
        assert "the server does not answer" in told["wrong"][0]

        federation.serve("--resume")
        assert "going on with the run" in federation.said("server")
        os.kill(stopped, signal.SIGCONT)
        until(lambda: federation.status().get("state") == "finished", "the run has ended")
        assert_same_as_serial(federation.folder, "pgfed")
        assert not [r["dropped"] for r in history(federation.folder, "pgfed") if r["dropped"]]
        until(lambda: status(federation)[0] == 0, "all is well", 60)


def test_data_that_comes_late_a_second_start_and_the_end(tmp_path):
    with Running(tmp_path) as federation:
        data = tmp_path / "data-0.npz"
        data.rename(tmp_path / "not-mounted")
        federation.site(0)
        until(lambda: "is not there, or empty; waiting" in federation.said("site-0"), "it waits")
        again = subprocess.run(
            [*PGFED, "site", str(small.site_path(federation.folder.path, 0))],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert again.returncode == 2
        assert "this site is running already" in again.stderr
        (tmp_path / "not-mounted").rename(data)
        until(lambda: "samples to train on" in federation.said("site-0"), "it has its data")
        until(lambda: "cannot be reached" in federation.said("site-0"), "it looks for the server")
        federation.serve()
        until(lambda: "connected" in federation.said("site-0"), "it is there")
        assert federation.folder.socket.is_socket()
        # Told to end by systemd, or with Ctrl+C.
        for name, number in (("site-0", signal.SIGINT), ("server", signal.SIGTERM)):
            federation.processes[name].send_signal(number)
            assert federation.processes[name].wait(60) == 0, federation.said(name)
            assert "Traceback" not in federation.said(name)
        assert not federation.folder.socket.exists()


def test_a_site_starts_though_its_disk_is_full(tmp_path):
    """It says so when it is asked for something, and goes on when there is room."""
    site = small.site_folder(small.make(tmp_path), 0)
    with _alone(site):
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with _alone(site):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
        return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_server_at_an_address_of_ipv6(tmp_path):
    with Running(tmp_path, host="[::1]") as federation:
        federation.serve()
        with contextlib.closing(fleet_of(small.site_folder(federation.folder, 0))) as fleet:
            fleet.come()
            assert fleet.node
            fleet.go()


def test_a_server_that_cannot_serve_any_more_ends(tmp_path, monkeypatch):
    """It must not stay there deaf; systemd starts it again."""

    async def fail(self):
        self._listener.close()
        raise RuntimeError("no more connections")

    monkeypatch.setattr("pgfed.federation.flower.gate.Gate.serve", fail)
    folder = small.make(tmp_path, f"127.0.0.1:{free_port()}")
    with pytest.raises(RuntimeError, match="no more connections"):
        serve(folder, lambda text: None)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_at_the_server_is_waited_out(tmp_path, monkeypatch, caplog, number):
    """Named, and gone on with by itself when there is room; another failure ends the run."""
    folder = small.make(tmp_path, cohort=1.0)
    server = Server(folder, lambda text: None)
    server._grid = grid_of(Site(small.site_folder(folder, i)) for i in range(small.SITES))
    written, pauses = count(), []
    honest = checkpoints.write_atomic

    def write(path, data):
        if next(written) in (2, 3):  # in the second round, and when it is run again
            raise OSError(number, os.strerror(number), str(path))
        honest(path, data)

    monkeypatch.setattr(checkpoints, "write_atomic", write)
    monkeypatch.setattr(server._ending, "wait", lambda seconds: pauses.append(look(folder)["run"]))
    server._link.begin()
    server._conduct(Options(round_timeout=1.0, min_replies=3))
    if number == errno.ENOSPC:
        assert [(run["state"], run["round"]) for run in pauses] == [("interrupted", 2)] * 2
        assert all("(No space left on device)" in run["error"] for run in pauses)
        assert caplog.text.count("the run waits, disk full at the server") == 2
        assert_same_as_serial(folder, "pgfed")
    else:
        assert not pauses
        assert "the run ended: " in caplog.text
    assert look(folder)["run"]["state"] == ("finished" if pauses else "failed")
