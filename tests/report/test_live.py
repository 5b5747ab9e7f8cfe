"""The live page: of a run that goes on, for browsers of this machine, and nothing else."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgfed.cli.app import app
from pgfed.errors import UserError
from pgfed.report.pages import live
from pgfed.report.pages.live import LiveServer
from pgfed.results.folder.running import Watched
from report.folders import at_work, make_folder
from report.test_report_page import Tags, payload

METHODS = ["local", "fedavg", "pgfed"]


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """Two methods have finished, the third is at round 3 of 6."""
    lost = [{"client": 4, "reason": "no reply"}]
    folder = make_folder(
        tmp_path / "run", methods=METHODS, seeds=[0], clients=5, rounds=6, dropped=lost
    )
    begin_again(folder, "pgfed", 3)
    (folder / "summary.json").unlink()
    return folder


def begin_again(folder: Path, method: str, rounds: int) -> None:
    """As it was after so many rounds."""
    at = folder / method / "seed-0"
    whole = (at / "history.jsonl").read_text().splitlines(keepends=True)
    (at / "history.jsonl").write_text("".join(whole[:rounds]))
    for name in ("clients.csv", "evidence.npz"):
        (at / name).unlink(missing_ok=True)


@contextmanager
def served(folder: Path) -> Iterator[LiveServer]:
    with LiveServer(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def ask(
    server: LiveServer, path: str = "/", method: str = "GET", host: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    headers = {} if host is None else {"Host": host}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def words(text: str) -> str:
    return " ".join(" ".join(Tags(text).text).split()).replace("\u00a0", " ")


def test_a_running_run_has_a_banner_and_curves_but_no_verdict(running: Path) -> None:
    with at_work(running), served(running) as server:
        status, text = ask(server)
    assert status == 200
    shown = words(text)
    assert (
        "Running · pgfed, seed 0: round 3 of 6 · 15 of 18 rounds in all · about 2 s left" in shown
    )
    assert "No verdict yet" in shown
    assert "Federating helped" not in shown
    assert 'class="leader"' not in text
    assert "clearly gained" not in text
    drawn = {trace["meta"] for trace in payload(text)[0]["figures"]["curves"][0][0]["data"]}
    assert drawn == {"local", "fedavg", "pgfed (running)"}


def test_before_any_method_has_finished_there_are_curves(running: Path) -> None:
    begin_again(running, "local", 2)
    begin_again(running, "fedavg", 0)
    with served(running) as server:
        shown = words(text := ask(server)[1])
    assert "Not running · local, seed 0: round 2 of 6" in shown
    assert " · 1 seed · " in shown
    (group,) = payload(text)
    assert set(group["figures"]) == {"curves"}


def test_the_end_is_the_report(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", methods=METHODS, seeds=[0], rounds=6)
    with served(folder) as server:
        shown = words(ask(server)[1])
    assert "Finished · 18 of 18 rounds in all" in shown
    assert "No verdict yet" not in shown


def test_it_is_made_when_somebody_looks_and_the_run_has_moved_on(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(live, "live_page", lambda standing: made.append(standing.done) or "page")
    with served(running) as server:
        assert made == []
        for _ in range(3):
            assert ask(server) == (200, "page")
        assert made == [15]
        begin_again(running, "pgfed", 2)
        ask(server)
    assert made == [15, 14]


def test_progress_tells_who_is_missing_and_what_diverges(running: Path) -> None:
    begin_again(running, "pgfed", 2)  # client 4 was lost in the second round
    history = running / "pgfed" / "seed-0" / "history.jsonl"
    first, second = history.read_text().splitlines(keepends=True)
    history.write_text(first + second.replace('"mean_loss": 1.0', '"mean_loss": 25.0'))
    with at_work(running), served(running) as server:
        status, text = ask(server, "/progress.json")
        shown = words(ask(server)[1])
    found = json.loads(text)
    assert status == 200
    assert (found["state"], found["rounds_done"], found["rounds"]) == ("running", 14, 18)
    assert found["missing"] == ["4"]
    assert any("pgfed, seed 0: may be diverging; the loss is 25" in w for w in found["warnings"])
    assert "Missing in the last round: 4." in shown
    assert "may be diverging" in shown


def test_sites_of_a_federation_that_are_away_are_named(running: Path) -> None:
    sites = [{"name": "north", "here": True}, {"name": "south", "here": False}]
    (running / "status.json").write_text(json.dumps({"sites": sites}))
    with at_work(running):
        assert Watched(running).standing().missing() == ["south"]
    assert Watched(running).standing().missing() == []  # nobody waits for them


# -- for whom, and for what ---------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/report.html", "/../x.toml", "/?", "/experiment.toml"])
def test_it_answers_with_the_page_and_with_nothing_else(running: Path, path: str) -> None:
    with served(running) as server:
        status, text = ask(server, path)
    assert status == 404
    assert text == live.LIKE


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", ""])
def test_a_strangers_name_for_this_machine_is_refused(running: Path, host: str) -> None:
    with served(running) as server:
        assert ask(server, host=host.format(port=server.server_port))[0] == 403
        assert ask(server, "/progress.json", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed_by_it(running: Path, method: str) -> None:
    with served(running) as server:
        assert ask(server, method=method)[0] == 501


def test_it_listens_on_this_machine_only(running: Path) -> None:
    with served(running) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_silent_visitors_are_bounded(running: Path) -> None:
    with served(running) as server:
        silent = [socket.create_connection(server.server_address[:2]) for _ in range(live.MOST)]
        deadline = threading.Event()
        for _ in range(500):  # until all of them have their thread
            if not server.free.acquire(blocking=False):
                break
            server.free.release()
            deadline.wait(0.01)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server)
        for one in silent:
            one.close()
        for _ in range(500):
            try:
                assert ask(server, "/progress.json")[0] == 200
                break
            except (http.client.HTTPException, OSError):
                deadline.wait(0.01)
        else:
            pytest.fail("it does not answer after the silent ones have gone")


def test_a_port_that_is_taken_is_one_line(running: Path) -> None:
    with served(running) as server, pytest.raises(UserError, match=r"--port: .* cannot be used"):
        LiveServer(running, server.server_port)


def test_a_damaged_file_is_one_line_in_the_browser(running: Path) -> None:
    with served(running) as server:
        (running / "fedavg" / "seed-0" / "history.jsonl").write_text('{"round": 1}\n')
        status, text = ask(server)
    assert status == 500
    assert "history.jsonl: a record has no" in text


# -- watch --json -------------------------------------------------------------------------------


def test_watch_json_is_for_scripts(running: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(running), "--json"])
    found = json.loads(done.stdout)
    assert (found["state"], found["seconds_left"]) == ("stopped", None)
    by_name = {run["method"]: run for run in found["runs"]}
    assert (by_name["pgfed"]["round"], by_name["pgfed"]["finished"]) == (3, False)
    last = json.loads((running / "fedavg/seed-0/history.jsonl").read_text().splitlines()[-1])
    assert by_name["fedavg"]["score"] == last["mean_score"]


def test_watch_json_and_serve_exclude_each_other(running: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(running), "--json", "--serve"])
    assert isinstance(done.exception, UserError)
