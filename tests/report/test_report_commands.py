"""`pgfed report` and `pgfed watch`."""

from __future__ import annotations

import io
import json
import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from pgfed.cli.report import register
from pgfed.cli.terminal.watch import sparkline, watch
from pgfed.engine.storage.durable import FolderLock
from pgfed.errors import UserError
from pgfed.model.metrics import ACCURACY, METRICS
from pgfed.results.folder.history import history_of
from pgfed.results.folder.running import Progress, Watched, seconds_left
from report.folders import at_work, make_folder

app = typer.Typer()
register(app)


def call(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "run", methods=["local", "pgfed"], seeds=[0], clients=5, rounds=6)


def test_a_page_beside_the_run(small: Path) -> None:
    assert call("report", small) == f"Report: {small / 'report.html'}\n"
    assert (small / "report.html").stat().st_size > 1_000_000


def test_tables_go_to_the_standard_output(small: Path) -> None:
    assert call("report", small, "--format", "csv").startswith("federation,method,")
    assert call("report", small, "--format", "latex").startswith(r"\begin{table}")
    assert not (small / "report.html").exists()


def test_out_and_figures(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.md"
    printed = call("report", small, "--format", "md", "--out", out, "--figures", out.parent)
    assert out.read_text().startswith("# digits, 5 clients")
    assert (tmp_path / "new" / "curves.svg").is_file()
    assert str(tmp_path / "new" / "curves.svg") in printed


def test_several_runs_one_page(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_folder(tmp_path / "other", seeds=[0], fingerprint="0" * 64)
    monkeypatch.chdir(tmp_path)
    assert call("report", small, other) == "Report: report.html\n"
    assert "All federations" in (tmp_path / "report.html").read_text()


def test_an_unwritable_place_is_one_line(small: Path) -> None:
    (small / "file").write_text("")
    with pytest.raises(UserError, match=r"--out: .* cannot be written"):
        call("report", small, "--out", small / "file" / "x.html")


def test_json_has_the_verdict_and_every_table(small: Path) -> None:
    (found,) = json.loads(call("report", small, "--json"))
    assert found["metric"] == "accuracy"
    assert found["verdict"]["headline"]
    clients = found["tables"]["clients"]
    assert {"client", "statement", "gain", "interval"} <= clients[0].keys()
    gain = {row["method"]: row["gain"] for row in found["tables"]["results"]}["pgfed"]
    assert gain["low"] <= gain["mean"] <= gain["high"]
    assert gain["mean"] == pytest.approx(np.mean([row["gain"] for row in clients]))
    assert not (small / "report.html").exists()


# -- watch -------------------------------------------------------------------------------------


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_watch_once_without_a_terminal(small: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    watch(small, console)
    text = printed(console)
    assert "6/6" in text
    assert "finished" in text
    assert "15 MB" not in text
    assert "3 MB" in text  # pgfed: 6 rounds of 500 kB


def test_watch_follows_a_growing_run_to_its_end(small: Path) -> None:
    history = small / "pgfed" / "seed-0" / "history.jsonl"
    whole = history.read_text().splitlines(keepends=True)
    history.write_text("".join(whole[:2]) + whole[2][:30])
    seen: list[int] = []
    watched = Watched(small)

    def next_second(_: float) -> None:
        done = watched.progress()[1].done
        seen.append(done)
        history.write_text("".join(whole[: done + 2]))

    console = terminal()
    with at_work(small):
        watch(small, console, next_second)
    assert seen == [2, 4]
    assert "about" in printed(console)
    assert "finished" in printed(console)


def test_watch_keeps_progress_and_time_left_in_sight(tmp_path: Path) -> None:
    """Six methods under six seeds, on a terminal of 24 lines."""
    methods = ["local", "fedavg", "fedavg-local", "pgfed", "pgfed-mo", "fedper"]
    seeds = list(range(6))
    folder = make_folder(tmp_path / "many", methods=methods, seeds=seeds, clients=3, rounds=3)
    for seed in range(2, 6):
        (folder / "pgfed" / f"seed-{seed}" / "history.jsonl").unlink()
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with at_work(folder), pytest.raises(InterruptedError):
        watch(folder, console, raise_interrupted)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", printed(console))
    lines = text.split("many: ")[1].splitlines()  # the first time it was drawn
    assert lines[0].startswith("96 of 108 rounds, about ")
    assert lines[0].rstrip().endswith("left")
    assert len(lines) < 24
    assert any("pgfed" in line and "0/3" in line for line in lines)  # what is being run
    assert any("16 more of 36" in line for line in lines)


def test_one_long_round_says_nothing_of_the_others() -> None:
    """`alone` trains to its end in one round."""
    rounds = {"alone": (1, 1, 100.0), "fedavg": (4, 2, 1.0), "pgfed": (4, 0, 1.0)}
    progress = []
    for method, (asked, done, seconds) in rounds.items():
        records = [_record(t, seconds) for t in range(1, done + 1)]
        progress.append(Progress(method, 0, asked, history_of(records)))
    assert seconds_left(progress) == pytest.approx(6.0)
    assert seconds_left(progress[:1] + progress[2:]) is None


def _record(round: int, seconds: float) -> dict[str, object]:
    counted = {"samples": 90, "train_seconds": seconds, "bytes_down": 10, "bytes_up": 10}
    about = {"round": round, "mean_score": 0.5, "seconds": seconds, "cohort": [0], "dropped": []}
    return {**about, **counted}


def raise_interrupted(_: float) -> None:
    raise InterruptedError


def test_watch_before_anything_has_begun(small: Path) -> None:
    (small / "pgfed" / "seed-0" / "history.jsonl").unlink()
    console = Console(file=io.StringIO(), width=100)
    watch(small, console)
    assert "0/6" in printed(console)


def test_stopping_to_watch_is_no_error(small: Path) -> None:
    (small / "pgfed" / "seed-0" / "history.jsonl").unlink()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with at_work(small):
        watch(small, terminal(), interrupt)


def never(_: float) -> None:
    pytest.fail("it waits for a run that nobody runs")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_watch_ends_where_nobody_runs_it(small: Path, is_terminal: bool) -> None:
    history = small / "pgfed" / "seed-0" / "history.jsonl"
    history.write_text("".join(history.read_text().splitlines(keepends=True)[:2]))
    (small / ".lock").write_text("1")  # as a killed run leaves it: the file, but no lock on it
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=40)
    watch(small, console, never)
    lines = printed(console).splitlines()
    assert lines[-1].endswith(f"Not running; `pgfed resume {small}` goes on.")
    assert "8 of 12 rounds" in printed(console)
    assert "left" not in printed(console)


def test_watch_ends_with_the_process_that_it_watches(small: Path) -> None:
    (small / "pgfed" / "seed-0" / "history.jsonl").unlink()
    console = terminal()
    with ExitStack() as process:
        process.enter_context(at_work(small))
        watch(small, console, lambda _: process.close())
    assert "Not running" in printed(console)


def test_watch_says_nothing_of_the_kind_while_it_runs(small: Path) -> None:
    (small / "pgfed" / "seed-0" / "history.jsonl").unlink()
    console = Console(file=io.StringIO(), width=100)
    with at_work(small):
        watch(small, console)
        with pytest.raises(UserError, match="another pgfed is at work"):
            FolderLock(small).acquire()  # watching did not let its lock go
    assert "Not running" not in printed(console)
    assert "left" in printed(console)


def test_watch_knows_how_a_federation_goes_on(small: Path) -> None:
    (small / "pgfed" / "seed-0" / "history.jsonl").unlink()
    (small.parent / "federation.toml").write_text("")
    console = Console(file=io.StringIO(), width=100)
    watch(small, console)
    assert f"`pgfed federation run {small.parent} --resume` goes on" in printed(console)


def test_watch_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        watch(tmp_path, terminal())


def test_watch_names_a_damaged_file(small: Path) -> None:
    (small / "pgfed" / "seed-0" / "history.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(UserError, match=r"history\.jsonl: a record has no .*damaged"):
        watch(small, terminal())


def test_sparkline() -> None:
    assert sparkline((), ACCURACY) == ""
    assert sparkline((0.0, 0.5, 1.0), ACCURACY) == "▁▅█"
    assert len(sparkline(tuple(k / 100 for k in range(100)), ACCURACY)) == 12
    assert sparkline(tuple([0.1] * 99 + [1.0]), ACCURACY)[-1] == "█"
    # Without bounds, over its own range.
    assert sparkline((40.0, 30.0, 20.0), METRICS["mae"]) == "█▅▁"
    assert sparkline((2.0, 2.0), METRICS["r2"]) == "▅▅"
