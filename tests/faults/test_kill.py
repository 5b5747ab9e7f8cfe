"""Power cuts: a run that is killed and resumed gives the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any_model import ANY_MODEL

ROUNDS = 6
PGFED = [sys.executable, "-m", "pgfed"]
LIMIT = 300  # seconds; a command that takes longer hangs


def experiment(folder: Path, methods: list[str]) -> Path:
    path = folder / "experiment.toml"
    path.write_text(
        f"""
        name = "killed"
        rounds = {ROUNDS}
        methods = {json.dumps(methods)}
        [data]
        clients = 6
        min_samples = 10
        [train]
        epochs = 1
        batch_size = 16
        [engine]
        workers = 2
        """
    )
    return path


def run_whole(exp: Path, out: Path) -> None:
    subprocess.run(
        [*PGFED, "run", str(exp), "--out", str(out), "--quiet"], check=True, timeout=LIMIT
    )


def contents(folder: Path) -> dict[str, Any]:
    """All that must be equal: files byte for byte, histories but for their timing."""
    out: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "history.jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines()]
            out[name] = [
                {k: v for k, v in record.items() if not k.endswith("seconds")} for record in records
            ]
        elif path.is_file() and path.name not in (
            "environment.json",
            "summary.json",
            "report.html",
        ):
            out[name] = path.read_bytes()
    return out


def progress(out: Path) -> int:
    """Rounds on record, over all methods."""
    return sum(p.read_bytes().count(b"\n") for p in out.glob("*/seed-*/history.jsonl"))


def children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def kill_when(process: subprocess.Popen[bytes], out: Path, rounds: int, who: str) -> bool:
    """Kill parent, a worker, or both, once so many rounds are on record. False: it had ended."""
    deadline = time.monotonic() + LIMIT
    while progress(out) < rounds:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.001)
    workers = children(process.pid)
    if who != "parent" and workers:
        os.kill(workers[0], signal.SIGKILL)
    if who != "worker":
        process.kill()
    return True


def interrupt_and_resume(
    exp: Path, out: Path, points: list[tuple[int, str]], rng: random.Random
) -> int:
    """Start, kill at each point, resume; then let it end. The number of kills that hit."""
    hits = 0
    command = [*PGFED, "run", str(exp), "--out", str(out), "--quiet", "--resume"]
    for rounds, who in points:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            hits += kill_when(process, out, rounds, who)
            if who == "worker":
                process.wait(timeout=LIMIT)
                assert process.returncode == 0, process.stderr and process.stderr.read()
            else:
                process.wait(timeout=LIMIT)
        finally:
            process.kill()
            process.communicate()
        assert not [p for p in children(os.getpid()) if p == process.pid]
    subprocess.run(command, check=True, timeout=LIMIT)
    return hits


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    exp = experiment(folder, ["local", "pgfed-mo"])
    run_whole(exp, folder / "out")
    return exp, contents(folder / "out")


@pytest.mark.parametrize(
    "points",
    [
        [(2, "parent"), (ROUNDS, "parent"), (ROUNDS + 3, "both")],
        [(ROUNDS + 1, "worker")],
    ],
    ids=["parent", "worker"],
)
def test_killed_and_resumed_is_as_if_nothing_had_happened(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, points: list[tuple[int, str]]
) -> None:
    exp, expected = whole
    out = tmp_path / "out"
    assert interrupt_and_resume(exp, out, points, random.Random(0)) == len(points)
    assert contents(out) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_says_how_to_go_on(
    number: signal.Signals, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    exp, expected = whole
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*PGFED, "run", str(exp), "--out", str(out), "--quiet"], stderr=subprocess.PIPE
    )
    while progress(out) < 2:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    # Usually still the first method, but a round takes no longer than a stall of this process.
    assert stderr.decode().splitlines() in [
        [f"pgfed: interrupted during {method}, seed 0; `pgfed resume {out}` goes on"]
        for method in ("local", "pgfed-mo")
    ]
    subprocess.run([*PGFED, "resume", str(out), "--quiet"], check=True, timeout=LIMIT)
    assert contents(out) == expected


def test_a_second_process_in_the_same_folder_refuses(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    exp, _ = whole
    out = tmp_path / "out"
    first = subprocess.Popen([*PGFED, "run", str(exp), "--out", str(out), "--quiet"])
    try:
        while progress(out) < 1:
            assert first.poll() is None
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        second = subprocess.run(
            [*PGFED, "resume", str(out)], capture_output=True, text=True, timeout=LIMIT
        )
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 2
    assert second.stderr.strip() == (
        f"pgfed: {out}: another pgfed is at work in this folder (process {first.pid})"
    )
    subprocess.run([*PGFED, "resume", str(out), "--quiet"], check=True, timeout=LIMIT)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ANY_MODEL)
def test_any_method_killed_at_random_moments(method: str, tmp_path: Path) -> None:
    """Four kills each: over all methods more than sixty."""
    rng = random.Random(method)
    exp = experiment(tmp_path, [method])
    run_whole(exp, tmp_path / "whole")
    kinds = ["parent", "both", "parent", "worker"]
    rng.shuffle(kinds)
    points = [(rng.randrange(0, ROUNDS), who) for who in kinds]
    interrupt_and_resume(exp, tmp_path / "out", points, rng)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for little more than half a run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_line_and_costs_nothing(
    whole: tuple[Path, dict[str, Any]], small_disk: Path
) -> None:
    exp, expected = whole
    out = small_disk / "out"
    command = [*PGFED, "run", str(exp), "--out", str(out), "--resume", "--quiet"]
    full = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert full.returncode == 2, full.stderr
    assert len(full.stderr.splitlines()) == 1
    assert "cannot be written (No space left on device)" in full.stderr
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    subprocess.run(command, check=True, timeout=LIMIT)
    assert contents(out) == expected
