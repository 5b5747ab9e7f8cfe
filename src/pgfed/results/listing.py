"""The runs below a folder, a line each: what they ran, how they stand, what came out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pgfed.errors import UserError
from pgfed.results.comparison import group
from pgfed.results.folder import layout
from pgfed.results.folder.reader import load
from pgfed.results.folder.running import Watched
from pgfed.results.verdict import judge

DEPTH = 3  # folders between the one that is asked for and a run


@dataclass(frozen=True)
class Listed:
    """One run folder."""

    folder: Path
    name: str
    started: datetime
    data: str
    methods: list[str]
    state: str  # finished, running, stopped or damaged
    done: int  # rounds, of all methods and seeds
    rounds: int
    verdict: str  # of what has finished; why there is none

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "folder": str(self.folder),
            "started": self.started.isoformat(timespec="seconds"),
        }


def listed(place: Path) -> list[Listed]:
    """The newest first."""
    if not place.is_dir():
        raise UserError(f"{place}: no such folder; give one that holds run folders")
    found = [_one(folder) for folder in _folders(place, DEPTH)]
    return sorted(found, key=lambda run: run.started, reverse=True)


def _folders(place: Path, depth: int) -> list[Path]:
    if layout.is_run(place) and not (place / "federation.toml").is_file():
        return [place]
    if not depth:
        return []
    inner = sorted(path for path in place.iterdir() if path.is_dir() and path.name[0] != ".")
    return [folder for path in inner for folder in _folders(path, depth - 1)]


def _one(folder: Path) -> Listed:
    written = folder / layout.ENVIRONMENT
    written = written if written.is_file() else folder / layout.EXPERIMENT
    started = datetime.fromtimestamp(written.stat().st_mtime).astimezone()
    try:
        standing = Watched(folder).standing()
    except (UserError, ValueError) as error:
        return Listed(folder, folder.name, started, "", [], "damaged", 0, 0, str(error))
    about = standing.watched.experiment
    try:
        verdict = str(judge(group([load(folder)])[0]))
    except (UserError, ValueError) as error:
        verdict = str(error).removeprefix(f"{folder}: ").partition(";")[0]
    return Listed(
        folder=folder,
        name=about.name,
        started=started,
        data=about.data.dataset,
        methods=layout.methods_of(about),
        state=standing.state,
        done=standing.done,
        rounds=standing.total,
        verdict=verdict,
    )
