"""Reading run folders: what is there, what is missing, what is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import small_runs
from pgfed.errors import UserError
from pgfed.report.rendering import read
from pgfed.results.folder.reader import load
from report.folders import at_work, make_folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "run", methods=["local", "pgfed"], clients=5, rounds=4)


def test_everything_is_read(small: Path) -> None:
    found = load(small)
    assert list(found.runs) == ["local", "pgfed"]
    assert sorted(found.runs["pgfed"]) == [0, 1]
    run = found.runs["pgfed"][1]
    assert run.history.rounds == [1, 2, 3, 4]
    assert run.history.sent == [500_000, 1_000_000, 1_500_000, 2_000_000]
    assert run.history.samples == 2000
    assert run.alpha is not None
    assert run.alpha.clients == 5
    assert run.history.clients is not None
    assert run.history.clients.shape == (4, 5)
    assert len(found.clients) == 5
    assert found.clients.class_names == ["ant", "bee", "cat", "dog"]
    assert found.runs["local"][0].alpha is None


def test_a_real_run_is_read_and_agrees_with_its_summary(tmp_path: Path) -> None:
    out = tmp_path / "real"
    small_runs.run(
        methods=["local", "fedavg", "pgfed"],
        rounds=2,
        clients=4,
        seeds=[0, 1],
        backend="serial",
        models="none",
        out=out,
    )
    (group,) = read([out])
    summary = {(s["method"], s["seed"]): s for s in json.loads((out / "summary.json").read_text())}
    for method in group.methods:
        for index, seed in enumerate(method.seeds):
            expected = summary[method.name, seed]
            for which, key in (
                ("last", "mean"),
                ("kept", "kept"),
                ("best", "best"),
                ("final", "final"),
            ):
                found = method.means(which)[index]  # type: ignore[arg-type]
                assert found == pytest.approx(expected[f"{key}_score"])
            history = method.runs[seed].history
            assert history.clients is not None
            np.testing.assert_allclose(
                history.clients[-1], method.scores("final")[index], atol=1e-4
            )
            assert history.sent[-1] == expected["bytes_down"] + expected["bytes_up"]
            assert history.samples / history.train_seconds == pytest.approx(
                expected["samples_per_second"]
            )
        gain = group.gain(method)
        if gain is not None:
            means = [summary[method.name, seed]["gain_mean"] for seed in method.seeds]
            assert gain.mean == pytest.approx(np.mean(means))


def test_unfinished_runs_are_named_and_left_out(small: Path) -> None:
    (small / "pgfed" / "seed-1" / "clients.csv").unlink()
    history = small / "pgfed" / "seed-1" / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join(lines[:2]) + lines[2][:20])  # the third is being written
    found = load(small)
    assert sorted(found.runs["pgfed"]) == [0]
    assert found.unfinished == [("pgfed", 1, 2)]


def test_a_run_with_nothing_finished_points_to_what_helps(small: Path) -> None:
    for path in small.rglob("clients.csv"):
        path.unlink()
    with at_work(small), pytest.raises(UserError, match=r"`pgfed watch .*` shows how far"):
        load(small)
    with pytest.raises(UserError, match=r"`pgfed resume .*` goes on"):
        load(small)


def test_optional_files_may_be_missing(small: Path) -> None:
    (small / "data.json").unlink()
    (small / "pgfed" / "seed-0" / "alpha.npz").unlink()
    found = load(small)
    assert found.clients.counts is None
    assert found.runs["pgfed"][0].alpha is None


def test_names_of_clients_come_from_the_data(tmp_path: Path) -> None:
    labels = ["north, east", "site\ntwo", 'a "b"', "d"]
    folder = make_folder(tmp_path / "named", clients=4, labels=labels)
    assert load(folder).clients.names == labels


def _damage(file: str, change: Callable[[Path], object]) -> Callable[[Path], str]:
    def apply(folder: Path) -> str:
        path = folder / file
        change(path)
        return path.name

    return apply


def _replace(old: str, new: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


HISTORY, CLIENTS = "pgfed/seed-0/history.jsonl", "pgfed/seed-0/clients.csv"
DAMAGES = {
    "history not JSON": _damage(HISTORY, _replace('{"round": 2', '{"rou')),
    "history not objects": _damage(HISTORY, lambda p: p.write_text("3\n")),
    "history without a key": _damage(HISTORY, _replace('"samples"', '"pictures"')),
    "history with a wrong type": _damage(HISTORY, _replace('"samples": 500', '"samples": "x"')),
    "history with odd sites": _damage(HISTORY, _replace('"samples"', '"sites": [3], "samples"')),
    "history empty": _damage(HISTORY, lambda p: p.write_text("")),
    "clients without a column": _damage(CLIENTS, _replace("mean", "meant")),
    "clients cut short": _damage(CLIENTS, lambda p: p.write_text(p.read_text()[:-30])),
    "clients fewer than elsewhere": _damage(
        CLIENTS, lambda p: p.write_text("\n".join(p.read_text().splitlines()[:-1]) + "\n")
    ),
    "clients without rows": _damage(
        CLIENTS, lambda p: p.write_text(p.read_text().splitlines()[0] + "\n")
    ),
    "clients with words": _damage("local/seed-0/clients.csv", _replace("0,,", "0,,many")),
    "clients not text": _damage(CLIENTS, lambda p: p.write_bytes(b"\xff\xfe\x00")),
    "alpha not a zip": _damage("pgfed/seed-0/alpha.npz", lambda p: p.write_bytes(b"PK nonsense")),
    "alpha of others": _damage(
        "pgfed/seed-0/alpha.npz",
        lambda p: np.savez(p, alpha=np.ones((2, 2)), start=1.0, meetings=np.ones((2, 2), int)),
    ),
    "alpha pickled": _damage(
        "pgfed/seed-0/alpha.npz", lambda p: np.savez(p, alpha=np.array([{}], dtype=object))
    ),
    "data not JSON": _damage("data.json", lambda p: p.write_text("{")),
    "data of others": _damage("data.json", _replace('"class_names": ["ant", ', '"class_names": [')),
    "data without counts": _damage("data.json", _replace('"counts"', '"numbers"')),
    "environment a list": _damage("environment.json", lambda p: p.write_text("[]")),
    "environment missing": _damage("environment.json", lambda p: p.unlink()),
    "new clients uneven": _damage(
        "new_clients.json", lambda p: p.write_text('{"x": {"epochs": [1], "accuracy": []}}')
    ),
    "new clients damaged": _damage("new_clients.json", lambda p: p.write_text('{"x": 3}')),
    "explicit damaged": _damage("explicit.json", lambda p: p.write_text('{"arms": [{}]}')),
    "experiment damaged": _damage("experiment.toml", lambda p: p.write_text("rounds = ")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_one_line_that_names_the_file(small: Path, damage: Callable[[Path], str]) -> None:
    name = damage(small)
    with pytest.raises(UserError) as raised:
        load(small)
    message = str(raised.value)
    assert name in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(("path", "expected"), [("nowhere", "no such folder"), (".", "not a run")])
def test_what_is_no_run_folder(tmp_path: Path, path: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        load(tmp_path / path)
