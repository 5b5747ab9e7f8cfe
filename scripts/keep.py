"""Keep of a run, finished or stopped, what its tables are made from: small enough to be committed.

    .venv/bin/python scripts/keep.py RUN results/PAGE/NAME [--page]

Experiment, data, methods, every round's history, clients.csv, PGFed's matrix and studies; neither
models nor single predictions. --page: the report, too, which takes 2 MB. A method that was stopped,
or is at work, is kept as of its last checkpoint. The command and the page lose the paths of the
machine. What was kept before is replaced. `experiments/reached.py` makes tables from it, and
`pgfed report` reads it.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
from pathlib import Path

import numpy as np

from pgfed.engine.storage.checkpoints import rounds_kept
from pgfed.engine.storage.durable import state_from_bytes
from pgfed.methods import alphas
from pgfed.results.folder import layout

MOST = 5_000_000  # bytes of all that is kept
OF_RUN = (
    *(layout.EXPERIMENT, layout.DATA, layout.METHODS, layout.METRIC, layout.SUMMARY),
    *("several.jsonl", "explicit.json", "new_clients.json"),
)
OF_SEED = (layout.HISTORY, layout.CLIENTS, layout.ALPHA)
PAGE = "report.html"


def keep(run: Path, place: Path, *, page: bool) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name in OF_RUN:
        if (run / name).is_file():
            shutil.copy(run / name, place / name)
    for folder in sorted(run.glob("*/seed-*")):
        own = place / folder.relative_to(run)
        own.mkdir(parents=True)
        for name in OF_SEED:
            if (folder / name).is_file():
                shutil.copy(folder / name, own / name)
        if not (folder / layout.CLIENTS).is_file():
            _keep_stopped(folder / layout.CHECKPOINT, own)
    about = json.loads((run / layout.ENVIRONMENT).read_text(encoding="utf-8"))
    command, about["command"] = about["command"], _without_paths(about["command"])
    (place / layout.ENVIRONMENT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    if page:
        text = (run / PAGE).read_text(encoding="utf-8")
        for old, new in ((command, about["command"]), (str(run), run.name)):
            text = text.replace(html.escape(old), html.escape(new))
        (place / PAGE).write_text(text, encoding="utf-8")


def _keep_stopped(checkpoint: Path, own: Path) -> None:
    """A method as of its last checkpoint: history, and the matrix A if it has one."""
    newest = max(rounds_kept(checkpoint), default=None)
    if newest is None:
        return
    lines = (own / layout.HISTORY).read_text(encoding="utf-8").splitlines(keepends=True)
    (own / layout.HISTORY).write_text("".join(lines[:newest]), encoding="utf-8")
    cut = state_from_bytes((checkpoint / f"server-{newest:06d}.safetensors").read_bytes())
    server = {k.removeprefix("server."): v for k, v in cut.items() if k.startswith("server.")}
    if "alpha_pairs" in server:
        np.savez_compressed(own / layout.ALPHA, **alphas.export(server))


def _without_paths(command: str) -> str:
    """Of each absolute path the last name."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:]+/)*([^\s/:]+)", r"\1", command)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run", type=Path)
    arguments.add_argument("place", type=Path)
    arguments.add_argument("--page", action="store_true")
    given = arguments.parse_args()
    if not layout.is_run(given.run):
        raise SystemExit(f"{given.run}: not a run folder (it holds no {layout.EXPERIMENT})")
    keep(given.run, given.place, page=given.page)
    every = next((at for at in given.place.parents if at.name == "results"), given.place)
    found = sum(file.stat().st_size for file in every.rglob("*") if file.is_file())
    print(f"{every}: {found / 1e6:.2f} MB of {MOST / 1e6:.0f}")
    if found > MOST:
        raise SystemExit(f"{every}: too large; remove a page ({PAGE}) or a run")


if __name__ == "__main__":
    main()
