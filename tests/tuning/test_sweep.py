"""`pgfed sweep`: what is tried, how the best is chosen, and that it goes on where it stopped."""

from __future__ import annotations

import csv
import json
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_runs
from experiments.commands import contrary, pgfed
from pgfed.config.experiment import from_dict, load, make_methods
from pgfed.config.tables import Experiment
from pgfed.engine.client import ClientError
from pgfed.engine.parallel import side_by_side
from pgfed.errors import UserError
from pgfed.model.metrics import ACCURACY
from pgfed.tuning.choice import Tried
from pgfed.tuning.sweep import Sweep, at_the_end, best, grids, plan

RATES = [0.1, 0.01, 0.001, 0.0001]
SMALL = {
    "rounds": 2,
    "data": {"clients": 4, "min_samples": 20},
    "train": {"epochs": 1},
    "engine": {"backend": "serial"},
}


def experiment(**content: Any) -> Experiment:
    return from_dict({**SMALL, **content})


def sweep(of: Experiment, folder: Path, *options: str) -> Sweep:
    made = Sweep(of, grids(of, options), folder, Path())
    made.open()
    return made


# -- what is tried -----------------------------------------------------------------------------


def test_the_papers_grids() -> None:
    names = ["fedavg", "feddyn", "apfl", "per-fedavg", "fedbabu", "pgfed", "pgfed-mo", "pgfed-ce"]
    of = grids(experiment(methods=names))
    assert of["fedavg"] == {"lr": RATES}
    assert of["feddyn"] == {"lr": RATES, "a": [0.1, 0.01, 0.001]}
    assert of["apfl"] == {"lr": RATES, "alpha": [0.25, 0.5, 0.75]}
    assert of["per-fedavg"] == {"lr": RATES, "alpha": RATES}
    assert of["fedbabu"] == {"lr": RATES, "ft_lr": RATES}
    assert of["pgfed"] == {"lr": RATES, "mu": [0.1, 0.05, 0.01, 0.005, 0.001]}
    assert of["pgfed-mo"] == {**of["pgfed"], "beta": [0.2, 0.5, 0.8]}
    assert of["pgfed-ce"] == of["pgfed"]
    numbers = [sum(t.method == name for t in plan(experiment(methods=names), of)) for name in names]
    assert numbers == [4, 12, 12, 16, 16, 20, 60, 20]


def test_every_method_can_be_swept_over_the_papers_grid() -> None:
    from pgfed.methods import registry as algorithms

    of = experiment(methods=list(algorithms.METHODS))
    tries = plan(of, grids(of))
    assert {t.method for t in tries} == set(algorithms.METHODS)


def test_a_grid_of_ones_own_replaces_the_papers() -> None:
    table = {"train": {"lr": [0.3, 0.2]}, "method": {"pgfed": {"mu": [0.5, 0.4]}}}
    of = experiment(methods=["fedavg", "pgfed"], sweep=table)
    assert grids(of) == {
        "fedavg": {"lr": [0.3, 0.2]},
        "pgfed": {"lr": [0.3, 0.2], "mu": [0.5, 0.4]},
    }
    both = grids(of, ["method.pgfed.mu=0.7", "method.pgfed.alpha_order=pre, post"])
    assert both["pgfed"] == {"lr": [0.3, 0.2], "mu": [0.7], "alpha_order": ["pre", "post"]}
    assert both["fedavg"] == {"lr": [0.3, 0.2]}
    # The key of one method counts more than the one for all.
    one = grids(of, ["method.fedavg.lr=0.1"])
    assert (one["fedavg"]["lr"], one["pgfed"]["lr"]) == ([0.1], [0.3, 0.2])


def test_only_what_the_grid_names_is_tried() -> None:
    of = experiment(methods=["fedavg", "pgfed"])
    assert grids(of, ["method.pgfed.mu=0.1,0.2"]) == {"pgfed": {"mu": [0.1, 0.2]}}


def test_a_variant_follows_its_base() -> None:
    variant = {"pgfed-fixed": {"base": "pgfed", "alpha_lr": 0.0}}
    of = experiment(methods=["pgfed", "pgfed-fixed"], method=variant)
    assert list(grids(of)) == ["pgfed"]
    assert list(grids(of, ["train.lr=0.1,0.2"])) == ["pgfed"]
    named = grids(of, ["method.pgfed-fixed.mu=0.3,0.2"])
    assert named == {"pgfed-fixed": {"mu": [0.3, 0.2]}}
    tries = plan(of, named)
    methods = [make_methods(t.experiment)[0]["pgfed-fixed"] for t in tries]
    assert [(m.mu, m.alpha_lr) for m in methods] == [(0.3, 0.0), (0.2, 0.0)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["lr=0.1"], "sweep: unknown 'lr'"),
        (["method.fedavgg.lr=0.1"], "did you mean 'method.fedavg.KEY'"),
        (["data.alpha=1"], "sweep: unknown 'data.alpha'"),
        (["train.lr"], "--grid: found 'train.lr'"),
        (["train.lr="], "--grid: found 'train.lr='"),
        (["train.lr=0.1,0.1"], "sweep.train.lr: found 0.1 twice"),
        (["train.lr=0.1,-1"], "method.fedavg.lr: found -1"),
        (["train.lrr=0.1"], "method.fedavg.lrr: unknown key (did you mean 'lr'?)"),
    ],
)
def test_mistakes_are_one_line(options: list[str], said: str) -> None:
    of = experiment(methods=["fedavg"])
    with pytest.raises(UserError) as error:
        plan(of, grids(of, options))
    assert said in str(error.value)


def test_a_value_that_is_no_list() -> None:
    of = experiment(methods=["fedavg"], sweep={"train": {"lr": 0.1}})
    with pytest.raises(UserError, match=r"sweep\.train\.lr: found 0\.1; allowed: a list of values"):
        grids(of)


def test_the_key_of_a_try_is_what_its_result_depends_on(tmp_path: Path) -> None:
    def keys(**content: Any) -> set[str]:
        of = experiment(methods=["fedavg"], **content)
        return set(Sweep(of, {"fedavg": {"lr": [0.1]}}, tmp_path, Path()).tries)

    plain = keys()
    assert keys(name="other", seeds=[0, 5], engine={"backend": "process"}) == plain
    for other in ({"rounds": 3}, {"seeds": [1]}, {"train": {"epochs": 2}}, {"cohort": 0.5}):
        assert keys(**other) != plain
    assert keys(data={"clients": 5, "min_samples": 20}) != plain


# -- how the best is chosen --------------------------------------------------------------------


def test_validation_data_decides_and_test_data_does_not(tmp_path: Path) -> None:
    data = {"dataset": f"npz:{contrary(tmp_path / 'contrary.npz')}"}
    of = experiment(methods=["fedavg"], data=data, rounds=4, model={"name": "mlp"})
    made = sweep(of, tmp_path / "sweep", "train.lr=0.000001,0.1")
    assert len(list(made.run())) == 2
    tried, chosen = made.write()
    assert [t.settings["lr"] for t in tried] == [1e-6, 0.1]
    assert chosen["fedavg"].settings == {"lr": 0.1}
    assert tried[1].validation_score > 0.9 > tried[0].validation_score

    # On test data it would have been the other one.
    runs = [
        small_runs.run(
            data["dataset"], methods=["fedavg"], rounds=4, model="mlp", epochs=1, lr=lr,
            backend="serial",
        )
        for lr in (1e-6, 0.1)
    ]  # fmt: skip
    on_test = [run.summary[0]["mean_score"] for run in runs]
    assert on_test[0] > on_test[1] + 0.2


def test_the_score_is_the_mean_of_the_last_third_of_few_rounds(tmp_path: Path) -> None:
    of = experiment(methods=["fedavg"], rounds=14)
    made = sweep(of, tmp_path, "train.lr=0.01")
    (tried,) = made.run()
    run = small_runs.run(
        methods=["fedavg"], rounds=14, clients=4, min_samples=20, validation_share=0.1, epochs=1,
        lr=0.01, backend="serial",
    )  # fmt: skip
    history = run.runs[0].history.records
    last = [record["mean_validation_score"] for record in history[-4:]]
    assert tried.validation_score == pytest.approx(np.mean(last), abs=1e-12)
    assert tried.validation_score != pytest.approx(history[-1]["mean_validation_score"])


def test_a_validation_share_of_ones_own_stays(tmp_path: Path) -> None:
    data = {**SMALL["data"], "validation_share": 0.3}  # type: ignore[dict-item]
    made = sweep(experiment(methods=["fedavg"], data=data), tmp_path, "train.lr=0.01")
    shares = made.federation.n_validation / (made.federation.n_train + made.federation.n_validation)
    assert shares == pytest.approx(0.3, abs=0.02)


def test_clients_too_small_to_hold_anything_out(tmp_path: Path) -> None:
    y = np.arange(8) % 2
    x = np.eye(2, dtype=np.float32)[y]
    np.savez(tmp_path / "tiny.npz", x=x, y=y, client=np.arange(8) // 2)
    of = experiment(methods=["fedavg"], data={"dataset": f"npz:{tmp_path / 'tiny.npz'}"})
    with pytest.raises(UserError, match=r"data\.validation_share: no client has enough samples"):
        sweep(of, tmp_path / "sweep", "train.lr=0.1")


def test_the_first_of_equals_is_best_and_ends_of_grids_are_named() -> None:
    tried = [
        Tried("a", {"lr": 0.1, "kind": "x"}, 0.5, 1.0, "1"),
        Tried("a", {"lr": 0.01, "kind": "x"}, 0.7, 1.0, "2"),
        Tried("a", {"lr": 0.001, "kind": "x"}, 0.7, 1.0, "3"),
        Tried("b", {"lr": 0.1}, 0.2, 1.0, "4"),
    ]
    chosen = best(tried, ACCURACY)
    assert {method: one.key for method, one in chosen.items()} == {"a": "2", "b": "4"}
    of = {"a": {"lr": [0.1, 0.01, 0.001], "kind": ["x"]}, "b": {"lr": [0.1, 0.01]}}
    assert at_the_end(of, chosen) == ["b: lr = 0.1 is at the end of its grid"]


# -- going on ----------------------------------------------------------------------------------


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    of = experiment(methods=["fedavg"])
    made = sweep(of, tmp_path, "train.lr=0.1,0.01,0.001")
    running = made.run()
    first = next(running)
    running.close()  # as Ctrl+C would
    assert [t.key for t in made.finished().values()] == [first.key]

    again = sweep(of, tmp_path, "train.lr=0.1,0.01,0.001")
    assert [t.settings["lr"] for t in again.run()] == [0.01, 0.001]
    assert list(again.run()) == []
    # A wider grid tries only what is new, and a file that is not whole is tried again.
    (tmp_path / "tries" / f"{first.key}.json").write_text('{"validation_score": 0.')
    wider = sweep(of, tmp_path, "train.lr=0.1,0.01,0.001,1.0")
    assert [t.settings["lr"] for t in wider.run()] == [0.1, 1.0]
    tried, _ = wider.write()
    assert tried[0].validation_score == first.validation_score


def test_side_by_side_gives_the_same(tmp_path: Path) -> None:
    of = experiment(methods=["fedavg", "pgfed"], engine={"backend": "process", "workers": 2})
    scores = []
    for jobs, name in ((1, "one"), (2, "two"), (None, "default")):
        made = sweep(of, tmp_path / name, "train.lr=0.1,0.01")
        assert len(list(made.run(jobs))) == 4
        scores.append([t.validation_score for t in made.write()[0]])
    assert scores[0] == scores[1] == scores[2]
    assert len(set(scores[0])) > 1


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no sweep"):
        sweep(experiment(methods=["fedavg"]), tmp_path, "train.lr=0.1")


# -- what is written ---------------------------------------------------------------------------


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        """
        rounds = 2
        methods = ["fedavg", "pgfed", "pgfed-fixed"]
        seeds = [3, 4]
        [data]
        clients = 4
        [train]
        epochs = 1
        [engine]
        backend = "serial"
        [sweep]
        train.lr = [0.1, 0.01]
        method.pgfed.mu = [0.2]
        [method.pgfed-fixed]
        base = "pgfed"
        alpha_lr = 0.0
        """
    )
    pgfed("sweep", "mine.toml", "--dry-run")
    assert "4 tries of 2 rounds, with seed 3" in capsys.readouterr().out
    assert not Path("runs").exists()

    pgfed("sweep", "mine.toml")
    printed = capsys.readouterr()
    assert "4/4" in printed.err
    assert "Next: pgfed run runs/mine-sweep/best.toml" in printed.out
    said = next(line for line in printed.out.splitlines() if line.startswith("Chosen on"))
    assert "the best of 2 methods" in said
    assert "Not tried by themselves: pgfed-fixed" in printed.out
    assert f"# {said}" in Path("runs/mine-sweep/best.toml").read_text()
    with Path("runs/mine-sweep/sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["lr"], row["mu"]) for row in rows] == [
        *(("fedavg", "0.1", ""), ("fedavg", "0.01", "")),
        *(("pgfed", "0.1", "0.2"), ("pgfed", "0.01", "0.2")),
    ]
    assert sum(row["best"] == "yes" for row in rows) == 2
    assert "test" not in ",".join(rows[0])

    found = load(Path("runs/mine-sweep/best.toml"))
    chosen = {row["method"]: float(row["lr"]) for row in rows if row["best"]}
    methods, _ = make_methods(found)
    assert {name: methods[name].train.lr for name in chosen} == chosen
    fixed = methods["pgfed-fixed"]
    assert (fixed.train.lr, fixed.mu, fixed.alpha_lr) == (chosen["pgfed"], 0.2, 0.0)  # type: ignore[attr-defined]
    assert found.name == "mine-best"
    assert (found.seeds, found.data.validation_share, found.data.clients) == ([3, 4], 0.0, 4)
    assert "sweep" not in tomllib.loads(Path("runs/mine-sweep/best.toml").read_text())

    pgfed("sweep", "mine.toml")
    assert "4 of 4 tries are there already" in capsys.readouterr().err


def test_a_run_does_not_mind_a_sweep_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[sweep]\ntrain.lr = [0.1]\n")
    found = load(path)
    assert found.sweep == {"train": {"lr": [0.1]}}
    assert "sweep" not in found.document()


# -- processes ---------------------------------------------------------------------------------


def test_results_come_with_their_position() -> None:
    for jobs in (1, 3):
        found = dict(side_by_side(lambda k: {"square": k * k}, range(7), jobs))
        assert found == {k: {"square": k * k} for k in range(7)}


@pytest.mark.parametrize("kind", [UserError, ValueError])
def test_errors_come_through(kind: type[Exception]) -> None:
    def fail(k: int) -> int:
        if k == 2:
            raise kind("no such thing")
        return k

    with pytest.raises(UserError if kind is UserError else ClientError, match="no such thing"):
        list(side_by_side(fail, range(4), 2))


def test_a_process_that_dies_is_told_of() -> None:
    def die(k: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ClientError, match="died"):
        list(side_by_side(die, range(2), 2))


def test_nothing_is_left_running(tmp_path: Path) -> None:
    def work(k: int) -> int:
        if k:
            (tmp_path / f"{k}.part").write_text(str(os.getpid()))
            (tmp_path / f"{k}.part").rename(tmp_path / f"{k}.pid")
            signal.pause()
        return k

    running = side_by_side(work, range(3), 3)
    assert next(running) == (0, 0)
    running.close()
    for path in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_tries_are_plain_json(tmp_path: Path) -> None:
    made = sweep(experiment(methods=["fedavg"]), tmp_path, "train.lr=0.1")
    (tried,) = made.run()
    content = json.loads((tmp_path / "tries" / f"{tried.key}.json").read_text())
    assert content["settings"] == {"lr": 0.1}
    assert content["validation_score"] == tried.validation_score
