"""The experiment files: one per table and figure, with the paper's methods and settings."""

from __future__ import annotations

import dataclasses
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.commands import EXPERIMENTS, pgfed
from pgfed import api
from pgfed.cli.app import main
from pgfed.cli.paper import explicit, new_clients
from pgfed.config.experiment import load, make_methods
from pgfed.config.tables import Experiment
from pgfed.engine.setup import prepare
from pgfed.paper.printed import DATASETS, METHODS
from pgfed.report import rendering as report
from pgfed.results.progress import Progress

NAMES = sorted(path.stem for path in EXPERIMENTS.glob("e[0-9]*.toml"))  # the paper's
STUDIES = {"e5-new-clients": new_clients, "e6-explicit": explicit}
PAPER: dict[str, Any] = json.loads(
    files("pgfed.paper").joinpath("paper_tables.json").read_text(encoding="utf-8")
)
# The paper's table of each experiment that has one.
TABLES = {
    "e1-main-table": "main_results",
    "e2-rounds-to-70": "rounds_to_70",
    "e3-individual-gain": "individual_gain_over_local",
    "e8-organamnist-25": "organamnist",
    "e8-organamnist-50": "organamnist",
    "e8-organamnist-100": "organamnist",
    "e9-office-home": "officehome",
    "e10-speed": "local_computation_speed",
}

# What of the report has the form of the paper's table or figure; of the others, the first table.
FORMS = {
    "e2": "rounds-table",
    "e3": "gains-table",
    "e4": "matrix",
    "e5": "new-clients",
    "e6": "explicit",
    "e7": "curves",
    "e9": "domains-table",
    "e11": "paper-table",
}


def experiment(name: str, *settings: str, smoke: bool = False) -> Experiment:
    return load(EXPERIMENTS / f"{name}.toml", settings, smoke=smoke)


def test_there_is_a_file_for_every_table_and_figure() -> None:
    numbers = {int(name.partition("-")[0].removeprefix("e")) for name in NAMES}
    assert numbers == set(range(1, 12))


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_valid_and_names_itself(name: str) -> None:
    found = experiment(name)
    make_methods(found)
    assert found.name == name
    text = (EXPERIMENTS / f"{name}.toml").read_text()
    command = f"study {name.partition('-')[2]}" if name in STUDIES else "run"
    assert f"pgfed {command} experiments/{name}.toml" in text


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("beyond/*.toml")), ids=lambda p: p.stem)
def test_the_files_beyond_the_paper_are_valid_and_name_themselves(path: Path) -> None:
    found = load(path)
    make_methods(found)
    assert found.name == f"beyond-{path.stem}"
    assert f"experiments/beyond/{path.name}" in path.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_what_all_have_in_common_is_as_in_the_paper(name: str) -> None:
    found, setup = experiment(name), PAPER["setup"]
    assert found.train.epochs == setup["local_epochs"]
    assert found.train.momentum == setup["sgd_momentum"]
    assert found.train.batch_size == (128 if name == "e10-speed" else 10)
    if name not in STUDIES:
        assert len(found.seeds) == setup["seeds"]
    if name != "e8-organamnist-25":
        assert found.cohort == setup["client_sample_rate"]
        assert found.data.alpha == setup["dirichlet_alpha"]
    rounds = {
        "e2-rounds-to-70": 80,
        "e5-new-clients": PAPER["new_clients"]["rounds"],
        "e7-convergence": setup["convergence_figure_rounds"],
    }
    assert found.rounds == rounds.get(name, setup["rounds"])


@pytest.mark.parametrize("name", TABLES)
def test_methods_and_setting_are_those_of_the_papers_table(name: str) -> None:
    found = experiment(name)
    rows = [
        row
        for row in PAPER[TABLES[name]]
        if (row["dataset"], row["clients"]) == (DATASETS[found.data.dataset], found.data.clients)
    ]
    printed = {row["method"] for row in rows}
    assert printed
    assert printed <= {METHODS.get(method) for method in found.methods}
    for row in rows:
        assert row.get("sample_rate", found.cohort) == found.cohort
        assert row.get("dirichlet", found.data.alpha) == found.data.alpha


def test_the_slowest_of_the_papers_rounds_is_within_reach() -> None:
    assert experiment("e2-rounds-to-70").rounds > max(r["rounds"] for r in PAPER["rounds_to_70"])


def test_new_clients_and_explicit_are_set_as_in_the_paper() -> None:
    new = experiment("e5-new-clients")
    printed = PAPER["new_clients"]
    assert new.data.clients == printed["train_clients"] + printed["new_clients"]
    assert new.data.first_new(100) == printed["train_clients"]
    assert new.cohort_size(80) == 20
    assert {METHODS[method] for method in new.methods} == set(printed["CIFAR10"])
    start = experiment("e6-explicit")
    assert start.data.clients == PAPER["explicit_vs_implicit"]["clients"]
    assert start.data.validation_share > 0


@pytest.mark.parametrize("name", NAMES)
def test_pgfed_never_stands_without_its_control(name: str) -> None:
    found = experiment(name)
    if "pgfed" in found.methods and name not in STUDIES:  # E5 compares global models: FedAvg's
        assert "fedavg-local" in found.methods


def test_each_control_changes_one_thing() -> None:
    methods, _ = make_methods(experiment("e4-matrix-a", "method.pgfed.mu=0.07"))
    plain = dataclasses.asdict(methods["pgfed"])

    def changed(name: str) -> dict[str, Any]:
        control = dataclasses.asdict(methods[name])
        assert type(methods[name]) is type(methods["pgfed"])
        was, now = ({**fields, **fields["train"], "train": None} for fields in (plain, control))
        return {key: value for key, value in now.items() if value != was[key]}

    assert changed("pgfed-fixed-alpha") == {"alpha_lr": 0.0}
    assert changed("pgfed-exact-alpha") == {"alpha_gradient": "exact"}
    assert changed("pgfed-unclamped") == {"alpha_clamp": False}
    assert changed("pgfed-reset-momentum") == {"reset_momentum": True}
    assert plain["mu"] == 0.07


# -- small runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_smoke_keeps_everything_but_the_size(name: str) -> None:
    full, small = experiment(name), experiment(name, smoke=True)
    assert small.name == f"{name}-smoke"
    assert small.data.dataset in ("digits", "digits-styles")
    assert 4 <= small.rounds <= 10
    assert (small.methods, small.method, small.train, small.cohort) == (
        *(full.methods, full.method, full.train, full.cohort),
    )
    for key in ("partition", "alpha", "validation_share", "new_clients"):
        assert getattr(small.data, key) == getattr(full.data, key)
    assert experiment(name, "rounds=2", smoke=True).rounds == 2


def check_run(out: Path, found: Experiment) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert [(row["method"], row["seed"]) for row in summary] == [
        (method, seed) for method in found.methods for seed in found.seeds
    ]
    for row in summary:
        folder = out / row["method"] / f"seed-{row['seed']}"
        assert len((folder / "history.jsonl").read_text().splitlines()) == found.rounds
        assert (folder / "clients.csv").is_file()
        assert 0 < row["best_score"] <= 1
        assert (folder / "alpha.npz").is_file() == row["method"].startswith("pgfed")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in STUDIES])
def test_a_very_small_run_of_each(name: str, tmp_path: Path) -> None:
    less = (
        "rounds=2",
        "seeds=[0]",
        "train.epochs=1",
        "engine.backend=serial",
        "output.models=none",
    )
    found = experiment(name, *less, smoke=True)
    out = tmp_path / "run"
    api.run_setup(prepare(found, tmp_path), out, Progress(1, 1))
    check_run(out, found)


def test_the_switch_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    less = ["--set", "rounds=1", "--set", "engine.backend=serial", "--set", 'methods=["fedavg"]']
    with pytest.raises(SystemExit) as ended:
        main(["run", str(EXPERIMENTS / "e10-speed.toml"), "--smoke", "--quiet", *less])
    assert not ended.value.code
    found = load(tmp_path / "runs/e10-speed-smoke/experiment.toml")
    assert (found.data.dataset, found.rounds, found.train.batch_size) == ("digits", 1, 128)


def test_office_home_small_has_domains(tmp_path: Path) -> None:
    found = experiment("e9-office-home", smoke=True)
    federation = prepare(found, tmp_path).federation
    assert federation.domains is not None
    assert sorted(federation.domains) == sorted(2 * ["inverted", "mirrored", "turned", "upright"])


def test_the_matrix_of_each_control_is_what_it_says(tmp_path: Path) -> None:
    less = ("rounds=4", "seeds=[0]", "train.epochs=2", "method.pgfed.alpha_lr=0.5")
    found = experiment("e4-matrix-a", *less, "engine.backend=serial", smoke=True)
    out = tmp_path / "run"
    api.run_setup(prepare(found, tmp_path), out, Progress(1, 1))

    def alpha(method: str) -> np.ndarray:
        with np.load(out / method / "seed-0" / "alpha.npz") as arrays:
            return arrays["alpha"]

    assert np.all(alpha("pgfed-fixed-alpha") == alpha("pgfed-fixed-alpha")[0, 0])
    assert alpha("pgfed").min() == 0
    assert alpha("pgfed-unclamped").min() < 0
    assert not np.array_equal(alpha("pgfed"), alpha("pgfed-exact-alpha"))
    assert not np.array_equal(alpha("pgfed"), alpha("pgfed-reset-momentum"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_smoke_of_each_and_its_report(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = experiment(name, smoke=True)
    if name in STUDIES:
        command = name.partition("-")[2]
        pgfed("study", command, EXPERIMENTS / f"{name}.toml", "--smoke", "--out", out)
        assert (out / f"{command.replace('-', '_')}.json").is_file()
    else:
        api.run_setup(prepare(found, tmp_path), out, Progress(1, 1))
    check_run(out, found)
    page = report.render(report.read([out]), report.Format.html)
    assert all(method in page for method in found.methods)
    assert f'id="{FORMS.get(name.partition("-")[0], "results")}"' in page
