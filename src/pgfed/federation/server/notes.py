"""What the server notes of a run beside its rounds: federation.json in the run folder.

run, digest       which run this is, and what it was begun with
options, finished how `federation run` was called, and whether all is done
sites             each site's data and versions, as it was first seated
ledgers           how long the ledgers of sites with privacy were, and how they ended
changes           what of that has changed since, and was accepted
rollbacks         rounds that were taken back
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pgfed.engine.storage.checkpoints import rounds_kept
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.federation.flower.records import BadRecord
from pgfed.federation.folders.folder import RUN_FILE, FederationFolder
from pgfed.results.folder import layout

Facts = dict[str, str]
LONGEST = 80  # characters of how a ledger ends


def noted(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / RUN_FILE).read_text())
    return content


def note(folder: Path, **more: Any) -> None:
    """In the file that says which run this is."""
    write_atomic(folder / RUN_FILE, json.dumps({**noted(folder), **more}) + "\n")


class Pins:
    """Each site's data and versions, which must stay as they were when the run began.

    ``accept``: the operator goes on though they have changed.
    """

    def __init__(self, folder: Path, *, accept: bool) -> None:
        self._folder, self.accept = folder, accept

    @property
    def changes(self) -> list[str]:
        """What was accepted."""
        return list(noted(self._folder).get("changes", []))

    def ledger(self, client: int) -> str:
        """How the site's ledger ended when it was last heard of; said again to a site that greets,
        so that it knows an old backup."""
        return str(noted(self._folder).get("ledgers", {}).get(str(client), ""))

    def saw(self, client: int, ledger: object) -> None:
        """Note how it ends now."""
        if isinstance(ledger, str) and ledger[:LONGEST] != self.ledger(client):
            before = noted(self._folder).get("ledgers", {})
            note(self._folder, ledgers={**before, str(client): ledger[:LONGEST]})

    def hold(self, client: int, name: str, facts: Facts) -> str:
        """Pin these facts, or compare; what has changed, if that is accepted."""
        known = noted(self._folder)
        sites = known.get("sites", {})
        before = sites.get(str(client), facts)
        named = [
            f"{key} was {before.get(key, 'not told')[:16]}, is {value[:16]}"
            for key, value in facts.items()
            if before.get(key) != value
        ]
        said = f"{name} has changed since the run began: {'; '.join(named)}"
        if named and not self.accept:
            raise BadRecord(f"{said}; `run --resume --accept-changes` goes on with it")
        if not named and str(client) in sites:
            return ""
        changes = [*known.get("changes", []), *([f"{_now()} {said}"] if named else [])]
        note(self._folder, sites={**sites, str(client): facts}, changes=changes)
        return said if named else ""


def roll_back(folder: FederationFolder, round: int) -> str:
    """Take back the rounds after this one of what is being run; says of which method and seed."""
    folder.check_run(resume=True)
    begun = folder.run.glob(f"*/seed-*/{layout.CHECKPOINT}/round-*.json")
    going = [path for path in begun if not (path.parents[1] / layout.CLIENTS).is_file()]
    if not going:
        raise UserError(f"{folder.run}: no method is in the midst of its rounds")
    place = max(going, key=lambda path: path.stat().st_mtime_ns).parent
    kept = rounds_kept(place)
    if round not in kept:
        raise UserError(f"--round: found {round}; allowed: {', '.join(map(str, kept))}")
    what = f"{place.parents[1].name}, {place.parent.name}"
    before = noted(folder.run).get("rollbacks", [])
    taken = f"{_now()} {what}: from round {kept[-1]} back to {round}"
    note(folder.run, rollbacks=[*before, taken])
    for later in kept[kept.index(round) + 1 :]:
        (place / f"round-{later:06d}.json").unlink()
    return what


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
