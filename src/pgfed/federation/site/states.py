"""A site's states on disk: one file per round, named by its checksum."""

from __future__ import annotations

from pathlib import Path

from pgfed.engine.storage.durable import (
    DamagedFile,
    sha256,
    state_from_bytes,
    state_to_bytes,
    write_atomic,
)
from pgfed.methods.values import State

KEPT = 5  # rounds that counted: the server may go back as far


class States:
    """A client's states under one method and seed of one run: one file per round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _files(self, round: int | None = None) -> list[Path]:
        return sorted(
            self._folder.glob(f"{'*' if round is None else f'{round:06d}'}-*.safetensors")
        )

    def load(self, round: int) -> State:
        """The state after this round. The file's name holds its checksum."""
        for path in self._files(round):
            data = path.read_bytes()
            if path.stem.partition("-")[2] == sha256(data)[:16]:
                return state_from_bytes(data)
        raise DamagedFile(
            f"{self._folder} holds no sound state of round {round}; put it back from a backup, or "
            "remove that folder to begin afresh"
        )

    def save(self, round: int, state: State) -> None:
        """The one state of this round: another one was of a round that did not count."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = state_to_bytes(state)
        new = self._folder / f"{round:06d}-{sha256(data)[:16]}.safetensors"
        write_atomic(new, data)
        for path in self._files(round):
            if path != new:
                path.unlink(missing_ok=True)

    def settle(self, round: int) -> None:
        """Keep this round's state, and those of a few rounds before it."""
        older = [path for path in self._files() if path.name < f"{round:06d}"]
        for path in set(self._files()) - set(self._files(round)) - set(older[1 - KEPT :]):
            path.unlink(missing_ok=True)

    @property
    def lost(self) -> bool:
        """Whether nothing at all is there."""
        return not self._files()
