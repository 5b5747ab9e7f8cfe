"""Model files: only the very bytes that the manifest vouches for, and never more than they hold."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz.driving import attempt, drive, share
from fuzz.mutation import mutate
from pgfed.engine.storage.durable import read_state, sha256, state_from_bytes, state_to_bytes
from pgfed.model.networks import MLP
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.models import GLOBAL, Model, ModelsInFolder, open_model
from pgfed.results.kept.writing import write_model

SHAPE, CLASSES = (1, 3, 3), ["a", "b", "c"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The models of a run: a global one and two clients', with their manifest."""
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for i in range(2):
        values = MLP(SHAPE, len(CLASSES), hidden=128).state_dict()
        rows.append({"client": i, **write_model(tmp_path / f"client-000{i}.safetensors", values)})
    shared = write_model(tmp_path / GLOBAL, MLP(SHAPE, len(CLASSES)).state_dict())
    manifests.write(
        tmp_path,
        {
            "format": 1,
            "method": "pgfed",
            "hyperparameters": {"mu": 0.1},
            "round": 3,
            "seed": 0,
            "kept": "last",
            "model": "mlp",
            "head": "fc2",
            "image_size": None,
            "input_shape": list(SHAPE),
            "classes": CLASSES,
            "data_fingerprint": "0" * 64,
            "normalisation": {"input": "uint8", "divide": 127.5, "subtract": 1.0},
            "global": shared,
            "clients": rows,
        },
    )
    return tmp_path


def used(path: Path) -> tuple[Model, torch.Tensor]:
    """The model, and what it says to some input."""
    model = open_model(path)
    module = model.module()
    out = module(torch.ones(2, *model.manifest.shape))
    assert out.shape == (2, len(model.manifest.classes))
    return model, out


@share("models", 0.5)
def test_damaged_folders(models: Path, cases: int):
    """What comes out is what was written; what a changed manifest says of it, it says openly."""
    good = {path: path.read_bytes() for path in sorted(models.iterdir())}
    chosen = models / "client-0001.safetensors"
    _, expected = used(chosen)

    def one(rng: random.Random) -> str | None:
        path = rng.choice([chosen, models / "manifest.json", models / "manifest.json"])
        path.write_bytes(mutate(good[path], rng, list(good.values())))
        try:
            found, _ = attempt(lambda: used(chosen))
            values, _ = attempt(lambda: ModelsInFolder(models).personal(1))
        finally:
            path.write_bytes(good[path])
        if values is not None:
            assert torch.equal(values["fc2.weight"], open_model(chosen).values["fc2.weight"])
        if found is None:
            return "refused"
        assert torch.equal(found[1], expected)
        return "accepted"

    assert drive("model folders", cases, one)["accepted"]


def lying_header(raw: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header claims anything, and is a header nevertheless."""
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    name = rng.choice([key for key in header if key != "__metadata__"] or ["x"])
    entry = header.setdefault(name, {"dtype": "F32", "shape": [], "data_offsets": [0, 0]})
    match rng.randrange(7):
        case 0:
            entry["shape"] = rng.choice([[2**62], [0, 2**63], [0, 2**40, 2**40], [-1], [1.5], []])
            if rng.random() < 0.5:
                entry["data_offsets"] = [0, 0]
        case 1:
            kinds = ["F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", "X", ""]
            entry["dtype"] = rng.choice(kinds)
        case 2:
            entry["data_offsets"] = rng.choice([[0, 2**63], [-1, 4], [4, 0], [0, 0], [10**30, 1]])
        case 3:
            header = {**header, rng.choice(["x" * 5_000, "\n", "", "é"]): entry}
        case 4:
            numbers = ["[" * 20_000, "{", '{"a": NaN}', '{"a": [1]}', "7", '{"a": 1e999}', "null"]
            header["__metadata__"] = {
                "scalars": rng.choice([*numbers, '{"a": ' + "9" * 5_000 + "}"])
            }
        case 5:
            header.pop(name)
        case _:
            header = json.loads(mutate(json.dumps(header).encode(), rng) or b"0")
    text = json.dumps(header).encode()
    size = rng.choice([len(text)] * 30 + [0, 2**63, 2**64 - 1, len(raw) * 2])
    return struct.pack("<Q", size) + text + raw[8 + int.from_bytes(raw[:8], "little") :]


@share("models", 0.3)
def test_lying_model_files(models: Path, cases: int):
    """The manifest vouches for whatever lies there: it must still fit the model it names."""
    chosen = models / "client-0001.safetensors"
    raw = chosen.read_bytes()
    manifest = json.loads((models / "manifest.json").read_bytes())

    def one(rng: random.Random) -> str | None:
        try:
            hostile = lying_header(raw, rng) if rng.random() < 0.7 else mutate(raw, rng)
        except (ValueError, RecursionError):  # no longer JSON
            return None
        chosen.write_bytes(hostile)
        manifest["clients"][1]["sha256"] = sha256(hostile)
        shapes = [[9], [1], [1, 16, 16], [2**31, 2**31, 2**31], [1, 30_000, 30_000]]
        names = ["cnn", "nothing", "no.such:module", "os:sep"]
        manifest["input_shape"] = rng.choice([[1, 3, 3]] * 20 + shapes)
        manifest["model"] = rng.choice(["mlp"] * 20 + names)
        manifests.write(models, manifest)
        found, _ = attempt(lambda: used(chosen))
        return "refused" if found is None else "accepted"

    drive("lying models", cases, one)


@share("models", 0.2)
def test_damaged_states(tmp_path: Path, cases: int):
    """States on disk: with the checksum nothing but the state itself, without it a flat one."""
    path = tmp_path / "000001-000002.safetensors"
    state = {
        "w": torch.arange(40.0),
        "ids": torch.arange(3),
        "n": 7,
        "r": 0.5,
        "e": torch.empty(0, 4),
    }
    raw = state_to_bytes(state)

    def one(rng: random.Random) -> str | None:
        try:
            hostile = lying_header(raw, rng) if rng.random() < 0.6 else mutate(raw, rng)
        except (ValueError, RecursionError):
            return None
        path.write_bytes(hostile)
        found, refusal = attempt(lambda: read_state(path, sha256(raw)))
        assert (refusal is None) == (hostile == raw)
        found, refusal = attempt(lambda: state_from_bytes(hostile))
        if found is None:
            return "refused"
        assert all(isinstance(v, torch.Tensor) or type(v) in (int, float) for v in found.values())
        return "accepted"

    drive("states", cases, one)
