"""`pgfed run --only METHOD/SEED`: many processes fill one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pgfed as package
from cli.cli_tools import Done
from pgfed.engine.storage.durable import FolderLock
from pgfed.errors import UserError

Command = Callable[..., Done]
METHODS, SEEDS = ["local", "pgfed"], [0, 1]
SMALL = [
    *("--methods", ",".join(METHODS), "--seeds", "0,1", "--rounds", "2"),
    *("--set", "data.clients=4", "--set", "engine.backend=serial"),
]


def files(folder: Path, *names: str) -> dict[str, bytes]:
    found = (path for name in names for path in sorted(folder.rglob(name)) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_processes_at_the_same_time_leave_what_one_leaves(pgfed: Command, tmp_path: Path) -> None:
    jobs = [f"{method}/{seed}" for method in METHODS for seed in SEEDS]
    words = [sys.executable, "-m", "pgfed", "run", *SMALL, "--out", "many", "--only"]
    running = [
        subprocess.Popen([*words, job], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for job in jobs[:2]
    ]
    # This one is a third process at the same time.
    done = [pgfed("run", *SMALL, "--out", "many", "--only", job) for job in jobs[2:]]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 2
    assert [one.code for one in done] == [0] * 2
    said += [one.out for one in done]
    # Whoever is not the last says how far the folder is; the last sums it up, or the last ones,
    # where they come to their ends in the same moment.
    summed = ["Report: many/report.html" in text for text in said]
    assert any(summed)
    for text, last in zip(said, summed, strict=True):
        assert last or text.split("has ")[-1] in {f"{count} of 4 runs\n" for count in (1, 2, 3)}
    assert pgfed("run", *SMALL, "--out", "one", "--quiet").code == 0
    same = ("clients.csv", "*.safetensors", "experiment.toml", "methods.json")
    many, one = (files(tmp_path / name, *same) for name in ("many", "one"))
    assert many == one
    assert not list((tmp_path / "many").rglob("*.lock"))
    rows = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("many", "one")]
    assert [row["gain_mean"] for row in rows[0]] == [row["gain_mean"] for row in rows[1]]


def test_a_part_can_be_reported_and_the_rest_comes_later(pgfed: Command, tmp_path: Path) -> None:
    assert pgfed("run", *SMALL, "--only", "pgfed/1", "--out", "run").out == (
        "pgfed, seed 1: done; run has 1 of 4 runs\n"
    )
    assert not (tmp_path / "run/summary.json").exists()
    result = package.open(tmp_path / "run")
    assert [(run.method, run.seed) for run in result.runs] == [("pgfed", 1)]
    assert pgfed("report", "run").code == 0
    before = files(tmp_path / "run/pgfed", "*")
    again = pgfed("run", *SMALL, "--only", "pgfed/1", "--out", "run")  # a job started twice
    assert (again.code, files(tmp_path / "run/pgfed", "*")) == (0, before)
    assert pgfed("resume", "run", "--quiet").code == 0
    assert len(json.loads((tmp_path / "run/summary.json").read_text())) == 4


def test_what_is_wrong_is_one_line(pgfed: Command) -> None:
    def said(*words: str) -> str:
        done = pgfed("run", *SMALL, *words)
        assert done.code == 2
        return done.line.removeprefix("pgfed: ")

    assert said("--only", "pgfed/0") == "--only: say into which folder with --out DIR"
    out = ("--out", "run")
    assert said("--only", "pgfed", *out) == (
        "--only: found 'pgfed'; allowed: METHOD/SEED, as pgfed/0"
    )
    assert "did you mean 'pgfed'?" in said("--only", "pgfd/0", *out)
    assert said("--only", "pgfed/2", *out) == "--only: found the seed 2; allowed: 0, 1"
    assert pgfed("run", *SMALL, "--only", "local/0", *out).code == 0
    assert said("--only", "pgfed/0", *out, "--set", "train.lr=0.1") == (
        "--only: run was started with train.lr = 0.005, found 0.1; `pgfed resume run` goes on as "
        "it was started"
    )


HOLD = """
import sys, time
from pathlib import Path
from pgfed.engine.storage.durable import FolderLock
FolderLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("held", "words", "line"),
    [
        ("run/local/seed-0", ["run", *SMALL, "--only", "local/0", "--out", "run"], "at work"),
        ("run/local/seed-0", ["resume", "run"], "at work"),
        ("run", ["run", *SMALL, "--only", "local/0", "--out", "run"], "runs all of it"),
    ],
    ids=["the same job twice", "all beside a job", "a job beside all"],
)
def test_nobody_writes_where_another_does(
    pgfed: Command, tmp_path: Path, held: str, words: list[str], line: str
) -> None:
    assert pgfed("run", *SMALL, "--only", "pgfed/0", "--out", "run").code == 0
    (tmp_path / held).mkdir(parents=True, exist_ok=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / held)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        done = pgfed(*words)
        assert done.code == 2
        assert line in done.line
        holder.stdin.close()
    assert pgfed(*words, "--quiet").code == 0


def test_a_lock_is_refused_while_held_by_another_file(tmp_path: Path) -> None:
    """The lock of a file that its owner has removed is no lock."""
    first = FolderLock(tmp_path)
    first.acquire()
    (tmp_path / ".lock").unlink()  # as the owner does last
    second = FolderLock(tmp_path)
    second.acquire(wait=True)
    assert (tmp_path / ".lock").is_file()
    second.release()
    with pytest.raises(UserError, match="at work"):
        _held_by_another(tmp_path)


def _held_by_another(folder: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            FolderLock(folder).acquire()
        finally:
            holder.communicate()
