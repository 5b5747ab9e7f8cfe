"""What is kept of a run that was stopped, and the tables that are made from it alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pgfed
from pgfed.engine.callbacks import Record, Running
from small_runs import run

ROOT = Path(__file__).parents[2]
ROUNDS, REACHED = 6, 4
METHODS = ["local", "fedavg-local", "pgfed"]


class Stop(pgfed.Callback):
    """Ends the run in the middle of PGFed, before the checkpoint of that round."""

    def round(self, run: Running, record: Record) -> None:
        if run.method == "pgfed" and record["round"] == REACHED + 1:
            raise pgfed.UserError("stopped")


def small(out: Path, rounds: int, **options: object) -> None:
    run(
        "digits",
        methods=METHODS,
        rounds=rounds,
        clients=6,
        epochs=1,
        backend="serial",
        models="none",
        out=out,
        **options,
    )


def script(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that is left of a run."""
    at = tmp_path_factory.mktemp("stopped")
    with pytest.raises(pgfed.UserError, match="stopped"):
        small(at / "run", ROUNDS, callbacks=[Stop()])
    (at / "run" / "report.html").write_text(f"<p>pgfed run {at / 'run'}/experiment.toml</p>")
    said = script("scripts/keep.py", at / "run", at / "results" / "small", "--page")
    assert said.startswith(f"{at / 'results'}: 0.0"), said
    shutil.rmtree(at / "run")
    return at / "results" / "small"


def table(*words: object) -> dict[str, list[str]]:
    """The cells after the first of each row, the heading's too."""
    lines = script("experiments/reached.py", *words).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.strip("`"): rest for first, *rest in rows if not first.startswith("---")}


def means(kept: Path, method: str) -> list[float]:
    lines = (kept / method / "seed-0" / "history.jsonl").read_text().splitlines()
    return [100 * json.loads(line)["mean_score"] for line in lines]


def test_a_method_that_was_stopped_counts_with_the_rounds_it_reached(kept: Path) -> None:
    found = table("scores", kept)
    assert [found[name][0] for name in METHODS] == [str(ROUNDS), str(ROUNDS), str(REACHED)]
    assert len(means(kept, "pgfed")) == REACHED  # as of its checkpoint
    for name, window in zip(METHODS, (2, 2, 1), strict=True):
        assert float(found[name][1]) == pytest.approx(np.mean(means(kept, name)[-window:]), abs=0.1)
        assert float(found[name][2]) == pytest.approx(max(means(kept, name)), abs=0.1)


def test_methods_are_compared_after_the_same_rounds(kept: Path) -> None:
    found = table("against", kept)
    assert found["method"][0] == f"last rounds of {REACHED}"
    for name in METHODS:
        assert float(found[name][0]) == pytest.approx(means(kept, name)[REACHED - 1], abs=0.1)
    difference = means(kept, "pgfed")[REACHED - 1] - means(kept, "fedavg-local")[REACHED - 1]
    shown = found["pgfed"][1].split()[0].replace("−", "-")
    assert float(shown) == pytest.approx(difference, abs=0.1)
    assert "pgfed" not in table("against", kept, "--at", ROUNDS)
    assert "No run" in script("experiments/reached.py", "against", kept, "--at", ROUNDS + 1)
    gained = table("gains", kept)["fedavg-local"]
    over = means(kept, "fedavg-local")[REACHED - 1] - means(kept, "local")[REACHED - 1]
    assert float(gained[0].split()[0].replace("−", "-")) == pytest.approx(over, abs=0.1)


def test_settings_are_chosen_on_validation_data_alone(tmp_path: Path) -> None:
    """A step that is far too long loses, and the best one of each method is held against the
    control's."""
    for rate in (0.01, 3.0):
        small(tmp_path / str(rate), 3, lr=rate, validation_share=0.2)
    found = table("chosen", tmp_path)
    for name in ("fedavg-local", "pgfed"):
        for rate in (0.01, 3.0):
            folder = tmp_path / str(rate) / name / "seed-0"
            last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
            shown = [float(cell) for cell in found[f"{name} (lr={rate})"][:2]]
            said = [100 * last[key] for key in ("mean_validation_score", "mean_score")]
            assert shown == pytest.approx(said, abs=0.1)
        assert found[f"{name} (lr=3.0)"][2] == ""
    assert found["fedavg-local (lr=0.01)"][2] == "chosen"
    assert found["pgfed (lr=0.01)"][2].startswith("chosen: ")
    assert found["method"][2] == "against `fedavg-local (lr=0.01)`, points"


def test_bytes_are_those_of_a_round_beside_the_controls(kept: Path) -> None:
    """Five models in place of two; in the first round, without auxiliary gradients, three."""
    found = table("bytes", kept)
    assert [found[name][2] for name in ("local", "fedavg-local")] == ["0.00", "1.00"]
    assert float(found["pgfed"][2]) == pytest.approx(
        (1.5 + (REACHED - 1) * 2.5) / REACHED, abs=0.05
    )
    assert found["pgfed"][3] == "2.5"
    assert "No run" in script("experiments/reached.py", "bytes", kept, "--control", "fedper")


def test_the_matrix_is_that_of_a_run_of_so_many_rounds(kept: Path, tmp_path: Path) -> None:
    small(tmp_path, REACHED)
    files = [folder / "pgfed" / "seed-0" / "alpha.npz" for folder in (kept, tmp_path)]
    with np.load(files[0]) as found, np.load(files[1]) as expected:
        for name in ("alpha", "meetings", "start"):
            np.testing.assert_array_equal(found[name], expected[name])
    rows = table("matrix", kept.parent)  # all that is kept there
    assert rows["pgfed, seed 0"][0] == str(REACHED)


def test_nothing_that_is_kept_names_a_folder_of_the_machine(kept: Path) -> None:
    texts = [file for file in kept.rglob("*") if file.suffix in (".json", ".toml", ".html")]
    assert len(texts) >= 5
    for file in texts:
        assert str(kept.parents[1]) not in file.read_text(encoding="utf-8"), file
    command = json.loads((kept / "environment.json").read_text())["command"]
    assert not any(word.startswith("/") for word in command.split())
