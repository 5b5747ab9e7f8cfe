"""Files that are whole or not there, and flat dictionaries as files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pgfed.errors import OneLine, UserError

if TYPE_CHECKING:
    from pgfed.methods.values import State


class DamagedFile(OneLine):
    """A file of ours that is missing, cut short, or not what was written."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write to a temporary name, sync, rename: what is there is the old file or the new one."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """The same for what is written piece by piece; after an error the old file is there."""
    temporary = _beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        _drop([temporary])
        raise
    sync(path.parent)


def write_several(files: Iterable[tuple[Path, bytes]]) -> None:
    """As `write_atomic`, one after the other; but a disk takes them together in far less time."""
    begun: dict[Path, Path] = {}
    try:
        for path, data in files:
            begun[path] = _beside(path)
            begun[path].write_bytes(data)
        for temporary in begun.values():
            sync(temporary)
        for path, temporary in begun.items():
            temporary.replace(path)
    except BaseException:
        _drop(begun.values())
        raise
    for folder in {path.parent for path in begun}:
        sync(folder)


def _beside(path: Path) -> Path:
    """A name that nobody else takes, for what is to become this file."""
    return path.with_name(f".{path.name}-{secrets.token_hex(6)}.tmp")


def _drop(files: Iterable[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def sync(path: Path) -> None:
    """Make a file's bytes, or the renames and removals in a folder, outlast a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderLock:
    """One process at a time in a folder. The lock dies with its owner, however that ends."""

    def __init__(self, folder: Path, name: str = ".lock") -> None:
        self.folder = folder
        self._path = folder / name
        self._handle: int | None = None

    def acquire(self, *, wait: bool = False) -> None:
        """Refuse where another holds it; ``wait``: until it is let go."""
        while (handle := self._locked(wait)) is None:
            pass  # its last owner has just removed it
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def _locked(self, wait: bool) -> int | None:
        """A handle of the file, locked; None if the file is no longer the one that is there."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Not inherited by forked workers, and gone with the process.
            fcntl.lockf(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            owner = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            raise UserError(
                f"{self.folder}: another pgfed is at work in this folder"
                + (f" (process {owner})" if owner.isdigit() else "")
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), self._path.stat()):
                return handle
        os.close(handle)
        return None

    def release(self) -> None:
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


def in_use(folder: Path) -> bool:
    """Does another process hold the folder's lock?

    It is only asked for: taking it, however shortly, could turn away a run that starts now. Not
    for the process that holds it: closing the file here would let its own lock go.
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    layout, kind = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)  # of struct flock
    asked = [0] * 5  # the whole file
    asked[kind] = fcntl.F_WRLCK
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(layout, *asked))
    finally:
        os.close(handle)
    return bool(struct.unpack(layout, answer)[kind] != fcntl.F_UNLCK)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def state_to_bytes(state: State) -> bytes:
    """A flat dictionary as safetensors; its ints and floats are in the header."""
    from safetensors.torch import save
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, value in state.items():
        if isinstance(value, Tensor):
            # safetensors refuses to write one piece of memory under two names
            again = value.untyped_storage().data_ptr() in seen
            seen.add(value.untyped_storage().data_ptr())
            tensors[key] = value.detach().cpu().contiguous()
            if again:
                tensors[key] = tensors[key].clone()
    scalars = {k: v for k, v in state.items() if k not in tensors}
    return save(tensors, metadata={"scalars": json.dumps(scalars)})


def state_from_bytes(data: bytes) -> State:
    """The inverse of `state_to_bytes`; every tensor in memory of its own."""
    from safetensors.torch import load

    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        scalars = json.loads(header["__metadata__"]["scalars"])
        if not all(type(v) in (int, float) for v in scalars.values()):
            raise ValueError("nested values")
    except Exception as error:  # safetensors, json and torch raise a dozen kinds on damaged bytes
        raise DamagedFile(f"not a state file: {error}") from error
    return {**{k: v.clone() for k, v in tensors.items()}, **scalars}


def read_state(path: Path, digest: str) -> State:
    """Read a state file and check that it is the one that was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{path.name}: {error.strerror}") from error
    if sha256(data) != digest:
        raise DamagedFile(f"{path.name}: checksum does not match")
    return state_from_bytes(data)
