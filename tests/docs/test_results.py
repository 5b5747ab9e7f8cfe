"""The tables that the documentation makes of results/ are what their commands print."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgfed.engine.personal import RULE

ROOT = Path(__file__).parents[2]
COMMAND = "experiments/beyond/table.py results/beyond/heart-disease"


def results(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "scripts" / "results.py", *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_table_is_what_its_command_prints() -> None:
    done = results(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with one page, whose table is true."""
    for name in ("scripts", "docs"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "scripts" / "results.py", tmp_path / "scripts")
    for name in ("experiments", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    start = page.index(f"<!-- made by: {COMMAND} -->")
    end = page.index("<!-- end -->", start) + len("<!-- end -->")
    (tmp_path / "docs" / "page.md").write_text(page[start:end] + "\n", encoding="utf-8")
    return tmp_path


def test_a_number_that_was_changed_is_found_and_made_good(copy: Path) -> None:
    page = copy / "docs" / "page.md"
    true = page.read_text(encoding="utf-8")
    false = true.replace(" % |", "1 % |", 1)
    assert false != true
    page.write_text(false, encoding="utf-8")
    done = results(copy, "--check")
    assert (done.returncode, done.stdout) == (1, "Stale: page.md\n")
    assert page.read_text(encoding="utf-8") == false
    assert results(copy).returncode == 0
    assert page.read_text(encoding="utf-8") == true


def test_the_share_without_validation_data_is_the_one_that_was_found() -> None:
    """Of the own model, over five federations, with and without a frame (docs/beyond.md)."""
    page = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()]
    for frame in ("plain", "framed"):
        means = {row[0]: float(row[-1]) for row in rows if row[0].startswith(f"{frame} ")}
        assert len(means) == 7
        fixed = [means[f"{frame} blend {share}"] for share in (0.3, 0.5, 0.7)]
        assert means[f"{frame} blend {RULE}"] > max(fixed) - 0.05
        assert means[f"{frame} blend {RULE}"] > max(means.values()) - 0.25
