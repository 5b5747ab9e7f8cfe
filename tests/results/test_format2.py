"""A run folder of format 2: names of clients, evidence, and that `open` gives what `run` gave."""

from __future__ import annotations

import csv
import html
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pgfed
import small_runs
from pgfed.api import Result
from pgfed.cli.terminal.experiment import outcomes
from pgfed.config.experiment import from_dict
from pgfed.config.experiment import load as load_file
from pgfed.data.federation import Federation
from pgfed.errors import UserError
from pgfed.report.rendering import read, render
from pgfed.results.comparison import group
from pgfed.results.folder.evidence import read_evidence
from pgfed.results.folder.history import line_of, read_history
from pgfed.results.folder.reader import load
from pgfed.results.kept.writing import model_files
from pgfed.results.runs import client_names
from pgfed.results.summary import each_run
from pgfed.results.verdict import judge

METHODS = ["local", "fedavg-local", "pgfed", "fedbabu"]
NAMES = ["north", "east wing", "global"]  # the second and third are no file names of their own


def federation(labels: list[str] | None = None) -> Federation:
    rng = np.random.default_rng(3)
    y = np.arange(90) % 3
    x = (rng.normal(0, 1.5, (90, 4)) + y[:, None]).astype(np.float32)
    made = Federation.from_arrays(x, y, np.arange(90) // 30, validation_share=0.2)
    # As data with names will have it.
    object.__setattr__(made, "client_labels", None if labels is None else np.array(labels))
    return made


def options(**more: Any) -> dict[str, Any]:
    return {"rounds": 3, "cohort": 0.7, "model": "mlp", "backend": "serial", **more}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    path = tmp_path_factory.mktemp("two") / "run"
    more = options(methods=METHODS, seeds=[4, 1])
    return path, small_runs.run(federation(NAMES), out=path, **more)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_clients_have_their_names_in_the_files(ran: tuple[Path, Result]) -> None:
    path, result = ran
    assert tomllib.loads((path / "experiment.toml").read_text())["format"] == 2
    at = path / "pgfed/seed-4"
    assert [row["client"] for row in rows(at / "clients.csv")] == NAMES
    lines = [json.loads(line) for line in (at / "history.jsonl").read_text().splitlines()]
    for line, record in zip(lines, result.data.runs["pgfed"][4].history.records, strict=True):
        assert line["cohort"] == [NAMES[i] for i in record["cohort"]]
        assert set(line["client_seconds"]) == set(line["cohort"])
    manifest = json.loads((at / "models/manifest.json").read_text())
    assert [(c["client"], c["id"]) for c in manifest["clients"]] == [
        (name, i) for i, name in enumerate(NAMES)
    ]
    files = [c["file"] for c in manifest["clients"]]
    assert files == [f"{n}.safetensors" for n in ("north", "client-0001", "client-0002")]


def test_names_of_files_do_not_clash() -> None:
    made = [
        model_files(federation(names))
        for names in (None, ["a", "A", "b"], ["client-0002", "x/y", "7"], ["0", "1", "2"])
    ]
    numbered = [f"client-{i:04}.safetensors" for i in range(3)]
    assert made == [numbered, [*numbered[:2], "b.safetensors"], numbered, numbered]
    assert client_names(federation(["a", "a", "b"])) == ["0", "1", "2"]


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = {
        "round": 1,
        "cohort": [0, 2],
        "left_out": [2],
        "dropped": [{"client": 1, "reason": "no reply"}, {"client": 77, "reason": "was not asked"}],
        "client_seconds": {0: 0.5, 2: 0.25},
        "sites": {2: {"counted": True}},
        "mean_score": 0.5,
    }
    names = ["2", "1", "zero"]  # numbers that are not their own
    (tmp_path / "history.jsonl").write_text(line_of(record, names))
    line = json.loads((tmp_path / "history.jsonl").read_text())
    assert line["cohort"] == ["2", "zero"]
    assert line["dropped"][1]["client"] == "77"
    assert read_history(tmp_path / "history.jsonl", names, format=2, strict=True) == [record]


def test_open_gives_what_run_gave(ran: tuple[Path, Result]) -> None:
    path, result = ran
    opened = pgfed.open(path)
    assert opened.summary == result.summary
    assert opened.experiment == result.experiment
    for method in METHODS:
        for seed in (4, 1):
            assert opened.clients(method, seed).equals(result.clients(method, seed))
            ours, theirs = opened.history(method, seed), result.history(method, seed)
            assert ours.to_dict("records") == theirs.to_dict("records")
            for client in range(3):
                assert same(opened.model(client, method, seed), result.model(client, method, seed))
            assert same(opened.model("north", method, seed), result.model(0, method, seed))
            assert same(opened.global_model(method, seed), result.global_model(method, seed))
    for name, array in result.data.runs["pgfed"][1].matrix.items():
        assert np.array_equal(opened.data.runs["pgfed"][1].matrix[name], array)
    assert np.array_equal(opened.alpha("pgfed", 1), result.alpha("pgfed", 1))
    assert judge(group([opened.data])[0]) == judge(group([result.data])[0])
    with pytest.raises(UserError, match="unknown 'south'"):
        opened.model("south")


def test_the_page_says_what_the_terminal_says(
    ran: tuple[Path, Result], capsys: pytest.CaptureFixture[str]
) -> None:
    path, result = ran
    outcomes(result.data)
    said = capsys.readouterr().out.splitlines()[1 + len(METHODS) : -1]
    page = " ".join(html.unescape(re.sub(r"<[^>]+>", "", render(read([path])))).split())
    assert len(said) > 3
    assert [line for line in said if line not in page] == []


def same(a: nn.Module, b: nn.Module) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in a.state_dict().items())


def test_the_evidence_sums_to_the_scores(ran: tuple[Path, Result]) -> None:
    path, result = ran
    for run in each_run(result.data):
        assert run.evidence is not None
        assert np.array_equal(run.evidence.scores(), run.final)
        at = path / run.method / f"seed-{run.seed}" / "evidence.npz"
        kept = read_evidence(at, 3, outputs=True)
        assert kept is not None
        assert kept.outputs is not None
        assert np.array_equal(kept.outcome, run.evidence.outcome)
        for i in range(3):
            x, y = result.federation.test(i).batch(slice(None))
            own = slice(*kept.offsets[i : i + 2])
            with torch.no_grad():
                outputs = result.model(i, run.method, run.seed)(x)
            assert np.allclose(kept.outputs[own], outputs.numpy(), atol=1e-6)
            right = kept.outputs[own].argmax(1) == y.numpy()
            assert np.array_equal(kept.outcome[own], right.astype(np.float32))
    assert load(path).runs["pgfed"][1].evidence is not None


def test_the_evidence_is_of_the_best_round_where_that_is_kept(tmp_path: Path) -> None:
    more = options(methods=["fedavg-local"], rounds=8, lr=0.05, keep="best", models="none")
    result = small_runs.run(federation(), out=tmp_path / "run", **more)
    memory = small_runs.run(federation(), **more)
    (run,), (other,) = result.runs, memory.runs
    validation = [record["mean_validation_score"] for record in run.history.records]
    best = int(np.argmax(validation))
    assert best + 1 < len(validation), "the last round is the best: choose other data"
    assert run.evidence is not None
    assert other.evidence is not None
    expected = run.history.records[best]["client_score"]
    assert run.evidence.scores() == pytest.approx(expected, abs=1e-4)
    assert run.evidence.outputs is None  # they are on disk
    kept = read_evidence(tmp_path / "run/fedavg-local/seed-0/evidence.npz", 3, outputs=True)
    assert kept is not None
    assert np.array_equal(kept.outputs, other.evidence.outputs)
    assert not (tmp_path / "run/fedavg-local/seed-0/models").exists()


def test_damaged_evidence_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "evidence.npz"
    outputs = np.zeros((4, 3), np.float32)
    for offsets, outcome in (
        ([0, 2, 5], np.zeros(4, np.float32)),
        ([0, 3, 2], np.zeros(4, np.float32)),
        ([0, 4], np.zeros(4, np.float32)),
        ([0, 2, 4], np.zeros(4)),
    ):
        np.savez(path, offsets=np.array(offsets), outcome=outcome, outputs=outputs)
        with pytest.raises(UserError, match=r"evidence\.npz: not the evidence of 2 clients"):
            read_evidence(path, 2)


def test_methods_say_of_themselves_what_a_report_needs(ran: tuple[Path, Result]) -> None:
    path, _ = ran
    said = json.loads((path / "methods.json").read_text())
    assert list(said) == METHODS
    assert said["pgfed"]["control"] == {"mu": 0.0}
    assert said["pgfed"]["control_twin"] == "fedavg-local"
    assert said["local"]["control"] is None
    assert [name for name in said if said[name]["scored_last"]] == ["fedbabu"]
    found = load(path).methods
    assert found["fedbabu"].new_client_start == said["fedbabu"]["new_client_start"]


def test_a_variant_with_the_settings_of_the_control_is_one(tmp_path: Path) -> None:
    variant = {"pgfed-plain": {"base": "pgfed", "mu": 0.0}}
    more = options(methods=["local", "fedavg-local", "pgfed", "pgfed-plain"], method=variant)
    (found,) = group([small_runs.run(federation(), **more).data])
    by_name = {method.name: method for method in found.methods}
    assert found.control(by_name["pgfed"]) is by_name["pgfed-plain"]
    assert found.control(by_name["pgfed-plain"]) is None
    assert [m.name for m in found.methods].index("pgfed-plain") + 1 == [
        m.name for m in found.methods
    ].index("pgfed")


def test_the_format_of_an_experiment_file(tmp_path: Path) -> None:
    assert from_dict({}).format == 2
    file = tmp_path / "a.toml"
    file.write_text("rounds = 2\n")
    assert load_file(file).format == 1
    assert load_file(file).document()["format"] == 2
    file.write_text("format = 2\nrounds = 2\n")
    assert load_file(file).format == 2
    file.write_text("format = 3\n")
    with pytest.raises(UserError, match="format"):
        load_file(file)
