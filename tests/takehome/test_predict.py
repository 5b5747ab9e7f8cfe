"""`pgfed predict`: the model's own predictions, and one clear line for what it cannot take."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import small_runs
from cli.cli_tools import Done
from pgfed.api import Result
from takehome.pictures import CLASSES, pictures

Command = Callable[..., Done]
Grey = tuple[Path, Result]


def model(grey: Grey) -> Path:
    return grey[0] / "pgfed/seed-0/models/client-0001.safetensors"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def expected(grey: Grey, x: np.ndarray) -> tuple[list[str], list[float]]:
    """Of the model in memory."""
    inputs = torch.from_numpy(x)[:, None].float() / 127.5 - 1
    with torch.no_grad():
        p, best = grey[1].model(1, "pgfed")(inputs).double().softmax(1).max(1)
    return [CLASSES[k] for k in best.tolist()], p.tolist()


@pytest.fixture
def images(tmp_path: Path) -> np.ndarray:
    x, _, _ = pictures(300, seed=2)  # more than one batch
    (tmp_path / "photos/more").mkdir(parents=True)
    for k, picture in enumerate(x):
        place = "photos" if k < 200 else "photos/more"
        Image.fromarray(picture).save(tmp_path / place / f"{k:03}.png")
    (tmp_path / "photos/.hidden").write_text("no image")
    return x


def test_predictions_are_those_of_the_model_in_memory(
    grey: Grey, pgfed: Command, images: np.ndarray
) -> None:
    done = pgfed("predict", model(grey), "photos", "--out", "predictions.csv")
    assert (done.code, done.out) == (0, f"{len(images)} predictions: predictions.csv\n")
    found = rows(Path("predictions.csv").read_text())
    labels, p = expected(grey, images)
    # Files in order: those of the folder more/ come after 199.png.
    assert [row["file"] for row in found][198:202] == [
        *("photos/198.png", "photos/199.png", "photos/more/200.png", "photos/more/201.png")
    ]
    assert [row["class"] for row in found] == labels
    assert [float(row["probability"]) for row in found] == pytest.approx(p, abs=1e-6)
    assert {row["row"] for row in found} == {""}


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28)])
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_arrays(
    grey: Grey, pgfed: Command, images: np.ndarray, kind: str, shape: tuple[int, ...]
) -> None:
    x = images.reshape(-1, *shape)
    if kind == "npy":
        np.save("scans.npy", x)
    else:
        np.savez("scans.npz", x=x, y=np.zeros(len(x), int))
    found = rows(pgfed("predict", model(grey), f"scans.{kind}").out)
    labels, p = expected(grey, images)
    assert [row["class"] for row in found] == labels
    assert [float(row["probability"]) for row in found] == pytest.approx(p, abs=1e-6)
    assert [row["row"] for row in found] == [str(k) for k in range(len(images))]


def test_resized_only_when_asked(grey: Grey, pgfed: Command, images: np.ndarray) -> None:
    Image.fromarray(images[0]).resize((56, 30)).save("large.png")
    done = pgfed("predict", model(grey), "large.png")
    assert done.code == 2
    assert "expects 28x28 grey images, large.png is 56x30 grey (--resize" in done.line
    assert rows(pgfed("predict", model(grey), "large.png", "--resize").out)


def test_a_colour_image_is_refused(grey: Grey, pgfed: Command) -> None:
    Image.new("RGB", (32, 32)).save("photo.png")
    for words in ([], ["--resize"]):
        done = pgfed("predict", model(grey), "photo.png", *words)
        assert done.code == 2
        assert done.line == (
            "pgfed: client-0001.safetensors expects 28x28 grey images, photo.png is 32x32 RGB"
        )


def save_pickle(x: np.ndarray) -> None:
    np.save("a.npy", np.array([{}, x], dtype=object), allow_pickle=True)


def cut_short(x: np.ndarray) -> None:
    np.save("a.npy", x)
    Path("a.npy").write_bytes(Path("a.npy").read_bytes()[:-9])


BAD: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "floats": (lambda x: np.save("a.npy", x / 255), "holds 3 x 28 x 28 of float64"),
    "colour": (lambda x: np.save("a.npy", np.stack([x] * 3, 1)), "holds 3 x 3 x 28 x 28 of uint8"),
    "one image": (lambda x: np.save("a.npy", x[0]), "holds 28 x 28 of uint8; a single sample"),
    "one wide image": (lambda x: np.save("a.npy", x[0, :5]), "holds 5 x 28 of uint8"),
    "wide images": (lambda x: np.save("a.npy", x[:, :5]), "holds 3 x 5 x 28 of uint8"),
    "a number": (lambda x: np.save("a.npy", x[0, 0, 0]), "one number of uint8"),
    "a pickle": (save_pickle, "not a plain numpy array"),
    "cut short": (cut_short, "cut short"),
    "text": (lambda x: Path("a.npy").write_text("x"), "not a plain numpy array"),
    "nothing": (lambda x: None, "does not exist"),
    "an empty folder": (lambda x: Path("a.npy").mkdir(), "a.npy"),
}


@pytest.mark.parametrize(("write", "said"), BAD.values(), ids=BAD)
def test_bad_arrays_are_one_line(
    grey: Grey, pgfed: Command, write: Callable[[np.ndarray], Any], said: str
) -> None:
    write(pictures(3)[0])
    done = pgfed("predict", model(grey), "a.npy", "--out", "p.csv")
    assert done.code == 2
    assert said in done.line
    assert not Path("p.csv").exists()


def test_one_sample_without_its_leading_axis(pgfed: Command, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 12, 12), dtype=np.uint8)
    given = {"clients": 2, "min_samples": 5, "rounds": 1, "epochs": 1, "backend": "serial"}
    y = np.arange(60) % 2
    small_runs.run((x, y), methods=["fedavg"], out=tmp_path / "run", **given)
    file = "run/fedavg/seed-0/models/global.safetensors"
    np.save("one.npy", x[0])
    done = pgfed("predict", file, "one.npy")
    assert done.code == 2
    assert done.line.endswith(
        "one.npy holds 3 x 12 x 12 of uint8; a single sample needs a leading axis: x[None]"
    )
    np.save("one.npy", x[0][None])
    assert len(rows(pgfed("predict", file, "one.npy").out)) == 1
    np.save("one.npy", x[0, :2])
    assert pgfed("predict", file, "one.npy").line.endswith("one.npy holds 2 x 12 x 12 of uint8")


def test_bad_images_are_one_line(grey: Grey, pgfed: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    assert "not an image" in pgfed("predict", model(grey), "notes.txt").line
    (tmp_path / "empty").mkdir()
    assert "holds no files" in pgfed("predict", model(grey), "empty").line
    assert "not a model file" in pgfed("predict", "notes.txt", "notes.txt").line
    done = pgfed("predict", model(grey), grey[0].parent / "data.npz", "--out", "no/where.csv")
    assert "cannot be written" in done.line


def test_one_bad_file_does_not_keep_back_the_others(
    grey: Grey, pgfed: Command, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    np.save("wide.npy", pictures(3)[0][:, :5])
    Image.new("RGB", (32, 32)).save("colour.png")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    bad = ["notes.txt", "wide.npy", "colour.png", "rows.csv"]
    array = grey[0].parent / "data.npz"
    good = rows(pgfed("predict", model(grey), array).out)
    done = pgfed("predict", model(grey), *bad, array, "--out", "p.csv")
    assert done.code == 2
    assert done.line.endswith("--skip-bad leaves it out (and 3 more); all others are done")
    assert rows(Path("p.csv").read_text()) == good
    quiet = pgfed("predict", model(grey), *bad, array, "--skip-bad")
    assert (quiet.code, rows(quiet.out)) == (0, good)
    assert all(name in quiet.err for name in bad)
    nothing = pgfed("predict", model(grey), *bad, "--skip-bad", "--out", "none.csv")
    assert nothing.code == 2, "where nothing can be used, that is an error"
    assert not Path("none.csv").exists()
    for row in good:  # the probabilities of all classes, which the first is the largest of
        each = {key[2:]: float(p) for key, p in row.items() if key.startswith("p:")}
        assert sum(each.values()) == pytest.approx(1, abs=1e-5)
        assert max(each, key=lambda name: each[name]) == row["class"]


def test_json_holds_the_same_rows_whatever_was_left_out(grey: Grey, pgfed: Command) -> None:
    array = grey[0].parent / "data.npz"
    good = rows(pgfed("predict", model(grey), array).out)
    Image.new("RGB", (32, 32)).save("colour.png")
    done = pgfed("predict", model(grey), array, "colour.png", "--json")
    assert done.code == 2
    assert "all others are done" in done.line
    assert [{key: str(v) for key, v in row.items()} for row in json.loads(done.out)] == [
        {key: v if key in ("file", "row", "class") else str(float(v)) for key, v in row.items()}
        for row in good
    ]
    assert pgfed("predict", model(grey), array, "--json", "--out", "p.json").code == 0
    assert json.loads(Path("p.json").read_text()) == json.loads(done.out)


def test_grey_images_for_a_colour_model(pgfed: Command, tmp_path: Path) -> None:
    """Grey becomes colour without loss, as when a folder of both is trained on."""
    x, y, _ = pictures(48, size=12)
    for name, level, picture in zip(np.array(CLASSES)[y], y, x, strict=True):
        place = tmp_path / "data" / name
        place.mkdir(parents=True, exist_ok=True)
        colour = np.stack([picture, picture // 2, np.full_like(picture, 40 * level)], axis=2)
        Image.fromarray(colour).save(place / f"{len(list(place.iterdir()))}.png")
    words = ["--set", "data.dataset=folder:data", "--set", "data.clients=2", "--set", "rounds=1"]
    words += ["--set", "data.min_samples=5", "--set", 'methods=["fedavg"]', "--quiet"]
    # Resized in training, images are resized in the same way here.
    words += ["--set", "data.image_size=10", "--out", "run"]
    assert pgfed("run", *words).code == 0
    Image.fromarray(x[0]).save("grey.png")
    Image.fromarray(np.stack([x[0]] * 3, axis=2)).save("colour.png")
    file = "run/fedavg/seed-0/models/global.safetensors"
    found = rows(pgfed("predict", file, "grey.png", "colour.png").out)
    assert found[0]["probability"] == found[1]["probability"]


def test_models_of_vectors_take_arrays_only(
    everything: tuple[Path, Result], pgfed: Command
) -> None:
    folder, result = everything
    file = folder / "pgfed/seed-0/models/client-0000.safetensors"
    Image.new("L", (8, 8)).save("photo.png")
    done = pgfed("predict", file, "photo.png")
    assert "expects vectors of 6 numbers as float32 arrays" in done.line
    found = rows(pgfed("predict", file, folder.parent / "data.npz").out)
    with np.load(folder.parent / "data.npz") as arrays:
        x = torch.from_numpy(arrays["x"])
        gaps = arrays["x"].copy()
    gaps[[3, 5], 2] = np.nan
    np.save("gaps.npy", gaps)
    done = pgfed("predict", file, "gaps.npy")
    assert done.code == 2
    assert "gaps.npy: 2 row(s) hold NaN or infinite values, first in row 3" in done.line
    assert len(rows(done.out)) == len(gaps) - 2
    with torch.no_grad():
        best = result.model(0, "pgfed")(x).argmax(1)
    assert [row["class"] for row in found] == [str(k) for k in best.tolist()]
    np.save("nan.npy", np.array([[0.0] * 6, [np.nan] * 6]))
    assert "first in row 1" in pgfed("predict", file, "nan.npy").line
