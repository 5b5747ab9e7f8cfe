"""Checkpoints and run folders: gone on with exactly as written, or the damage is named."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pgfed
import small_runs
from fuzz.driving import attempt, drive, one_line, share
from fuzz.mutation import mutate
from pgfed.config.experiment import of_run
from pgfed.engine.rounds import Run
from pgfed.engine.setup import Setup, prepare
from pgfed.engine.storage.checkpoints import Checkpoints
from pgfed.engine.storage.durable import sha256, state_from_bytes, state_to_bytes
from pgfed.engine.storage.store import ClientStore
from pgfed.methods.registry import get
from pgfed.methods.values import State
from pgfed.results.folder import history
from pgfed.results.folder.reader import load as load_for_report
from pgfed.results.folder.writer import RunWriter, check_same
from pgfed.results.summary import client_rows, summaries
from pgfed.testing import make, started

SAVED = 4  # rounds of which checkpoints were made; the last two are there


@contextmanager
def checkpointed(folder: Path, warnings: list[str]) -> Iterator[tuple[Run, Checkpoints]]:
    saved = Checkpoints(folder, warn=warnings.append)
    with started(
        make(get("pgfed-mo"), {}), rounds=SAVED + 2, store=ClientStore(saved.clients)
    ) as run:
        yield run, saved


def same(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(v, two[k]) if isinstance(v, torch.Tensor) else v == two[k]
        for k, v in one.items()
    )


class Saved:
    """A run's checkpoints, and what it was like after each round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.after: dict[int, tuple[State, dict[int, State]]] = {}
        with checkpointed(folder, []) as (run, saved):
            for _ in range(SAVED):
                run.step()
                saved.save(run)
                states = {i: run.state(i) for i in range(run.info.clients)}
                self.after[run.round] = (dict(run.server), states)
            saved.wait()
            self.history = list(run.history)
        self.files = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    def put_back(self) -> None:
        for path in [p for p in self.folder.rglob("*") if p.is_file() and p not in self.files]:
            path.unlink()
        for path, raw in self.files.items():
            if not path.is_file() or path.read_bytes() != raw:
                path.write_bytes(raw)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("saved"))


@share("checkpoints", 0.35)
def test_damaged_checkpoints(saved: Saved, cases: int):
    """Checksums notice everything: the run is as it was after a round, or begins anew."""
    warnings: list[str] = []
    with checkpointed(saved.folder, warnings) as (run, checkpoints):

        def one(rng: random.Random) -> str:
            warnings.clear()
            saved.put_back()
            for path in rng.sample(list(saved.files), rng.choice([1, 1, 2, 4])):
                path.write_bytes(mutate(saved.files[path], rng, list(saved.files.values())))
            found, _ = attempt(lambda: checkpoints.restore(run, list(saved.history)))
            for warning in warnings:
                one_line(warning)
            if not found:
                assert warnings
                return "refused"
            server, states = saved.after[run.round]
            assert len(run.history) == run.round in (SAVED - 1, SAVED)
            assert same(run.server, server)
            assert all(same(run.state(i), state) for i, state in states.items())
            assert warnings or run.round == SAVED
            return "accepted"

        assert drive("checkpoints", cases, one)["accepted"]
    saved.put_back()


def lying(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    key = rng.choice(list(body))
    values = [
        None,
        -1,
        0,
        3,
        2**70,
        1.5,
        "3",
        "../../x",
        [],
        {},
        [[0, 0, ""]],
        [["../x", 1, "a"]],
        True,
    ]
    body = {**body, key: rng.choice(values)}
    if rng.random() < 0.2:
        del body[rng.choice(list(body))]
    if rng.random() < 0.2 and isinstance(body.get("clients"), list) and body["clients"]:
        row = rng.choice(body["clients"])
        if isinstance(row, list) and row:
            row[rng.randrange(len(row))] = rng.choice(values)
    return body


def lying_cut(raw: bytes, rng: random.Random) -> bytes:
    cut = state_from_bytes(raw)
    key = rng.choice(list(cut))
    others = [torch.zeros(0), torch.full((3,), float("nan")), torch.tensor([-1, 99]), 7, 1e308]
    cut[key] = rng.choice(others)
    if rng.random() < 0.3:
        del cut[rng.choice(list(cut))]
    return state_to_bytes(cut)


@share("checkpoints", 0.25)
def test_lying_checkpoints(saved: Saved, cases: int):
    """A checkpoint with the right checksums that is not this run's does not get in."""
    warnings: list[str] = []
    manifest = saved.folder / f"round-{SAVED:06d}.json"
    server = saved.folder / f"server-{SAVED:06d}.safetensors"
    good = json.loads(saved.files[manifest].splitlines()[0])
    with checkpointed(saved.folder, warnings) as (run, checkpoints):
        n = run.info.clients

        def one(rng: random.Random) -> str:
            warnings.clear()
            saved.put_back()
            body = json.loads(json.dumps(good))
            if rng.random() < 0.5:
                cut = lying_cut(saved.files[server], rng)
                server.write_bytes(cut)
                body["server"] = sha256(cut)
            else:
                body = lying(body, rng)
            text = json.dumps(body)
            if rng.random() < 0.1:
                text = "[" * 50_000
            manifest.write_text(f"{text}\n{sha256(text.encode())}\n")
            found, _ = attempt(lambda: checkpoints.restore(run, list(saved.history)))
            for warning in warnings:
                one_line(warning)
            assert found is not None
            if found:
                assert len(run.score) == len(run.loss) == n
                assert run.snapshot()[0].keys() >= {"server.w", "run.score"}
            return "refused" if warnings else "accepted"

        drive("lying checkpoints", cases, one)
    saved.put_back()


# -- run folders -----------------------------------------------------------------------------------

METHODS = ["local", "pgfed"]
NAMES = ["0", "1", "2"]  # of the clients


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Setup]:
    """A finished run folder, and the setup that would go on with it."""
    folder = tmp_path_factory.mktemp("finished")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)).astype(np.float32), np.arange(90) % 3
    np.savez(folder / "data.npz", x=x, y=y, client=np.arange(90) // 30)
    small_runs.run(
        f"npz:{folder / 'data.npz'}",
        methods=METHODS,
        rounds=3,
        epochs=1,
        model="mlp",
        backend="serial",
        out=folder / "run",
    )
    return folder / "run", prepare(of_run(folder / "run"), folder)


def gone_on_with(folder: Path, setup: Setup) -> list[str]:
    """All that `pgfed resume` reads of a finished run."""
    check_same(setup.experiment, folder)
    with RunWriter(folder, setup, resume=True) as kept:
        for method in METHODS:
            records = kept.finished(method, 0)
            if records is not None:
                assert len(records) == setup.experiment.rounds
                rows = client_rows(kept.runs[method, 0], None, kept.data.clients)
                assert len(rows) == 3
        json.dumps(summaries(kept.data), allow_nan=False)
    return METHODS


@share("checkpoints", 0.3)
def test_damaged_run_folders(finished: tuple[Path, Setup], tmp_path: Path, cases: int):
    """Read to be gone on with, to be reported, and to take a model home."""
    source, setup = finished
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    files = {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "models" not in path.parts
    }

    def one(rng: random.Random) -> str:
        path = rng.choice(list(files))
        path.write_bytes(mutate(files[path], rng, list(files.values())))
        try:
            resumed, _ = attempt(lambda: gone_on_with(folder, setup))
            reported, _ = attempt(lambda: load_for_report(folder))
            attempt(lambda: pgfed.open(folder).clients("pgfed", 0))
        finally:
            path.write_bytes(files[path])
        if reported is not None:
            assert all(
                len(run.last) == 3 for runs in reported.runs.values() for run in runs.values()
            )
        return "refused" if resumed is None or reported is None else "accepted"

    assert drive("run folders", cases, one)["accepted"]


@share("checkpoints", 0.1)
def test_damaged_histories(finished: tuple[Path, Setup], tmp_path: Path, cases: int):
    """Of a history that is damaged the rounds before the damage count, and no others."""
    path = tmp_path / "history.jsonl"
    raw = (finished[0] / "pgfed" / "seed-0" / "history.jsonl").read_bytes()

    def one(rng: random.Random) -> str:
        path.write_bytes(mutate(raw, rng))
        records, _ = attempt(lambda: history.read_history(path, NAMES, format=2))
        assert records is not None
        assert [record["round"] for record in records] == list(range(1, len(records) + 1))
        strict, _ = attempt(lambda: history.read_history(path, NAMES, format=2, strict=True))
        return "refused" if strict is None else "accepted"

    drive("histories", cases, one)
