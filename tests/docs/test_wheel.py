"""The wheel, installed alone: what a user gets from `pip install`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # With the build tools that are installed: nothing is fetched.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_it_holds_the_package_and_its_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    here = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "pgfed").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not here - names
    assert not [name for name in names if name.startswith("tests")]


def test_it_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """From the wheel's own files, beside nothing but the packages that are installed."""
    place = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(place)
    program = (
        f"import sys; sys.path.insert(0, {str(place)!r}); import pgfed, pgfed.cli; "
        f"assert pgfed.__file__.startswith({str(place)!r}), pgfed.__file__; pgfed.cli.main()"
    )
    command = [sys.executable, "-c", program, "run", "--set", "rounds=1", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.nightly
def test_it_runs_in_an_environment_with_nothing_but_what_it_asks_for(
    wheel: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(install, check=True)
    for command in (["run", "--set", "rounds=1", "--out", "run"], ["methods"], ["--help"]):
        done = subprocess.run(
            [python, "-m", "pgfed", *command], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
