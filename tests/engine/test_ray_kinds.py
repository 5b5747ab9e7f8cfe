"""Ray with every kind of task, on named clients: the bits of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cli import task_worlds
from pgfed.data.dataset import Options
from pgfed.data.federation import Federation, build
from pgfed.data.own import load
from pgfed.engine.backends.base import Backend, Serial
from pgfed.engine.backends.ray import Ray
from pgfed.engine.rounds import Run
from pgfed.methods.pgfed import PGFed
from pgfed.methods.settings import TrainConfig
from pgfed.model.kinds import KINDS, make
from pgfed.model.objectives import Objective
from pgfed.testing import check_equal, outcome

NAMES = np.array(["west", "north", "east", "south"])
TRAIN = TrainConfig(epochs=1, batch_size=5, lr=0.05)
DAILY = "regression"  # each takes an instance of Ray; the others are for the night


def world(kind: str, folder: Path) -> tuple[Federation, Objective]:
    """The samples of four clients with names, and what is to be made of them."""
    like = {"own": "regression", "csv": "binary"}.get(kind, kind)
    arrays = task_worlds.arrays(like)
    x, y, client = arrays["x"], arrays["y"], NAMES[arrays["client"]]
    if kind == "csv":
        columns = {f"f{i}": x[:, i] for i in range(x.shape[1])}
        for name in NAMES:
            frame = pd.DataFrame({**columns, "target": y})[client == name]
            frame.to_csv(folder / f"{name}.csv", index=False)
        dataset = load(f"csv:{folder}", None, Options())
        data = build(dataset, partition="given", by_name=True, stratify="auto")
    else:
        form = KINDS[like].targets
        data = Federation.from_arrays(x, y, client, targets=form, by_name=True)
    own = "cli.task_worlds:Quantile"
    return data, make(own if kind == "own" else like, data.class_names)


def result(backend: Backend) -> dict[str, object]:
    run = Run(PGFed(train=TRAIN), backend.federation, backend, seed=3, rounds=2, cohort=3)
    return outcome(run)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind == DAILY else pytest.mark.nightly)
        for kind in (*KINDS, "own", "csv")
    ],
)
def test_same_bits_as_serial(kind: str, tmp_path: Path) -> None:
    data, objective = world(kind, tmp_path)
    assert data.keys is not None, "they are drawn for by name"
    model = task_worlds.pixels if kind == "segmentation" else "mlp"
    expected = result(Serial(data, model, objective=objective))
    with Ray(data, model, workers=1, objective=objective) as backend:
        check_equal(expected, result(backend), f"{kind}: serial and Ray")
