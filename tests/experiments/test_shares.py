"""experiments/shares.py: of a run's own share it says what the run has scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pgfed
from experiments import shares


def test_the_share_of_the_run_has_the_score_of_the_run(tmp_path: Path) -> None:
    pgfed.run(
        methods=["fedavg-framed", "fedavg-local"],
        rounds=2,
        output={"keep_state": True},
        out=tmp_path / "run",
    )
    told = shares.scores(tmp_path / "run", "fedavg-framed", 0)
    assert told["round"] == 2
    found = {float(k): v for k, (v, _) in told["accuracy and loss by share"].items()}
    lines = (tmp_path / "run/fedavg-framed/seed-0/history.jsonl").read_text().splitlines()
    assert found[0.3] == pytest.approx(json.loads(lines[-1])["mean_score"], abs=1e-5)
    assert found[0.0] != found[1.0]
    with pytest.raises(SystemExit, match="not in a training frame"):
        shares.scores(tmp_path / "run", "fedavg-local", 0)
