"""The commands that only tell."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_tools import Done
from pgfed import __version__
from pgfed.methods import registry as algorithms

Command = Callable[..., Done]


def test_help_and_version_do_not_import_torch() -> None:
    code = (
        "import sys, pgfed\n"
        "from pgfed.cli import main\n"
        "for word in ('--help', '--version'):\n"
        "    try:\n"
        "        main([word])\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code\n"
        "slow = {'torch', 'numpy', 'sklearn', 'pydantic', 'rich'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
        "import pgfed.config.experiment\n"
        "assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules), 'slow imports'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"pgfed {__version__}" in done.stdout


def test_a_bad_experiment_is_refused_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pgfed.cli import main\n"
        "try:\n"
        "    main(['run', '--set', 'rounds=0'])\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_methods_are_listed_with_hardly_anything_imported() -> None:
    """It answers in well under half a second: what takes time is not loaded at all."""
    code = (
        "import sys\n"
        "from pgfed.cli import main\n"
        "try:\n"
        "    main(['methods'])\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "assert not {'torch', 'numpy', 'pydantic', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pgfed-ce" in done.stdout


def test_reports_are_written_without_torch() -> None:
    code = "import sys, pgfed.report.pages.page; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_without_a_command_the_help_is_shown(pgfed: Command) -> None:
    done = pgfed()
    assert done.code == 0
    for command in ("run", "methods", "datasets", "data"):
        assert re.search(rf"\b{command}\b", done.out)


def test_methods_has_one_line_each(pgfed: Command) -> None:
    lines = pgfed("methods").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(algorithms.NAMES)


@pytest.mark.parametrize("name", algorithms.METHODS)
def test_every_method_is_explained(pgfed: Command, name: str) -> None:
    done = pgfed("methods", "--show", name)
    assert done.code == 0
    from pgfed.config.description import settings

    own, shared = settings(algorithms.get(name))
    for parameter in [*own, *shared]:
        assert parameter.meaning, f"{name}.{parameter.name} has no comment"
        assert re.search(rf"^{parameter.name} ", done.out, re.MULTILINE)
    leaves = algorithms.get(name).leaves
    assert ("Nothing leaves a client" in done.out) == (not leaves)
    for key in leaves:
        assert f"- {key}: " in done.out


def test_what_pgfed_sends_is_said_plainly(pgfed: Command) -> None:
    out = pgfed("methods", "--show", "pgfed").out
    assert "gradient: the gradient of its loss over its training data" in out
    assert "each client's own gradient, from which training samples can partly be rebuilt" in out


def test_what_is_shared_once_is_said_too(pgfed: Command) -> None:
    out = pgfed("methods", "--show", "fedper").out
    assert re.search(r"once, after the last round.*\n- own: its trained classifier", out)


def test_datasets(pgfed: Command, tmp_path: Path) -> None:
    out = pgfed("datasets", "--data-root", tmp_path).out
    assert re.search(r"^digits .* yes ", out, re.MULTILINE)
    assert re.search(r"^cifar10 .* no ", out, re.MULTILINE)
    assert str(tmp_path) in out


def test_data_root_comes_from_the_environment(
    pgfed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGFED_DATA", str(tmp_path / "there"))
    assert str(tmp_path / "there") in pgfed("datasets").out


def test_data_show(pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("data", "show", "--set", "data.clients=5", "--figures", "drawn")
    assert done.code == 0
    assert "digits: 5 clients, 1,797 samples, 10 classes" in done.out
    assert len(re.findall(r"^ +[0-4] +\d+ +\d+ +\d+ ", done.out, re.MULTILINE)) == 5
    assert (tmp_path / "drawn/partition.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        *("partition.pdf", "partition.png", "partition.svg")
    }


def test_data_show_cuts_a_long_table(pgfed: Command) -> None:
    sizes = ["--set", "data.clients=100", "--set", "data.min_samples=1"]
    assert "... and 40 more clients" in pgfed("data", "show", *sizes).out
