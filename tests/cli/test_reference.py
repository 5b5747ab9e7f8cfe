"""`pgfed settings`, `pgfed runs`, completion, the options of run: what a user looks up."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import typer

from cli.cli_tools import SMALL, Done
from pgfed.cli.app import app
from pgfed.config import reference
from pgfed.config.schema import dotted
from pgfed.config.tables import Experiment
from pgfed.errors import UserError
from pgfed.methods import registry

Command = Callable[..., Done]
ROOT = Path(__file__).parents[2]


# -- settings ----------------------------------------------------------------------------------


def test_every_key_has_a_meaning_a_default_and_what_is_allowed() -> None:
    known = {key.name: key for key in reference.table_keys()}
    assert set(dotted(Experiment)) - {"method", "sweep"} <= set(known)
    for key in known.values():
        assert len(key.meaning) > 8, key.name
        assert key.allowed, key.name
    assert known["train.lr"].default == "0.005"
    assert known["data.test_share"].allowed == "a number from 0 up to, but not including, 1"
    for name in registry.NAMES:
        for key in reference.method_keys(name):
            assert key.meaning, key.name


def test_a_default_is_what_the_file_would_hold() -> None:
    for key in reference.table_keys():
        if key.default != reference.NO_DEFAULT:
            value = tomllib.loads(f"value = {key.default}")["value"]
            held = Experiment()
            for part in key.name.split("."):
                held = getattr(held, part)
            assert value == held, key.name


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("train.lr", ["train.lr"]),
        ("lr", ["train.lr", "server.lr"]),
        ("kind", ["task.kind", "attack.kind"]),
        ("attack", ["attack.kind", "attack.share", "attack.strength"]),
        ("method.pgfed.mu", ["method.pgfed.mu"]),
        ("method.pgfed-mo.beta", ["method.pgfed-mo.beta"]),
        ("method.fedavg.lr", ["method.fedavg.lr"]),
    ],
)
def test_a_key_is_found_by_its_name_its_table_or_its_last_part(
    asked: str, names: list[str]
) -> None:
    assert [key.name for key in reference.find(asked)] == names


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("train.lrr", "did you mean 'train.lr'?"),
        ("epoch", "did you mean 'train.epochs'?"),
        ("method.pgfd", "did you mean 'pgfed'?"),
        ("method.pgfed.nu", "did you mean 'mu'?"),
    ],
)
def test_an_unknown_key_names_the_nearest(asked: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        reference.find(asked)
    assert words in str(error.value)


def test_the_command_prints_one_a_table_or_all(pgfed: Command) -> None:
    assert pgfed("settings", "train.lr").out.splitlines() == [
        "train.lr = 0.005",
        "  meaning  eta, the learning rate of local steps",
        "  allowed  a number above 0",
        "  [method.NAME] lr overrides it for one method",
    ]
    assert pgfed("settings", "attack").out.startswith("[attack]\nkey")
    everything = pgfed("settings").out
    for table in ("At the top", "[data]", "[task]", "[train]", "[engine]", "[output]"):
        assert table in everything
    rows = json.loads(pgfed("settings", "--json").out)
    assert [row["name"] for row in rows] == [key.name for key in reference.table_keys()]
    assert pgfed("settings", "lrr").code == 2


def test_the_written_experiment_explains_itself_and_runs_again(
    pgfed: Command, tmp_path: Path
) -> None:
    assert pgfed("run", *SMALL, "--methods", "local,pgfed", "--quiet", "--out", "one").code == 0
    text = (tmp_path / "one/experiment.toml").read_text()
    assert "lr = 0.005  # eta, the learning rate of local steps" in text
    assert "mu = 0.1  # mu, weight of the other clients' risks" in text
    done = pgfed("run", "one/experiment.toml", "--quiet", "--out", "two")
    assert done.code == 0
    assert (tmp_path / "two/experiment.toml").read_text() == text
    for line in text.splitlines():
        if " = " in line and not line.startswith(("#", " ")):
            assert "  # " in line, line


# -- options -----------------------------------------------------------------------------------


def test_rounds_methods_and_seeds_are_options(pgfed: Command, tmp_path: Path) -> None:
    words = ["--rounds", 1, "--methods", "local, fedavg", "--seeds", "3,1", "--quiet"]
    assert pgfed("run", *SMALL, *words, "--out", "run").code == 0
    held = tomllib.loads((tmp_path / "run/experiment.toml").read_text())
    assert (held["rounds"], held["methods"], held["seeds"]) == (1, ["local", "fedavg"], [3, 1])
    assert pgfed("run", "--seeds", "0,x").line == (
        "pgfed: --seeds: found 'x'; allowed: whole numbers, as 0,1,2"
    )
    assert "did you mean 'pgfed'?" in pgfed("run", "--methods", "local,pgfd").line
    assert "x>=1" in pgfed("run", "--rounds", 0).line


@pytest.mark.parametrize("group", ["data", "study", "federation"])
def test_a_group_without_a_command_prints_its_help(pgfed: Command, group: str) -> None:
    done = pgfed(group)
    assert (done.code, done.err) == (0, "")
    assert f"Usage: pgfed {group}" in done.out


@pytest.mark.parametrize(
    "words",
    [
        ["methods", "--json"],
        ["methods", "--show", "pgfed", "--json"],
        ["datasets", "--json"],
        ["data", "show", "--json"],
        ["run", "--dry-run", "--json", *SMALL],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_json_is_json_and_nothing_else(pgfed: Command, words: list[str]) -> None:
    done = pgfed(*words)
    assert done.code == 0
    assert json.loads(done.out)


ACTS = {  # they do something, and say that they have; there is nothing for a program to read
    *("add-seats", "add-site", "approve", "fetch", "init", "invite", "join", "remove-site"),
    *("renew-certificate", "rollback", "server", "site", "stop"),
}


def commands(of: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(of, click.Group):
        yield path, of
        return
    for name, inner in of.commands.items():
        yield from commands(inner, f"{path} {name}".strip())


def test_whatever_has_something_to_say_says_it_as_json() -> None:
    without = {
        path
        for path, command in commands(typer.main.get_command(app))
        if "--json" not in [word for one in command.params for word in one.opts]
    }
    acts = {f"federation {name}" for name in ACTS} | {"privacy open", "privacy repair"}
    assert without == acts


# -- runs --------------------------------------------------------------------------------------


def test_runs_are_listed_with_state_and_verdict(pgfed: Command, tmp_path: Path) -> None:
    assert pgfed("runs").line == ("pgfed: runs: no such folder; give one that holds run folders")
    words = ["--methods", "local,fedavg", "--quiet"]
    assert pgfed("run", *SMALL, *words, "--out", "runs/a").code == 0
    shutil.copytree(tmp_path / "runs/a", tmp_path / "runs/deep/cut")
    (tmp_path / "runs/deep/cut/fedavg/seed-0/history.jsonl").unlink()
    (tmp_path / "runs/deep/cut/fedavg/seed-0/clients.csv").unlink()
    shutil.copytree(tmp_path / "runs/a", tmp_path / "runs/bad")
    (tmp_path / "runs/bad/methods.json").write_text("{")
    for age, name in enumerate(("bad", "deep/cut", "a")):
        os.utime(tmp_path / f"runs/{name}/environment.json", (1e9 + age, 1e9 + age))
    found = json.loads(pgfed("runs", "--json").out)
    assert [row["folder"] for row in found] == ["runs/a", "runs/deep/cut", "runs/bad"]
    assert [row["state"] for row in found] == ["finished", "stopped", "damaged"]
    assert found[0]["verdict"]
    assert (found[1]["done"], found[1]["rounds"]) == (2, 4)
    text = pgfed("runs").out
    assert "stopped, 50 %" in text
    assert "methods.json" in text
    assert text.splitlines()[0].split()[:2] == ["run", "started"]


# -- completion --------------------------------------------------------------------------------


def completed(words: str, place: Path) -> list[str]:
    """What bash would offer for the last word."""
    environment = {
        **os.environ,
        "_PGFED_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pgfed"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_shell_completes_commands_methods_keys_and_run_folders(tmp_path: Path) -> None:
    (tmp_path / "runs/digits").mkdir(parents=True)
    (tmp_path / "runs/digits/experiment.toml").write_text("")
    (tmp_path / "runs/other").mkdir()
    assert completed("pgfed sett", tmp_path) == ["settings"]
    assert completed("pgfed run --methods local,pgfed-", tmp_path) == [
        *("local,pgfed-mo", "local,pgfed-ce")
    ]
    assert completed("pgfed run --set train.mom", tmp_path) == [
        *("train.momentum=", "train.momentum_policy=")
    ]
    assert completed("pgfed settings method.pgfed.m", tmp_path) == [
        *("method.pgfed.mu", "method.pgfed.momentum", "method.pgfed.momentum_policy")
    ]
    assert completed("pgfed report ", tmp_path) == ["runs/", "runs/digits", "runs/other/"]
    assert completed("pgfed why runs/d", tmp_path) == ["runs/digits"]


# -- pages -------------------------------------------------------------------------------------


def pages() -> dict[str, Callable[[], str]]:
    spec = importlib.util.spec_from_file_location("references", ROOT / "scripts/references.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Callable[[], str]] = module.PAGES
    return found


@pytest.mark.parametrize("name", ["settings.md", "command-line.md"])
def test_the_pages_are_what_the_program_says(name: str) -> None:
    held = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert pages()[name]() == held, "run scripts/references.py"
