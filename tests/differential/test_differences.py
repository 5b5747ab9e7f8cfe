"""The comparison with version 0.1 can fail, and says what differs: which method, client, round.

One small run is changed in one place at a time; another is run by today's tree with a learning rate
that is a millionth longer.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from differential.cases import Case
from differential.readout import Items, differences, read_run
from differential.trees import Bench

SMALL = Case("small", {"methods": ["local", "fedavg"], "rounds": 2}, lost=())
METHOD, SEED = "pgfed", 1
DOCUMENT = {"methods": [METHOD], "seeds": [SEED]}
CLIENTS = ("0", "1", "2")


def test_a_learning_rate_a_millionth_longer_shows_in_its_method_alone(bench: Bench) -> None:
    document = copy.deepcopy(bench.old([SMALL])["small"].document)
    document["method"]["fedavg"]["lr"] = 0.02 * (1 + 1e-6)
    found = bench.differences([SMALL], {"small": document})
    assert "small: fedavg, seed 1: global model: other bits" in found
    assert "small: fedavg, seed 1: client 0's model: other bits" in found
    assert all(line.startswith("small: fedavg, ") for line in found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as version 0.1 writes it: one method, three clients, two rounds."""
    place = tmp_path / METHOD / f"seed-{SEED}"
    models = place / "models"
    models.mkdir(parents=True)
    for k, name in enumerate([*CLIENTS, "global"]):
        weights = np.arange(4, dtype=np.float32) + k
        save_file({"fc.weight": weights, "fc.bias": weights[:1]}, models / _file(name))
    manifest = {
        "round": 2,
        "global": {"file": _file("global")},
        "clients": [{"client": int(name), "file": _file(name)} for name in CLIENTS],
    }
    (models / "manifest.json").write_text(json.dumps(manifest))
    records = [_record(1), _record(2)]
    (place / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    square = np.full((3, 3), 1 / 3, dtype=np.float32)
    np.savez(place / "alpha.npz", alpha=square, start=1 / 3, meetings=square.astype(np.int64))
    return tmp_path


def _file(name: str) -> str:
    return f"client-{name}.safetensors"


def _record(round: int) -> dict[str, object]:
    return {
        "round": round,
        "cohort": [0, 2],
        "mean_accuracy": 0.5,
        "mean_loss": 1.25,
        "client_accuracy": [0.25, None, 0.75],
        "bytes_down": 40,
        "bytes_up": 20,
        "bytes_eval": 0,
        "bytes_by_key": {"down": {"w": 40}, "up": {"w": 20}},
        "dropped": [{"client": 2, "reason": "no reply"}],
        "left_out": [],
        "images": 8,
        "seconds": 0.1 * round,
    }


def _seed_folder(folder: Path) -> Path:
    return folder / METHOD / f"seed-{SEED}"


def _flip_a_bit_of_client_1(folder: Path) -> None:
    path = _seed_folder(folder) / "models" / _file("1")
    weights = load_file(path)
    weights["fc.weight"][3] = np.nextafter(weights["fc.weight"][3], np.float32(9))
    save_file(weights, path)


def _negate_the_zero_of_client_0(folder: Path) -> None:
    path = _seed_folder(folder) / "models" / _file("0")
    weights = load_file(path)
    weights["fc.weight"][0] = -0.0
    save_file(weights, path)


def _meet_once_more(folder: Path) -> None:
    path = _seed_folder(folder) / "alpha.npz"
    with np.load(path) as arrays:
        content = dict(arrays)
    content["meetings"][0, 2] += 1
    np.savez(path, **content)


def _edit_round_2(folder: Path, edit: Callable[[dict[str, object]], object]) -> None:
    path = _seed_folder(folder) / "history.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    edit(second)
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")


def _nudge_the_loss(folder: Path) -> None:
    _edit_round_2(folder, lambda record: record.update(mean_loss=math.nextafter(1.25, 2)))


def _drop_another(folder: Path) -> None:
    _edit_round_2(folder, lambda record: record.update(dropped=[{"client": 0, "reason": ""}]))


def _draw_another(folder: Path) -> None:
    _edit_round_2(folder, lambda record: record.update(cohort=[0, 1]))


CHANGES = {
    "one bit of a model": (_flip_a_bit_of_client_1, "client 1's model: other bits"),
    "the sign of a zero": (_negate_the_zero_of_client_0, "client 0's model: other bits"),
    "an entry of A": (_meet_once_more, "A: meetings: other bits"),
    "the last digit of a loss": (
        _nudge_the_loss,
        "round 2: mean loss: 1.25 in 0.1, 1.2500000000000002 today",
    ),
    "who was dropped": (_drop_another, 'round 2: dropped: ["2"] in 0.1, ["0"] today'),
    "who was drawn": (_draw_another, 'round 2: cohort: ["0", "2"] in 0.1, ["0", "1"] today'),
}


@pytest.mark.parametrize(("change", "line"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_in_one_place_is_the_only_one_reported(
    folder: Path, change: Callable[[Path], None], line: str
) -> None:
    before = read_run(folder, DOCUMENT)
    change(folder)
    assert differences(before, read_run(folder, DOCUMENT)) == [f"{METHOD}, seed {SEED}: {line}"]


def test_what_is_missing_and_what_is_new_is_reported() -> None:
    old: Items = {"a": "1", "b": "2"}
    assert differences(old, {"b": "2", "c": "3"}) == ["a: not there today", "c: only today"]


def test_seconds_do_not_count(folder: Path) -> None:
    before = read_run(folder, DOCUMENT)
    _edit_round_2(folder, lambda record: record.update(seconds=99.0))
    assert differences(before, read_run(folder, DOCUMENT)) == []


def test_the_later_format_reads_as_the_same(folder: Path) -> None:
    """Scores for accuracies, samples for images, names for numbers, files named after clients."""
    before = read_run(folder, DOCUMENT)
    place = _seed_folder(folder)
    records = [json.loads(line) for line in (place / "history.jsonl").read_text().splitlines()]
    for record in records:
        for old, new in (
            ("mean_accuracy", "mean_score"),
            ("client_accuracy", "client_score"),
            ("images", "samples"),
        ):
            record[new] = record.pop(old)
        record["cohort"] = ["0", "2"]
        record["dropped"] = [{"client": "2", "reason": "in other words"}]
    (place / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    manifest = json.loads((place / "models" / "manifest.json").read_text())
    for row in manifest["clients"]:
        name = f"{row['client']}.safetensors"
        (place / "models" / row["file"]).rename(place / "models" / name)
        row |= {"client": str(row["client"]), "file": name}
    (place / "models" / "manifest.json").write_text(json.dumps(manifest))
    assert differences(before, read_run(folder, DOCUMENT)) == []
