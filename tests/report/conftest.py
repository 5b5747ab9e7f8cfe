"""A run folder for the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgfed.report.rendering import read
from pgfed.results.comparison import Group
from report.folders import make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("runs") / "made-up")


@pytest.fixture(scope="session")
def group(folder: Path) -> Group:
    (found,) = read([folder])
    return found
