"""Runs experiment files one after the other under whichever pgfed comes first on PYTHONPATH.

A process of its own: `python driver.py JOB.json`. JOB.json holds a list of experiments, each with
its file, its run folder and the replies that get lost. Prints one line of JSON: where the package
was found, and each experiment's exit code and words on stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any

# The only thing that this test takes from inside the package: the class of a run, which is told
# which replies get lost. Where it lives may change; its `lose(round, client)` may not.
HOMES = ("pgfed.engine.rounds", "pgfed.engine.run", "pgfed.engine")


def run_class() -> type[Any]:
    """The class whose constructor has `lose`."""
    for home in HOMES:
        with contextlib.suppress(ModuleNotFoundError):
            found = getattr(importlib.import_module(home), "Run", None)
            if found is not None and "lose" in inspect.signature(found.__init__).parameters:
                return found  # type: ignore[no-any-return]
    raise SystemExit(f"no class Run with `lose` in {', '.join(HOMES)}: tell driver.HOMES")


def lose_replies(lost: set[tuple[int, str]]) -> None:
    """Make every run lose what ``lost`` holds when the reply comes: (round, client's name)."""
    run = run_class()
    plain = run.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        options["lose"] = lambda round, client: (round, str(client)) in lost
        plain(self, *args, **options)

    run.__init__ = init


def call(words: list[str]) -> tuple[int, str]:
    """`pgfed WORDS`: its exit code, and what it says on stderr."""
    from pgfed.cli import main

    said = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
    return int(code or 0), said.getvalue()


def drive(job: list[dict[str, Any]]) -> dict[str, Any]:
    import pgfed

    lost: set[tuple[int, str]] = set()
    lose_replies(lost)
    results = []
    for experiment in job:
        lost.clear()
        lost.update((round, str(client)) for round, client in experiment["lost"])
        words = ["run", experiment["file"], "--out", experiment["out"], "--quiet"]
        results.append(call([*words, "--data-root", experiment["data"]]))
    return {"package": pgfed.__file__, "results": results}


if __name__ == "__main__":
    print(json.dumps(drive(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
