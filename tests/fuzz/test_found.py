"""What the fuzzing found, one small test each."""

from __future__ import annotations

import io
import json
import multiprocessing
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from PIL import Image

from data.data_files import write_cifar10_python
from fuzz.driving import attempt, one_line
from fuzz.test_fuzz_checkpoints import SAVED, Saved, checkpointed, finished, gone_on_with, saved
from fuzz.test_fuzz_data import chunk, small_machine
from fuzz.test_fuzz_models import models, used
from pgfed.config.experiment import load
from pgfed.data import matching as agreed
from pgfed.data.datasets import load as load_data
from pgfed.data.files import limits
from pgfed.engine.backends import wire
from pgfed.engine.exchange.replies import MAX_SAMPLES, score_refusal
from pgfed.engine.setup import Setup
from pgfed.engine.storage.durable import sha256, state_from_bytes, state_to_bytes
from pgfed.errors import LONGEST, UserError
from pgfed.federation.flower.records import RAW, BadRecord, unpack
from pgfed.model.kinds import CLASSES
from pgfed.results.folder.reader import load as load_for_report
from pgfed.results.kept.models import ModelsInFolder

__all__ = ["finished", "models", "saved", "small_machine"]  # fixtures


def refusal_of(read: object) -> str:
    found, refusal = attempt(read)  # type: ignore[arg-type]
    assert found is None
    assert refusal is not None
    return refusal


# -- messages and experiment files -----------------------------------------------------------------


def test_what_a_file_says_stays_on_its_line():
    told = str(UserError("a\nb\x1b[2J" + "\u2028" + "x" * 10_000 + " end"))
    one_line(told)
    assert told.startswith("a\\nb\\x1b[2J\\u2028xxx")
    assert told.endswith("x end")
    assert len(told) <= LONGEST
    one_line(str(UserError("\n" * 10_000)))


@pytest.mark.parametrize(
    "text",
    ["rounds = {}", "name = {}", "methods = [{}]", "[data]\ndataset = {}", "[method.x]\nbase = {}"],
)
def test_an_integer_too_long_to_be_printed(tmp_path: Path, text: str):
    path = tmp_path / "e.toml"
    path.write_text(text.format("0x" + "f" * 5_000))
    assert "an integer of 20000 bits" in refusal_of(lambda: load(path))


# -- data ------------------------------------------------------------------------------------------


def archive(path: Path, header: bytes, data: bytes = b"", name: str = "x") -> str:
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + data
    labels = io.BytesIO()
    np.save(labels, np.arange(12) % 2)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.npy", raw)
        for other in {"x", "y"} - {name}:
            file.writestr(f"{other}.npy", labels.getvalue())
    return f"npz:{path}"


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (12, 4)", b""),
        (b"{" * 9_000, b""),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (-12, -4)}", bytes(192)),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, %d)}" % 2**64, b""),
        (b"{'descr': ('<f4', (4,)), 'fortran_order': False, 'shape': (12,)}", bytes(192)),
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % (b"1," * 70), bytes(4)),
    ],
)
def test_headers_of_arrays(tmp_path: Path, header: bytes, data: bytes):
    assert "array 'x'" in refusal_of(
        lambda: load_data(archive(tmp_path / "a.npz", header, data), None)
    )


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("point", [0x110000, 0xFFFFFFFF, 0xD800])
def test_text_that_is_none(tmp_path: Path, order: str, point: int):
    header = f"{{'descr': '{order}U1', 'fortran_order': False, 'shape': (12,)}}".encode()
    name = archive(tmp_path / "a.npz", header, struct.pack(f"{order}I", point) * 12, "domain")
    assert "no text" in refusal_of(lambda: load_data(name, None))


def test_class_names_that_are_no_list(tmp_path: Path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(4) % 2, class_names=np.array("one"))
    told = refusal_of(
        lambda: agreed.load(
            f"npz:{path}",
            None,
            classes=["0", "1"],
            input_shape=(2,),
            input_type="float32",
            image_size=None,
        )
    )
    assert "class_names must be one string per class" in told


def png(*chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks)


def test_an_image_claims_two_gigabytes_and_gets_none(tmp_path: Path):
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / label / "good.png")
    pixels = zlib.compress(bytes(20))
    claim = struct.pack(">I", 2**31 - 1) + b"IDAT" + pixels
    (tmp_path / "a" / "bad.png").write_bytes(png(claim))
    attempt(lambda: load_data(f"folder:{tmp_path}", None))  # within the memory of one case


def test_an_idx_file_claims_gigabytes_and_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "memory_limit", lambda: 8 << 30)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        claim = struct.pack(">BBBBIII", 0, 0, 8, 3, 2**17, 2**8, 2**7)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(claim + bytes(100))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">BBBBI", 0, 0, 8, 1, 1) + b"1"
        )
    assert "cut short (100 of" in refusal_of(lambda: load_data("mnist", tmp_path))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (b"\x80\x02}r\xff\xff\xff\x0f.", "place 268435455 of its memo"),  # 4 GiB of memo
        (b"\x80\x05\x96\x04\0\0\0\0\0\0\0abcd.", "the step BYTEARRAY8"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.", "refused"),  # a string of 1 TiB
    ],
)
def test_pickles_that_would_exhaust_memory(tmp_path: Path, steps: bytes, words: str):
    write_cifar10_python(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(steps)
    assert words in refusal_of(lambda: load_data("cifar10", tmp_path))


# -- models and states -----------------------------------------------------------------------------


def with_header(header: dict[str, object]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "header",
    [
        {"__metadata__": {"scalars": "[" * 50_000}},
        {"__metadata__": {"scalars": '{"a": [1]}'}},
        {
            "w": {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]},
            "__metadata__": {"scalars": "{}"},
        },
    ],
)
def test_states(header: dict[str, object]):
    assert "not a state file" in refusal_of(lambda: state_from_bytes(with_header(header)))


def test_a_model_that_claims_huge_inputs_is_not_built(models: Path):
    manifest = json.loads((models / "manifest.json").read_text())
    manifest["input_shape"] = [1, 50_000, 50_000]
    (models / "manifest.json").write_text(json.dumps(manifest))
    assert "does not fit the model 'mlp'" in refusal_of(
        lambda: used(models / "client-0001.safetensors")
    )


def test_models_of_a_run_are_held_against_their_checksums(models: Path):
    path = models / "client-0001.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert "SHA-256" in refusal_of(lambda: ModelsInFolder(models).personal(1))
    assert "holds no such model" in refusal_of(lambda: ModelsInFolder(models).personal(7))


# -- checkpoints and run folders -------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"round": None},
        {"round": "4"},
        {"server": 7},
        {"clients": [[1, 2]]},
        {"clients": [["../x", 1, "a"]]},
        {"clients": 3},
        {"best_score": None},
        [],
        None,
    ],
)
def test_a_sound_checkpoint_that_is_none(saved: Saved, change: object):
    """Its checksum is right, and what it says is not."""
    manifest = saved.folder / f"round-{SAVED:06d}.json"
    good = json.loads(saved.files[manifest].splitlines()[0])
    text = json.dumps({**good, **change} if isinstance(change, dict) else change)
    saved.put_back()
    manifest.write_text(f"{text}\n{sha256(text.encode())}\n")
    warnings: list[str] = []
    with checkpointed(saved.folder, warnings) as (run, checkpoints):
        assert checkpoints.restore(run, list(saved.history))
        assert run.round == SAVED - 1
    assert len(warnings) == 1
    saved.put_back()


def test_a_checkpoint_of_another_run(saved: Saved):
    manifest = saved.folder / f"round-{SAVED:06d}.json"
    server = saved.folder / f"server-{SAVED:06d}.safetensors"
    cut = state_from_bytes(saved.files[server])
    cut["run.score"] = torch.zeros(99, dtype=torch.float64)
    body = json.loads(saved.files[manifest].splitlines()[0])
    saved.put_back()
    server.write_bytes(state_to_bytes(cut))
    text = json.dumps({**body, "server": sha256(server.read_bytes())})
    manifest.write_text(f"{text}\n{sha256(text.encode())}\n")
    warnings: list[str] = []
    with checkpointed(saved.folder, warnings) as (run, checkpoints):
        assert checkpoints.restore(run, list(saved.history))
        assert run.round == SAVED - 1
    assert "run.score: not what this run saves" in warnings[0]
    saved.put_back()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pgfed/seed-0/alpha.npz", b"PK"),
        ("pgfed/seed-0/clients.csv", b"client,best\n0,x\n"),
        ("pgfed/seed-0/clients.csv", b"\xff\xfe"),
        ("pgfed/seed-0/clients.csv", b'"' + b"x" * 200_000),
        ("pgfed/seed-0/history.jsonl", b'{"round": 1}\n{"round": 2}\n{"round": 3}\n'),
        ("environment.json", b"[" * 50_000),
    ],
)
def test_a_damaged_run_folder(
    finished: tuple[Path, Setup], tmp_path: Path, name: str, content: bytes
):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    (folder / name).write_bytes(content)
    assert refusal_of(lambda: gone_on_with(folder, finished[1]))
    assert refusal_of(lambda: load_for_report(folder))
    assert not (folder / ".lock").exists()


def test_a_finished_run_without_its_last_round_is_not_summed_up(
    finished: tuple[Path, Setup], tmp_path: Path
):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    path = folder / "pgfed" / "seed-0" / "history.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert "2 whole rounds" in refusal_of(lambda: gone_on_with(folder, finished[1]))


# -- messages --------------------------------------------------------------------------------------


def test_a_score_over_more_samples_than_there_are_numbers():
    good = {"n": 9, "accuracy": 0.5, "loss": 3.5}
    scores = {f"{part}_{k}": v for part in ("test", "validation") for k, v in good.items()}
    assert score_refusal(scores, CLASSES) is None
    for n in (MAX_SAMPLES + 1, 10**400):
        reason = score_refusal({**scores, "test_n": n}, CLASSES)
        assert reason is not None
        assert "test samples" in one_line(reason)


@pytest.mark.parametrize(
    "described",
    [
        ["w", "load", [1]],
        ["w", "float32", [2**62, 2**62]],
        ["w", "float32", [0, 2**63]],
        ["w", "float32", [-1]],
        ["w", "float32", "12"],
        ["w", {"nested": 1}],
        [["w"], 1],
    ],
)
def test_what_no_worker_sends(described: list[object]):
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send_bytes(json.dumps([{}, [[described]]]).encode())
        theirs.send_bytes(bytes(4))
        with pytest.raises(OSError):  # whoever sent it is given up, like one that died
            wire.receive(ours)


@pytest.mark.parametrize("shape", [(0, 2**70), (0, 2**40, 2**40), (2**31, 2**31, 2**31, 0)])
def test_records_of_very_much_nothing(shape: tuple[int, ...]):
    content = RecordDict({"m.arrays": ArrayRecord({"w": Array("float32", shape, RAW, b"")})})
    with pytest.raises(BadRecord, match="shape"):
        unpack(content)
