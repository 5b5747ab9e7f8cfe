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

    def load(self, round: int, digest: str | None = None) -> State:
        """The state after this round. The file's name holds its checksum; ``digest``: of the one
        that is meant, where more than one can be."""
        for path in self._files(round):
            data = path.read_bytes()
            found = sha256(data)
            if path.stem.partition("-")[2] == found[:16] and digest in (None, found):
                return state_from_bytes(data)
        raise DamagedFile(
            f"{self._folder} holds no sound state of round {round}; put it back from a backup; "
            "to begin afresh, remove that folder and have the server go on with --accept-changes"
        )

    def last(self) -> State:
        """The newest state."""
        return self.load(int(self._files()[-1].stem.partition("-")[0]))

    def save(self, round: int, state: State) -> str:
        """The one state of this round (another was of one that did not count). Its SHA-256."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = state_to_bytes(state)
        new = self._folder / f"{round:06d}-{sha256(data)[:16]}.safetensors"
        write_atomic(new, data)
        for path in self._files(round):
            if path != new:
                path.unlink(missing_ok=True)
        return sha256(data)

    def settle(self, round: int) -> None:
        """Keep this round's state, and those of a few rounds before it."""
        older = [path for path in self._files() if path.name < f"{round:06d}"]
        for path in set(self._files()) - set(self._files(round)) - set(older[1 - KEPT :]):
            path.unlink(missing_ok=True)

    @property
    def lost(self) -> bool:
        """Whether nothing at all is there."""
        return not self._files()
