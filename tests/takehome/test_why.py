"""`pgfed why`: the row of A, who met whom, and the parts of the last auxiliary gradient."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.cli_tools import SMALL, Done
from pgfed.api import Result
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.methods.pgfed import PGFed
from pgfed.methods.randomness import draw_cohort
from pgfed.methods.settings import TrainConfig

Command = Callable[..., Done]
Grey = tuple[Path, Result]


def test_weights_and_meetings_are_those_of_the_matrix(grey: Grey, pgfed: Command) -> None:
    folder, result = grey
    done = pgfed("why", folder, "--client", 1, "--json")
    found = json.loads(done.out)
    assert (found["method"], found["seed"], found["start"]) == ("pgfed", 0, 0.5)
    alpha = result.alpha("pgfed")
    cohorts = result.history("pgfed")["cohort"].tolist()
    for row in found["weights"]:
        j = row["client"]
        assert row["weight"] == pytest.approx(alpha[1, j])
        assert row["change"] == pytest.approx(alpha[1, j] - 0.5)
        # They meet when one trains in the round after the other.
        met = sum(1 in now and j in last for last, now in pairwise(cohorts))
        assert row["met"] == met
        assert row["n_train"] == result.federation.n_train[j]
    weights = [row["weight"] for row in found["weights"]]
    assert weights == sorted(weights, reverse=True)
    assert any(row["met"] for row in found["weights"]), "client 1 met nobody: choose another"


def test_shares_are_those_of_the_auxiliary_gradient(grey: Grey, pgfed: Command) -> None:
    """Against the gradients themselves, from the same run in memory."""
    folder, result = grey
    train = TrainConfig(epochs=1)
    with Serial(result.federation, "mlp") as backend:
        run = Run(PGFed(train=train), result.federation, backend, seed=0, rounds=5, cohort=2)
        while not run.finished:
            run.step()
    ids, gradients = run.server["ids"].tolist(), run.server["gradients"].double().numpy()
    assert ids == draw_cohort(0, 5, 4, 2)
    for client in range(4):
        a = result.alpha("pgfed")[client, ids].astype(np.float64)
        whole = a @ gradients
        expected = (a[:, None] * gradients) @ whole / (whole @ whole)
        found = json.loads(pgfed("why", folder, "--client", client, "--json").out)
        shares = {row["client"]: row["share"] for row in found["weights"] if row["share"]}
        assert list(map(shares.get, ids)) == pytest.approx(expected, rel=1e-3)
        assert sum(shares.values()) == pytest.approx(1)


def test_the_table_the_figure_and_the_limits(grey: Grey, pgfed: Command, tmp_path: Path) -> None:
    done = pgfed("why", grey[0], "--client", 1, "--figures", "drawn")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "drawn/why.png").read_bytes()[:4] == b"\x89PNG"
    lines = done.out.splitlines()
    assert "every weight starts at 0.5" in lines[0]
    assert lines[1].split()[:4] == ["client", "train", "met", "weight"]
    assert lines[-1].startswith("Read it with care: ")
    assert lines[-1].endswith("does not prove that those data helped.")


def test_a_client_that_met_nobody(pgfed: Command) -> None:
    words = [*SMALL, "--set", "cohort=0.5", "--set", "rounds=1", "--set", 'methods=["pgfed"]']
    assert pgfed("run", *words, "--out", "run", "--quiet").code == 0
    found = json.loads(pgfed("why", "run", "--client", 0, "--json").out)
    assert {row["change"] for row in found["weights"]} == {0.0}
    assert {row["met"] for row in found["weights"]} == {0}
    # Both gradients of the only round have the same weight.
    assert sum(row["share"] for row in found["weights"]) == pytest.approx(1)


def test_weights_along_the_exact_gradient_are_read_otherwise(pgfed: Command) -> None:
    words = [*SMALL, "--set", 'methods=["local", "pgfed"]', "--out", "run", "--quiet"]
    assert pgfed("run", *words, "--set", "method.pgfed.alpha_gradient=exact").code == 0
    assert "estimate of this client's loss" in pgfed("why", "run", "--client", 0).out


def test_mistakes_are_one_line(grey: Grey, pgfed: Command, tmp_path: Path) -> None:
    def said(*words: Any) -> str:
        done = pgfed("why", *words)
        assert done.code == 2
        return done.line

    assert "allowed: 0 to 3" in said(grey[0], "--client", 4)
    assert "fedavg learns no matrix" in said(grey[0], "--client", 0, "--method", "fedavg")
    shutil.copytree(grey[0], tmp_path / "run")
    alpha = tmp_path / "run/pgfed/seed-0/alpha.npz"
    alpha.write_bytes(alpha.read_bytes()[:-200])
    assert "alpha.npz: not an npz file" in said("run", "--client", 0)
    alpha.unlink()
    assert "no finished method of the PGFed family" in said("run", "--client", 0)
