"""Small runs that several tests look at; none of them changes a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import small_runs
from any_model import ANY_MODEL
from cli.cli_tools import blobs
from cli.conftest import pgfed as pgfed  # the command line, as a fixture
from pgfed.api import Result
from takehome.pictures import CLASSES, pictures


@pytest.fixture(scope="session")
def grey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Four clients with grey images of 28x28; the third lacks a class."""
    folder = tmp_path_factory.mktemp("grey")
    x, y, client = pictures(160)
    np.savez(folder / "data.npz", x=x, y=y, client=client, class_names=np.array(CLASSES))
    result = small_runs.run(
        f"npz:{folder / 'data.npz'}",
        methods=["local", "fedavg", "pgfed"],
        rounds=5,
        cohort=0.5,
        epochs=1,
        model="mlp",
        backend="serial",
        out=folder / "run",
    )
    return folder / "run", result


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Every registered method, on vectors of six numbers."""
    folder = tmp_path_factory.mktemp("everything")
    data = blobs(160)
    np.savez(folder / "data.npz", **data, client=np.arange(160) // 3 % 4)
    np.savez(folder / "new.npz", **blobs(60, seed=5))
    result = small_runs.run(
        f"npz:{folder / 'data.npz'}",
        methods=ANY_MODEL,
        rounds=3,
        cohort=0.5,
        epochs=1,
        backend="serial",
        out=folder / "run",
    )
    return folder / "run", result
