"""Checkpoints: one consistent cut, only what changed, and a way back past a damaged file."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pgfed.engine.rounds import Run
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.store import ClientStore, Entry
from pgfed.methods.registry import get
from pgfed.testing import check_equal, make, outcome, started

ROUNDS = 6


@contextmanager
def checkpointed(
    folder: Path, warnings: list[str] | None = None
) -> Iterator[tuple[Run, Checkpoints]]:
    saved = Checkpoints(folder, warn=(warnings if warnings is not None else []).append)
    store = ClientStore(saved.clients)
    with started(make(get("pgfed-mo"), {}), rounds=ROUNDS, store=store) as run:
        yield run, saved


def advance(run: Run, saved: Checkpoints, rounds: int) -> None:
    for _ in range(rounds):
        run.step()
        saved.save(run)
    saved.wait()


def expected() -> dict[str, object]:
    with started(make(get("pgfed-mo"), {}), rounds=ROUNDS) as run:
        return outcome(run)


def test_every_round_can_be_gone_on_from(tmp_path: Path) -> None:
    wanted = expected()
    for stop in range(1, ROUNDS):
        folder = tmp_path / str(stop)
        with checkpointed(folder) as (run, saved):
            advance(run, saved, stop)
            history = run.history
        with checkpointed(folder) as (run, saved):
            assert saved.restore(run, history)
            assert run.round == stop
            check_equal(wanted, outcome(run), f"resumed after round {stop}")


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    with checkpointed(tmp_path) as (run, saved):
        assert not saved.restore(run, [])
        assert run.round == 0


def test_only_what_changed_is_written_and_two_are_kept(tmp_path: Path) -> None:
    with checkpointed(tmp_path) as (run, saved):
        advance(run, saved, 3)
        before = {p.name: p.stat().st_mtime_ns for p in saved.clients.iterdir()}
        record = run.step()
        saved.save(run)
        saved.wait()
        after = {p.name: p.stat().st_mtime_ns for p in saved.clients.iterdir()}
        new = {name for name in after if name not in before}
        assert new == {f"{i:06d}-000004.safetensors" for i in record["cohort"]}
        assert all(before[name] == after[name] for name in after if name in before)
        names = sorted(p.name for p in tmp_path.iterdir() if p.is_file())
        assert names == [
            "round-000003.json",
            "round-000004.json",
            "server-000003.safetensors",
            "server-000004.safetensors",
        ]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    (pattern, harm)
    for pattern in (
        "round-000004.json",
        "server-000004.safetensors",
        "clients/*-000004.safetensors",
    )
    for harm in (flip, cut, Path.unlink)
]


@pytest.mark.parametrize(("pattern", "harm"), DAMAGE)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(
    tmp_path: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    with checkpointed(tmp_path) as (run, saved):
        advance(run, saved, 4)
        history = run.history
    harm(sorted(tmp_path.glob(pattern))[0])
    warnings: list[str] = []
    with checkpointed(tmp_path, warnings) as (run, saved):
        assert saved.restore(run, history)
        assert run.round == 3
        assert len(warnings) == (0 if (pattern, harm) == ("round-000004.json", Path.unlink) else 1)
        check_equal(expected(), outcome(run), "from the checkpoint before")


def test_a_history_cut_short_takes_the_checkpoint_with_it(tmp_path: Path) -> None:
    with checkpointed(tmp_path) as (run, saved):
        advance(run, saved, 4)
        history = run.history
    warnings: list[str] = []
    with checkpointed(tmp_path, warnings) as (run, saved):
        assert saved.restore(run, history[:3])
        assert run.round == 3
        assert "the history ends with round 3" in warnings[0]
        check_equal(expected(), outcome(run), "from the checkpoint before")


def test_a_failure_to_write_is_reported(tmp_path: Path) -> None:
    with checkpointed(tmp_path / "folder") as (run, saved):
        advance(run, saved, 1)
        saved.folder = tmp_path / "file"
        saved.folder.write_text("not a folder")
        run.step()
        saved.save(run)
        with pytest.raises(OSError, match="file"):
            saved.wait()


@pytest.mark.parametrize("begun", [False, True], ids=["before it starts", "while it starts"])
def test_interrupted_in_the_middle_of_starting_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    start = _thread.start_new_thread

    def interrupted(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if begun:
            start(work, arguments)
        raise KeyboardInterrupt

    with checkpointed(tmp_path) as (run, saved):
        run.step()
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", interrupted)
            with pytest.raises(KeyboardInterrupt):
                saved.save(run)
        saved.settle()
        before = sorted(tmp_path.rglob("*"))
        advance(run, saved, ROUNDS - 1)
        assert saved.restore(run, run.history)
    assert not any(path.suffix == ".tmp" for path in before)
    assert begun or not any(path.is_file() for path in before)


def test_sparser_checkpoints(tmp_path: Path) -> None:
    with checkpointed(tmp_path) as (run, _):
        saved = Checkpoints(tmp_path, every=4)
        advance(run, saved, ROUNDS)
    assert sorted(p.name for p in tmp_path.glob("round-*")) == [
        "round-000004.json",
        "round-000006.json",  # the last round is always saved
    ]


def test_rounds_that_do_not_wait_for_the_disk_go_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected()
    disk = threading.Event()
    write = ClientStore.write

    def slow(self: ClientStore, entries: Iterable[Entry]) -> None:
        assert disk.wait(60)
        write(self, entries)

    def on_disk() -> list[str]:
        return sorted(p.name for p in tmp_path.glob("round-*"))

    with checkpointed(tmp_path) as (run, _):
        saved = Checkpoints(tmp_path, waits=False)
        with monkeypatch.context() as patched:
            patched.setattr(ClientStore, "write", slow)
            for _ in range(3):
                run.step()
                saved.save(run)
            disk.set()
            saved.wait()
        assert on_disk() == ["round-000001.json"]
        history = run.history
    with checkpointed(tmp_path) as (run, _):
        saved = Checkpoints(tmp_path, waits=False)
        assert saved.restore(run, history)
        assert run.round == 1
        check_equal(wanted, outcome(run), "resumed two rounds before it was left")
    with checkpointed(tmp_path) as (run, _):
        assert saved.restore(run, history)
        disk.clear()
        with monkeypatch.context() as patched:
            patched.setattr(ClientStore, "write", slow)
            for _ in range(1, ROUNDS - 1):
                run.step()
                saved.save(run)
            run.step()
            disk.set()
            saved.save(run)  # the last one waits
        saved.wait()
    assert on_disk() == ["round-000002.json", f"round-{ROUNDS:06}.json"]
