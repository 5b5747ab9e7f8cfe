"""What a type checker says to users of the Python interface."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest

from pgfed.api import running, tables
from pgfed.config.tables import Experiment
from pgfed.methods.settings import hints

GOOD = """
import numpy as np
import pgfed

x, y = np.zeros((90, 6), dtype=np.float32), np.arange(90) % 3
result = pgfed.run(
    {"dataset": (x, y), "clients": 4, "partition": "iid"},
    methods=["local", "pgfed"],
    rounds=3,
    seeds=[0, 1],
    task={"kind": "classes"},
    model="mlp",
    train={"lr": 0.1, "optimizer": "adamw"},
    method={"pgfed": {"mu": 0.5}},
    engine={"backend": "serial"},
    output={"keep": "last"},
    callbacks=["tensorboard"],
)
other: pgfed.Result = pgfed.open("runs/digits")
sentence: str = str(result.verdict)
found: pgfed.Predictions = result.predictions("north", "pgfed")
errors: float = float((1 - found.outcome).sum())
page: str = result.report().name

class Printed(pgfed.Callback):
    def round(self, run: pgfed.Running, record: dict[str, object]) -> None:
        print(run.method, run.settings, record["round"])

pgfed.run("digits", callbacks=[Printed()])
pgfed.run(datasets={"north": (x, y)}, target=None)
"""
BAD = {
    "rounds are a number": 'pgfed.run("digits", rounds="3")',
    "an unknown key of a table": 'pgfed.run("digits", train={"learning_rate": 0.1})',
    "a key's type": 'pgfed.run("digits", train={"lr": "0.1"})',
    "a key's choices": 'pgfed.run("digits", engine={"backend": "threads"})',
    "a key without its table": 'pgfed.run("digits", lr=0.1)',
    "data": "pgfed.run(3)",
    "a method of Result": 'pgfed.open("run").predictions()',
    "a callback": 'pgfed.run("digits", callbacks=[print])',
}


def mypy(folder: Path, *files: str) -> list[str]:
    # What it has learned of torch is kept: the first time takes a minute, the next a second.
    kept = Path(__file__).parents[1] / ".mypy_cache" / "users"
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *files]
    words += ["--cache-dir", str(kept)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_a_users_script_passes_and_mistakes_do_not(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    lines = ["import pgfed", *BAD.values()]
    (tmp_path / "bad.py").write_text("\n".join(lines) + "\n")
    found = mypy(tmp_path, "good.py", "bad.py")
    assert not [line for line in found if line.startswith("good.py")], "\n".join(found)
    blamed = {int(line.split(":")[1]) for line in found if ": error:" in line}
    assert blamed == set(range(2, len(lines) + 1)), "\n".join(found)


# -- the dictionaries hold what the tables hold ------------------------------------------------

TABLES = {f.name: f for f in fields(Experiment) if is_dataclass(hints(Experiment)[f.name])}
WIDER = {"data": {"dataset", "schema"}, "model": {"name"}}  # also what no file can hold
APART = {"output": {"callbacks"}}  # arguments of their own


def plain(kind: Any) -> Any:
    """Without bounds and help."""
    if get_origin(kind) is Annotated:
        return plain(get_args(kind)[0])
    if get_origin(kind) in (typing.Union, types.UnionType):
        return frozenset(map(plain, get_args(kind)))
    return kind


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_a_dictionary_with_the_same_keys_and_types(name: str) -> None:
    cls = f"{name.capitalize()}Table"
    assert hasattr(tables, cls), f"add {cls} to pgfed/api/tables.py, and {name}= to pgfed.run"
    written = {key: plain(kind) for key, kind in hints(getattr(tables, cls)).items()}
    meant = {key: plain(kind) for key, kind in hints(hints(Experiment)[name]).items()}
    for key in WIDER.get(name, set()):
        assert key in written
        written[key] = meant[key]
    for key in APART.get(name, set()):
        del meant[key]
    assert written == meant, f"{cls} in pgfed/api/tables.py is not [{name}]"


def test_every_key_and_table_is_an_argument_with_the_same_default() -> None:
    arguments = inspect.signature(running.run).parameters
    for field in fields(Experiment):
        if field.name in ("format", "sweep"):  # of files; of `pgfed sweep`
            continue
        assert field.name in arguments, f"add {field.name}= to pgfed.run"
        default = arguments[field.name].default
        held = getattr(Experiment(), field.name)
        if field.name in TABLES or field.name in ("name", "method"):
            assert default is None
        else:
            assert (list(default) if isinstance(default, tuple) else default) == held
