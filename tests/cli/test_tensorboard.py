"""`--tensorboard`: what TensorBoard itself reads from a run folder."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import small_runs
from cli.cli_tools import Done, blobs
from pgfed.errors import UserError
from pgfed.report.figures.colours import BLUE, NEVER_MET, VERMILLION
from pgfed.report.tensorboard import TensorBoard, picture

Command = Callable[..., Done]

ROUNDS = 12  # of which the first is not scored: the last ten are, and every second
SMALL = [
    *("--set", 'methods=["local", "pgfed"]', "--set", f"rounds={ROUNDS}"),
    *("--set", "data.clients=6", "--set", "data.min_samples=10", "--set", "train.epochs=1"),
    *("--set", "evaluate_every=2", "--set", "engine.backend=serial"),
]
LIMIT = 300  # seconds


def events(out: Path, method: str, seed: int = 0) -> EventAccumulator:
    """As TensorBoard reads them; nothing is left out."""
    folder = out / "tensorboard" / method / f"seed-{seed}"
    assert len(list(folder.iterdir())) == 1
    found = EventAccumulator(str(folder), {"scalars": 0, "images": 0, "histograms": 0})
    return found.Reload()


def scalars(found: EventAccumulator, tag: str) -> dict[int, float]:
    """By round; each round once."""
    items = found.Scalars(tag)
    assert len({item.step for item in items}) == len(items)
    return {item.step: item.value for item in items}


def history(out: Path, method: str) -> list[dict[str, Any]]:
    path = out / method / "seed-0" / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_complete(out: Path) -> None:
    """All rounds of both methods are there once, as the history tells them."""
    tags = {
        "score/mean": "mean_score",
        "loss/mean": "mean_loss",
        "bytes/down": "bytes_down",
        "bytes/up": "bytes_up",
        "seconds/round": "seconds",
    }
    for method in ("local", "pgfed"):
        found, records = events(out, method), history(out, method)
        assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
        for tag, key in tags.items():
            expected = {r["round"]: r[key] for r in records if r[key] is not None}
            assert scalars(found, tag) == pytest.approx(expected), (method, tag)
        scored = [r["round"] for r in records if r["mean_score"] is not None]
        assert [item.step for item in found.Histograms("score/clients")] == scored


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run through the Python interface, with clients that lack test data and two seeds."""
    folder = tmp_path_factory.mktemp("tensorboard") / "run"
    data = blobs(120)
    small_runs.run(
        (data["x"], data["y"]),
        methods=["pgfed", "local"],
        rounds=ROUNDS,
        clients=6,
        seeds=[0, 1],
        min_samples=5,
        backend="serial",
        out=folder,
        callbacks=["tensorboard"],
    )
    return folder


def test_rounds_are_there_as_the_history_has_them(out: Path) -> None:
    check_complete(out)
    folders = sorted(path.parent for path in out.glob("tensorboard/**/events.out.*"))
    assert [str(folder.relative_to(out)) for folder in folders] == [
        f"tensorboard/{method}/seed-{seed}" for method in ("local", "pgfed") for seed in (0, 1)
    ]


def test_participation_speed_and_the_worst_tenth(out: Path) -> None:
    found, records = events(out, "pgfed"), history(out, "pgfed")
    assert scalars(found, "clients/asked") == {r["round"]: len(r["cohort"]) for r in records}
    assert scalars(found, "clients/counted") == scalars(found, "clients/asked")
    assert min(scalars(found, "speed/samples_per_second").values()) > 0
    lowest = {r["round"]: min(r["client_score"]) for r in records}  # of six, one is a tenth
    assert scalars(found, "score/worst_tenth") == pytest.approx(lowest, abs=1e-4)


def test_the_gain_is_over_local_in_the_same_round(out: Path) -> None:
    alone, found = history(out, "local"), events(out, "pgfed")
    gains = {
        r["round"]: np.array(r["client_score"]) - np.array(a["client_score"])
        for r, a in zip(history(out, "pgfed"), alone, strict=True)
    }
    mean = {t: gain.mean() for t, gain in gains.items()}
    assert scalars(found, "gain/mean") == pytest.approx(mean, abs=1e-4)
    assert "gain/mean" not in events(out, "local").Tags()["scalars"]


def test_the_matrix_is_an_image_of_the_family_only(out: Path) -> None:
    found = events(out, "pgfed")
    images = found.Images("A")
    assert [item.step for item in images] == list(range(1, ROUNDS + 1))
    last = np.array(Image.open(io.BytesIO(images[-1].encoded_image_string)))
    cell = len(last) // 6
    assert last.shape == (6 * cell, 6 * cell, 3)
    assert len(last) >= 400
    with np.load(out / "pgfed" / "seed-0" / "alpha.npz") as arrays:
        change, met = arrays["alpha"] - np.float32(arrays["start"]), arrays["meetings"]
    rows = [line.split(",") for line in (out / "pgfed/seed-0/clients.csv").read_text().split()]
    sizes = np.array([int(row[rows[0].index("n_train")]) for row in rows[1:]])
    order = np.argsort(-sizes, kind="stable")
    shown = last[cell // 2 :: cell, cell // 2 :: cell].astype(int)
    redder = shown[..., 0] > shown[..., 2]
    grey = (shown == rgb(NEVER_MET)).all(axis=-1)
    change, met = change[np.ix_(order, order)], met[np.ix_(order, order)]
    assert (grey == (met == 0)).all()
    large = np.abs(change) > 0.1 * np.abs(change).max()
    assert large.any()
    assert (redder[large] == (change[large] < 0)).all()
    assert events(out, "local").Tags()["images"] == []


def test_colours_end_where_the_scale_does() -> None:
    pixels = picture(np.array([[-3.0, -1.0], [1.0, 0.0]]))
    half = len(pixels) // 2
    corners = [tuple(pixels[i, j]) for i in (0, half) for j in (0, half)]
    assert corners == [rgb(VERMILLION), rgb(VERMILLION), rgb(BLUE), rgb(NEVER_MET)]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5))


def test_killed_and_resumed_has_every_round_once(pgfed: Command, tmp_path: Path) -> None:
    """Killed in the second method, when rounds are on disk that have no checkpoint yet."""
    out = tmp_path / "run"
    words = ["run", "--out", str(out), *SMALL, "--set", "engine.checkpoint_every=4"]
    words += ["--resume", "--quiet", "--tensorboard"]
    process = subprocess.Popen([sys.executable, "-m", "pgfed", *words])
    target = out / "pgfed" / "seed-0" / "history.jsonl"
    deadline = time.monotonic() + LIMIT
    try:
        while not (target.is_file() and target.read_bytes().count(b"\n") >= 7):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.kill()
        process.wait(timeout=LIMIT)
    assert pgfed(*words) == Done(0, "", "")
    check_complete(out)
    scored = [r["round"] for r in history(out, "pgfed") if r["mean_score"] is not None]
    assert [item.step for item in events(out, "pgfed").Images("A")] == scored


def test_rounds_run_without_it_are_told_from_the_history(pgfed: Command, tmp_path: Path) -> None:
    """Of a finished run too: `resume --tensorboard` runs nothing and writes all scalars."""
    assert pgfed("run", *SMALL, "--out", "run", "--quiet").code == 0
    assert not (tmp_path / "run" / "tensorboard").exists()
    for _ in range(2):  # the second time everything is there already
        assert pgfed("resume", "run", "--tensorboard", "--quiet").code == 0
        check_complete(tmp_path / "run")
    assert list(scalars(events(tmp_path / "run", "pgfed"), "gain/mean")) == [*range(2, ROUNDS + 1)]


def test_without_tensorboard_it_is_one_line_and_nothing_is_written(
    pgfed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if "tensorboard" in name:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    done = pgfed("run", *SMALL, "--out", "run", "--tensorboard")
    assert done.code == 2
    assert done.line == (
        "pgfed: --tensorboard: TensorBoard is not installed; pip install 'pgfed[tensorboard]'"
    )
    assert not (tmp_path / "run").exists()


def test_from_python_it_needs_a_folder() -> None:
    with pytest.raises(UserError, match="say out=DIR"):
        small_runs.run(callbacks=["tensorboard"])


def test_an_interrupted_close_is_not_tried_again() -> None:
    class Closing:
        closed = False

        def close(self) -> None:
            if self.closed:
                raise OSError("Writer is closed")
            self.closed = True
            raise KeyboardInterrupt

    board = TensorBoard()
    board._writer = Closing()
    with pytest.raises(KeyboardInterrupt):
        board.close()
    board.close()
