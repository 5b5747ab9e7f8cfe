"""Files that are whole or not there, also where many are written at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgfed.engine.storage.durable import write_several


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system which file a handle is")
def test_every_file_is_on_disk_before_any_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a name stands for whole bytes; and the disk is waited for in one go."""
    did: list[str] = []
    synced, renamed = os.fsync, Path.replace

    def sync(handle: int) -> None:
        place = Path(f"/proc/self/fd/{handle}").readlink()
        did.append("folder" if place.is_dir() else f"bytes {place.read_bytes().decode()}")
        synced(handle)

    def rename(self: Path, target: Path) -> Path:
        did.append(f"name {target.name}")
        return renamed(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    write_several((tmp_path / name, name.encode()) for name in ("a", "b", "c"))
    assert did == ["bytes a", "bytes b", "bytes c", "name a", "name b", "name c", "folder"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: name for name in ("a", "b", "c")
    }


def test_an_error_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def files() -> Iterator[tuple[Path, bytes]]:
        yield tmp_path / "a", b"new"
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_several(files())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]
