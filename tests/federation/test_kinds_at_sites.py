"""Named sites with every kind of task: a real federation has the bits of a simulation.

The simulation has all samples in one place, with the sites' names; what is drawn for a site follows
its name in both: its split, its batches, and in which rounds it takes part.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from safetensors.torch import load_file

from cli import task_worlds
from federation import small
from federation.local_grid import grid_of
from pgfed.federation.folders import making
from pgfed.federation.folders.folder import FederationFolder, SiteFolder
from pgfed.federation.server.conduct import Options, conduct
from pgfed.federation.site.answers import Site

NAMES = ["west", "north", "east"]  # seats and clients are in the order of the alphabet
OWN = "cli.task_worlds"
TASKS: dict[str, dict[str, Any]] = {
    "classes": {"kind": "classes"},
    "binary": {"kind": "binary", "positive": "sick"},
    "multilabel": {"kind": "multilabel"},
    "regression": {"kind": "regression", "target_means": [100.0], "target_scales": [40.0]},
    "segmentation": {"kind": "segmentation"},
    "own": {"kind": f"{OWN}:Quantile"},
}
METHODS = ["fedavg-framed", "pgfed"]
SCHEMA = {
    "target": "y",
    "classes": ["healthy", "sick"],
    "positive": "sick",
    "numeric": {f"f{i}": {} for i in range(task_worlds.FEATURES)},
}


def samples(kind: str) -> dict[str, dict[str, np.ndarray]]:
    """By site: its inputs and targets."""
    world = task_worlds.arrays("regression" if kind == "own" else kind)
    whose = {name: world["client"] == i for i, name in enumerate(NAMES)}
    return {name: {k: world[k][at] for k in ("x", "y")} for name, at in whose.items()}


def experiment(kind: str, **changes: Any) -> dict[str, Any]:
    wanted = {
        "format": 2,
        "name": "small",
        "rounds": 3,
        "cohort": 0.7,  # two of three: somebody always rests
        "methods": METHODS,
        "task": TASKS[kind],
        "train": {"epochs": 1, "batch_size": 5, "lr": 0.05},
        **changes,
    }
    if kind == "segmentation":
        wanted["model"] = {"name": f"{OWN}:pixels"}
    return wanted


def federated(
    folder: Path, wanted: dict[str, Any], files: dict[str, str], later: list[str] | None = None
) -> FederationFolder:
    """A federation over these sites' files that has run; ``later``: methods that all took then."""
    (folder / "wanted.toml").write_text(tomli_w.dumps(wanted))
    place = folder / "federation"
    making.init(
        place,
        sites=NAMES,
        experiment=folder / "wanted.toml",
        server="127.0.0.1:9",
        classes=None,
        shape=None,
        insecure=False,
        with_keys=True,
    )
    if later is not None:
        for file in (place / "experiment.toml", *place.glob("sites/*/experiment.toml")):
            content = tomllib.loads(file.read_text())
            file.write_text(tomli_w.dumps({**content, "methods": later, "method": {}}))
    sites = []
    for name in sorted(NAMES):
        own = place / "sites" / name
        text = (own / "site.toml").read_text()
        text = text.replace("allow_modules = []", f'allow_modules = ["{OWN}"]')
        (own / "site.toml").write_text(text.replace("auto_approve = false", "auto_approve = true"))
        sites.append(Site(SiteFolder(own), files[name]))
    federation = FederationFolder(place)
    conduct(grid_of(sites), federation, Options(round_timeout=1.0))
    return federation


def assert_same(federation: FederationFolder, simulation: Path) -> None:
    """Models, scores, cohorts: all that was drawn and computed."""
    for method in ("local", *METHODS):
        here, there = (run / method / "seed-0" for run in (federation.run, simulation))
        ours, wanted = (pd.read_csv(at / "clients.csv", index_col="client") for at in (here, there))
        assert list(ours.index) == sorted(NAMES)
        columns = ["n_train", "n_test", "best", "final"]
        pd.testing.assert_frame_equal(ours[columns], wanted[columns], check_exact=True)
        # Each site told its own; where the metric was drawn again, with the same draws.
        told = ["gain", "gain_low", "gain_high", "gain_p", "samples_better", "samples_worse"]
        assert method == "local" or wanted["gain_p"].notna().any()
        known = [*told, "clearly"] if method != "local" else ["gain"]
        pd.testing.assert_frame_equal(ours[known], wanted[known], atol=1e-6)
        if method == "local":  # its models stay at the sites, beside the others' rounds
            continue
        for name in sorted(NAMES):
            own = federation.path / "sites" / name / "models" / "small" / method / "seed-0"
            model = load_file(own / "model.safetensors")
            assert small.same(model, load_file(there / "models" / f"{name}.safetensors")), name
        shared = [load_file(at / "models" / "global.safetensors") for at in (here, there)]
        assert small.same(*shared), method


@pytest.mark.parametrize("kind", TASKS)
def test_sites_have_the_bits_of_a_simulation(tmp_path: Path, kind: str):
    data = samples(kind)
    for name, own in data.items():
        np.savez(tmp_path / f"{name}.npz", **own)
    whole = {k: np.concatenate([own[k] for own in data.values()]) for k in ("x", "y")}
    client = np.repeat(NAMES, [len(own["y"]) for own in data.values()])
    np.savez(tmp_path / "all.npz", **whole, client=client)
    wanted = experiment(kind, data={"dataset": f"npz:{tmp_path / 'all.npz'}"})
    federation = federated(tmp_path, wanted, {n: f"npz:{tmp_path / n}.npz" for n in NAMES})
    assert_same(federation, simulated(tmp_path, wanted))
    for name in NAMES:  # above zero is good, whatever the metric
        told = pd.read_csv(federation.path / "sites" / name / "report.csv")
        assert list(told["client"]) == [name] * len(METHODS)
        gain = (told["final"] - told["local"]) * (-1 if kind == "own" else 1)
        assert list(told["gain"]) == pytest.approx(list(gain), abs=1e-8, nan_ok=True)


def test_a_method_that_is_chosen_after_init_fits_the_task_as_well(tmp_path: Path):
    """Where there are no classes, fedavg-framed is its blend alone, at the server and at sites."""
    data = samples("regression")
    for name, own in data.items():
        np.savez(tmp_path / f"{name}.npz", **own)
    (first, *_), files = NAMES, {n: f"npz:{tmp_path / n}.npz" for n in NAMES}
    wanted = experiment("regression", methods=["fedavg"], data={"dataset": files[first]})
    later = ["local", "fedavg-framed"]
    federation = federated(tmp_path, wanted, files, later)
    own = federation.path / "sites" / first / "models" / "small" / "fedavg-framed" / "seed-0"
    manifest = json.loads((own / "manifest.json").read_text())
    personal = manifest["hyperparameters"]["personal"]
    assert (personal["frame"], personal["blend"]) == ("none", 0.3)


def test_sites_with_tables_have_the_bits_of_a_simulation(tmp_path: Path):
    (tmp_path / "schema.toml").write_text(tomli_w.dumps(SCHEMA))
    (tmp_path / "sites").mkdir()
    for name, own in samples("binary").items():
        columns = {f"f{i}": own["x"][:, i] for i in range(task_worlds.FEATURES)}
        frame = pd.DataFrame({**columns, "y": own["y"]})
        frame.iloc[3, 0] = np.nan  # each site fills and scales by its own training rows
        frame.to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    table = {"dataset": f"csv:{tmp_path / 'sites'}", "schema": str(tmp_path / "schema.toml")}
    wanted = experiment("binary", data=table, task={"kind": "binary"})
    files = {name: f"csv:{tmp_path / 'sites' / name}.csv" for name in NAMES}
    assert_same(federated(tmp_path, wanted, files), simulated(tmp_path, wanted))


def simulated(folder: Path, wanted: dict[str, Any]) -> Path:
    """The same with all data in one place, as `pgfed run` does it."""
    from typer.testing import CliRunner

    from pgfed.cli.app import app

    alone = {**wanted, "methods": ["local", *METHODS], "engine": {"backend": "serial"}}
    (folder / "simulation.toml").write_text(tomli_w.dumps(alone))
    done = CliRunner().invoke(
        app, ["run", str(folder / "simulation.toml"), "--out", str(folder / "run")]
    )
    assert done.exit_code == 0, done.output
    return folder / "run"
