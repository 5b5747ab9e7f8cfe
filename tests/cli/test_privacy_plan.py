"""`pgfed privacy plan`: what is said before anything is spent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from cli.cli_tools import Done
from pgfed.privacy.accounting import spent

Command = Callable[..., Done]
SMALL = (
    *("--set", "privacy.epsilon=8.0", "--set", "data.clients=4", "--set", "rounds=2"),
    *("--set", "cohort=0.25", "--set", 'methods=["fedavg", "pgfed", "local"]'),
)


def test_the_plan_is_of_the_clients_that_are_drawn(pgfed: Command) -> None:
    rows = {
        row["method"]: row for row in json.loads(pgfed("privacy", "plan", *SMALL, "--json").out)
    }
    assert set(rows) == {"fedavg", "pgfed"}  # of local nothing leaves
    fedavg, pgfed_ = rows["fedavg"], rows["pgfed"]
    # A round of 5 epochs in batches of 10, and of PGFed one sum over all units.
    steps = fedavg["gradients"]
    assert steps % 5 == 0
    size, d = 10 * steps // 5, 9610
    assert (pgfed_["gradients"], pgfed_["sums"], fedavg["sums"]) == (steps, 1, 0)
    kappa = 10 * math.sqrt(steps) / (fedavg["noise"] * math.sqrt(d))
    assert fedavg["kappa"] == pytest.approx(kappa, rel=1e-6)
    for row in rows.values():
        history = {(row["noise"], 10 / size): steps}
        history |= {(sigma, 1.0): 1 for sigma in row["of sums"].values()}
        # The epsilon that is told is the largest of any client; q is that of a full last batch.
        assert spent(history, 1e-5).epsilon == pytest.approx(float(row["epsilon"]), rel=0.02)
        assert 0.97 * 8 <= float(row["epsilon"]) <= 8


def test_it_says_how_many_records_a_site_needs(pgfed: Command) -> None:
    done = pgfed("privacy", "plan", *SMALL)
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "local: nothing of it is charged" in text
    needed = int(text.split("A site needs about ")[1].split()[0].replace(",", ""))
    assert 300 < needed < 3000


def test_without_privacy_there_is_nothing_to_plan(pgfed: Command) -> None:
    done = pgfed("privacy", "plan")
    assert done.code == 2
    assert "give privacy.epsilon" in done.line
