"""Every fault and attack that REVIEW saw, again, with real processes on loopback.

    python -m pytest -m nightly tests/faults/federation

Each is a row of the table that is printed at the end: "same bits" where the run goes on as if
nothing had been, or "refused" with the line that says so.
"""

from __future__ import annotations

import html
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from faults.federation import tricks
from faults.federation.soak import Soak, full_disk
from federation import small, test_recovery, test_site, test_strangers
from federation.hostile import Hostile
from federation.running import PGFED, Running, until
from federation.small import assert_same_as_serial, history
from federation.test_recovery import status
from pgfed.federation.folders.keys import make_site_key

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

WAITS = ("--min-replies", "3", "--round-timeout", "120")
MINUTE = 60.0


def line(text: str, wanted: str) -> str:
    """The line of a log that says so, without its date."""
    found = [each for each in text.splitlines() if wanted in each]
    assert found, (wanted, text)
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", found[-1])


def federation(federation: Running, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*PGFED, words[0], str(federation.folder.path), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_what_ends_in_the_same_bits(tmp_path, row):
    """One run, to which everything happens that it must outlive."""
    happened = []
    with Running(tmp_path, cohort=1.0, rounds=150, evaluate_every=150).all() as running:
        run = running.run(*WAITS)
        until(lambda: running.status().get("round", 0) >= 1, "a round has been run")
        happened.append(("held", "a site killed in a round"))
        running.catch(1)
        running.kill("site-1")
        running.site(1)
        happened.append(("held", "a site stopped for a minute (SIGSTOP)"))
        stopped = running.catch(2)
        time.sleep(MINUTE)
        os.kill(stopped, signal.SIGCONT)
        happened.append(("D3", "the server killed while sites are at work"))
        running.catch(0)
        running.kill("server")
        assert run.wait(120) == 1
        code, told = status(running)
        assert (code, told["run"]["state"]) == (1, "interrupted")
        assert "the server does not answer" in told["wrong"][0]
        row("D11", "status of a server that is dead", "refused: the server does not answer, code 1")
        os.kill(running.processes["site-0"].pid, signal.SIGCONT)
        running.serve("--resume")
        _goes_on(running)
        happened.append(("held", "everything killed at once"))
        running.catch(1)
        for name in ("server", "site-0", "site-1", "site-2"):
            running.kill(name)
        for client in range(small.SITES):
            running.site(client)
        running.serve("--resume")
        _goes_on(running)
        happened.append(("also", "a site that cannot write (full disk)"))
        _full_disk(running, row)
        happened.append(("also", "the server cannot write (full disk)"))
        full_disk(running.processes["server"].pid)
        _goes_on(running)
        _changed_data(running, tmp_path, row)
        _lost_state(running, row)
        _second_start(running, row)
        happened.append(("D9", "stopped, rolled back three rounds, gone on"))
        _roll_back(running)
        _goes_on(running)
        until(lambda: running.status().get("state") == "finished", "the run has ended", 2400)
        assert_same_as_serial(running.folder, "pgfed")
        dropped = [d for r in history(running.folder, "pgfed") for d in r["dropped"]]
        assert not dropped, dropped
        for each in happened:
            row(*each, "same bits")


def _goes_on(running: Running) -> None:
    """Some more rounds are run."""
    until(lambda: running.status().get("state") == "running", "the run goes on")
    now = running.status()["round"]
    until(lambda: running.status().get("round", 0) >= now + 2, "rounds are run")


def _full_disk(running: Running, row) -> None:
    pid = running.processes["site-2"].pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    until(lambda: "asking again: site-02 (File too large" in running.said("server"), "it is named")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    _goes_on(running)


def _changed_data(running: Running, place: Path, row) -> None:
    """Refused until it is put back."""
    running.kill("site-1")
    data, kept = place / "data-1.npz", place / "kept.npz"
    shutil.copy(data, kept)
    with np.load(kept) as arrays:
        np.savez(data, x=arrays["x"][:30], y=arrays["y"][:30])
    running.site(1)
    said = "this site has changed since the run began: data was"
    until(lambda: said in running.said("site-1"), "it is refused")
    row("D8", "data changed in mid-run", f"refused: {line(running.said('site-1'), said)[9:100]}")
    running.kill("site-1")
    shutil.copy(kept, data)
    running.site(1)
    _goes_on(running)


def _lost_state(running: Running, row) -> None:
    running.kill("site-1")
    site = small.site_path(running.folder.path, 1)
    (site / "state").rename(site / "backup")
    running.site(1)
    until(lambda: "its state of this run is lost" in running.said("site-1"), "it is refused")
    row("D8", "a site's state lost", "refused: its state of this run is lost: put state/ back ...")
    running.kill("site-1")
    shutil.rmtree(site / "state")
    (site / "backup").rename(site / "state")
    running.site(1)
    _goes_on(running)


def _second_start(running: Running, row) -> None:
    site = small.site_path(running.folder.path, 0)
    again = subprocess.run([*PGFED, "site", str(site)], capture_output=True, text=True, timeout=120)
    assert again.returncode == 2
    assert "this site is running already" in again.stderr
    row("also", "a second start with the same key", "refused: this site is running already")


def _roll_back(running: Running) -> None:
    assert federation(running, "stop").returncode == 0
    assert running.processes["server"].wait(120) == 0
    kept = sorted(running.folder.run.glob("pgfed/seed-0/checkpoint/round-*.json"))
    back = int(kept[-1].stem.removeprefix("round-")) - 3
    done = federation(running, "rollback", "--round", str(back))
    assert done.returncode == 0, done.stderr
    running.serve("--resume")


TIMEOUT = 30.0  # on a busy machine the honest ones are slow, too


def test_a_hostile_site(tmp_path, row):
    """Each trick costs it the round, and the others nothing."""
    engine = {"max_update_norm": 50.0}
    with Running(tmp_path, cohort=1.0, rounds=15, engine=engine) as running:
        running.site(0)
        running.site(1)
        running.serve()
        played = {t: trick for t, (_, _, _, trick) in tricks.SITE.items()}
        hostile = Hostile(small.site_path(running.folder.path, 2), played)
        hostile.start()
        # Of the honest ones, who is late all the same is asked again.
        running.finish("--round-timeout", f"{TIMEOUT:g}", "--min-replies", "2")
        peak = test_strangers.memory(running, "VmHWM")
        hostile.over.set()
        hostile.join(60)
        told = history(running.folder, "pgfed")
        why = {r["round"]: d["reason"] for r in told for d in r["dropped"] if d["client"] == 2}
        for t, (review, what, said, _) in tricks.SITE.items():
            assert said in why.get(t, ""), (t, what, why)
            row(review, what, f"refused: {why[t]}"[:100])
        assert set(why) == set(tricks.SITE)
        command = [sys.executable, "-m", "pgfed", "report", str(running.folder.run)]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        page = (running.folder.run / "report.html").read_text()
        assert html.escape(tricks.SCRIPT) in page
        assert tricks.SCRIPT not in page
        assert all(r["seconds"] < 2 * TIMEOUT for r in told)
        assert peak < 600
        lost = small.serial(
            running.folder, "pgfed", lose=lambda t, i: i == 2 and t in why, max_update_norm=50.0
        )
        for client in range(small.SITES):
            named = lost.task.named(lost.personal_model(client))
            assert small.same(small.model_at(running.folder, client, "pgfed"), named)


def test_a_hostile_server(tmp_path, row):
    """A site refuses, and says why; its models stay as they are."""
    with Running(tmp_path, cohort=1.0, rounds=10, methods=["fedavg"]) as running:
        file = small.site_path(running.folder.path, 1) / "site.toml"
        file.write_text(f"max_step = 20.0\n{file.read_text()}")
        for client in range(small.SITES):
            running.site(client)
        program = [sys.executable, "-c", tricks.SERVER.format(change=tricks.HEADS), "federation"]
        running.start("server", "server", str(running.folder.path), program=program)
        until(lambda: "ready at" in running.said("server"), "the server is ready")
        running.finish("--round-timeout", "60", "--min-replies", "2")
        told = history(running.folder, "fedavg")
        why = {r["round"]: d["reason"] for r in told for d in r["dropped"] if d["client"] == 1}
        for t, (review, what, said) in tricks.ASKED.items():
            assert said in why.get(t, ""), (t, what, why)
            row(review, f"the server asks with {what}", f"refused: {why[t]}"[:100])
        assert set(why) == set(tricks.ASKED)


def test_an_impostor_and_a_stranger(tmp_path, row):
    with Running(tmp_path, cohort=1.0) as running:
        place = running.folder.path
        stranger, impostor = small.site_path(place, 1), small.site_path(place, 2)
        for name in ("site.key", "site.pub"):
            (stranger / name).unlink()
        make_site_key(stranger / "site.key", stranger / "site.pub", "stranger")
        file = impostor / "site.toml"
        file.write_text(file.read_text().replace("client = 2", "client = 0"))
        running.all()
        running.finish("--round-timeout", "40")
        said = line(running.said("server"), "claims to be site-00 but does not hold")
        row("held", "another site's id", f"refused: {said}"[:100])
        said = line(running.said("site-1"), "the server refuses (401): this key is not admitted")
        row("held", "a key that nobody admitted", f"refused: {said}")
        wanted = small.serial(running.folder, "pgfed", lose=lambda t, i: i != 0)
        named = wanted.task.named(wanted.personal_model(0))
        assert small.same(small.model_at(running.folder, 0, "pgfed"), named)


STRANGERS = {
    "D1": ("every interface and the socket, as nobody", "another_user_of_the_servers_machine"),
    "D1 ": ("a second port", "nothing_else_listens"),
    "D1  ": ("a secret in the list of processes", "no_token_stands_in_the_list"),
    "D2": ("1 GiB before any signature", "a_body_is_not_read"),
    "D2 ": ("600 silent connections, 256 files", "silent_and_slow_connections"),
    "D2  ": ("headers without end", "too_much_in_the_headers"),
    "also": ("TLS 1.2", "older_tls_is_refused"),
    "also ": ("a site without being asked, and for another", "a_site_within_its_limits"),
}


def test_those_without_a_key(row):
    """What `test_strangers` does daily, noted here."""
    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    place = Path(tempfile.mkdtemp(prefix="pgfed-"))
    place.chmod(0o755)
    try:
        with Running(place / "f") as running:
            running.serve(files=test_strangers.FILES)
            for review, (what, name) in STRANGERS.items():
                (test,) = [f for k, f in vars(test_strangers).items() if f"test_{name}" in k]
                more = {"tmp_path": place} if "tmp_path" in test.__code__.co_varnames else {}
                test(running, **more)
                row(review.strip(), what, f"refused ({test.__name__})")
            with pytest.MonkeyPatch.context() as patch:
                test_strangers.test_a_clock_that_is_wrong_is_named(running, patch)
            said = line(running.said("server"), "clock 12 s ahead")
            row("also", "a clock 12 s ahead", f"refused: {said}")
    finally:
        shutil.rmtree(place)


def test_a_site_removed_and_let_in_again(tmp_path, row):
    with Running(tmp_path, cohort=1.0).all() as running:
        until(running.are_here, "all sites are there")
        pub = small.site_path(running.folder.path, 0) / "site.pub"
        assert federation(running, "remove-site", "site-00").returncode == 0
        until(lambda: "this key is not admitted" in running.said("site-0"), "it is shut out")
        assert federation(running, "add-site", "site-00", "--key", str(pub)).returncode == 0
        until(lambda: running.said("site-0").count("connected") == 2, "it is let in again")
        running.finish(*WAITS)
        assert_same_as_serial(running.folder, "pgfed")
        row("D12", "the first seat's key removed, and admitted again", "same bits")


def test_what_lies_in_a_folder_and_what_comes_late(tmp_path, row):
    """As the daily tests do it, noted here."""
    made = small.make(tmp_path / "f", methods=["fedavg"])
    test_site.test_nothing_in_the_sites_folder_is_imported(made, tmp_path / "f")
    row("D7", "json.py, httpx.py and tomli_w.py in a site's folder", "refused: nothing is imported")
    test_recovery.test_data_that_comes_late_a_second_start_and_the_end(tmp_path / "late")
    row("D12", "data that is not mounted at the start", "refused: data: ... is not there; waiting")


@pytest.mark.timeout(7800)
def test_a_long_run_with_a_fault_every_20_rounds(tmp_path, row):
    outcome = Soak(tmp_path, rounds=500, seed=0, say=print).run(7200)
    row("soak", f"500 rounds, {sum(outcome['faults'].values())} faults", "same bits, memory flat")
