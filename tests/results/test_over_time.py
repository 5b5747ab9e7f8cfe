"""Next month: a run begins with the models of an earlier one, or goes on for more rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pgfed
import small_runs
from pgfed.cli import main as command
from pgfed.errors import UserError
from pgfed.results.kept.models import load

METHODS = ["local", "fedavg", "fedper", "pgfed"]
SMALL: dict[str, Any] = {"backend": "serial", "epochs": 1, "min_samples": 0}


def main(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    return int(ended.value.code or 0)


def sites(path: Path, names: str, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(5, 3))
    x = rng.normal(size=(30 * len(names), 5)).astype(np.float32)
    np.savez(
        path,
        x=x,
        y=(x @ common).argmax(1),
        client=np.array(list(names))[np.arange(len(x)) % len(names)],
    )
    return f"npz:{path}"


def models(folder: Path, method: str) -> dict[str, torch.Tensor]:
    rows = json.loads((folder / method / "seed-0" / "models" / "manifest.json").read_text())
    names = [row["client"] for row in rows["clients"]]
    states = {n: load(folder, n, method=method)[0].state_dict() for n in names}
    return {n: torch.cat([v.flatten() for v in s.values()]) for n, s in states.items()}


def test_each_client_begins_with_its_own_model_and_a_new_one_with_the_global(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    small_runs.run(sites(tmp_path / "a.npz", "abc"), methods=METHODS, rounds=3, out=first, **SMALL)
    # A learning rate of next to nothing: what comes out is what went in.
    again = small_runs.run(
        sites(tmp_path / "b.npz", "acd", seed=1),
        methods=METHODS,
        rounds=1,
        out=second,
        start_from=str(first),
        lr=1e-12,
        **SMALL,
    )
    before, after = models(first, "local"), models(second, "local")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in "ac")
    old, _ = load(first / "fedavg" / "seed-0" / "models" / "global.safetensors")
    new, _ = load(second / "fedavg" / "seed-0" / "models" / "global.safetensors")
    for a, b in zip(old.state_dict().values(), new.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    # The head stays each client's own: that of `c`, whoever else is there now.
    head = {n: v[-(3 * 128 + 3) :] for n, v in models(second, "fedper").items()}
    assert torch.allclose(head["c"], models(first, "fedper")["c"][-(3 * 128 + 3) :], atol=1e-6)
    assert again.experiment.start_from == str(first)


def test_another_model_is_refused_and_a_new_method_starts_afresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = sites(tmp_path / "a.npz", "ab")
    small_runs.run(data, methods=["local"], rounds=1, out=tmp_path / "first", **SMALL)
    start = {"start_from": str(tmp_path / "first"), **SMALL}
    other = tmp_path / "b.npz"
    with np.load(tmp_path / "a.npz") as held:
        arrays = dict(held)
    np.savez(other, **{**arrays, "x": arrays["x"][:, :4]})
    with pytest.raises(UserError, match="start-from: the models of local are not of this run"):
        small_runs.run(f"npz:{other}", methods=["local"], rounds=1, **start)
    # As many classes, but others: an output must not go on as another class.
    np.savez(other, **{**arrays, "y": np.array(["a", "b", "c"])[arrays["y"]]})
    said = "start-from: .* each of 0, 1, 2; new here: a, b, c; missing here: 0, 1, 2; allowed"
    with pytest.raises(UserError, match=said):
        small_runs.run(f"npz:{other}", methods=["local"], rounds=1, **start)
    with caplog.at_level("WARNING", "pgfed.notes"):
        small_runs.run(data, methods=["fedavg"], rounds=1, **start)
    assert "fedavg: not among the models" in caplog.text


def test_more_rounds_are_those_of_a_longer_run(tmp_path: Path) -> None:
    data = sites(tmp_path / "a.npz", "abcd")
    options = {"methods": [*METHODS, "alone"], "cohort": 0.5, **SMALL}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    small_runs.run(data, rounds=14, out=whole, **options)
    small_runs.run(data, rounds=3, out=parts, keep_state=True, **options)
    assert main(["resume", str(parts), "--rounds", "14", "--quiet"]) == 0
    for method in METHODS:
        before, after = models(whole, method), models(parts, method)
        assert all(torch.equal(before[name], after[name]) for name in before)
        rows = [
            (folder / method / "seed-0" / "clients.csv").read_text() for folder in (whole, parts)
        ]
        assert rows[0] == rows[1]
    assert pgfed.open(parts).experiment.rounds == 14


def test_without_its_state_a_run_does_not_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    small_runs.run(sites(tmp_path / "a.npz", "ab"), methods=["local"], rounds=2, out=out, **SMALL)
    before = (out / "experiment.toml").read_text()
    assert main(["resume", str(out), "--rounds", "5", "--quiet"]) == 2
    assert "kept no state to go on from" in capsys.readouterr().err
    assert (out / "experiment.toml").read_text() == before
    assert main(["resume", str(out), "--rounds", "1", "--quiet"]) == 2
    assert "allowed: 2, which the run was begun for" in capsys.readouterr().err


def test_every_model_on_every_clients_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    data = sites(tmp_path / "a.npz", "abc")
    result = small_runs.run(data, methods=["local"], rounds=2, out=out, **SMALL)
    assert main(["evaluate", str(out), "--across", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    federation = result.federation
    for i in range(3):
        module = result.model(i, "local")
        for j in range(3):
            test = federation.test(j)
            x, y = test.batch(slice(0, len(test)))
            right = float((module(x).argmax(1) == y).float().mean())
            assert found["scores"][i][j] == pytest.approx(right)
    assert main(["evaluate", str(out), "--across"]) == 0
    assert "At home" in capsys.readouterr().out
    assert main(["evaluate", str(out)]) == 2
    assert "--across" in capsys.readouterr().err
