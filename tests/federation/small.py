"""A small federation of three sites with digits, and the same as one simulation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors.torch import load_file

from pgfed.config import experiment as experiments
from pgfed.data import datasets
from pgfed.data.dataset import Dataset
from pgfed.data.federation import Federation, build
from pgfed.engine.backends.base import Serial
from pgfed.engine.rounds import Run
from pgfed.engine.storage.durable import read_state
from pgfed.federation.folders import making
from pgfed.federation.folders.folder import FederationFolder, SiteFolder, load_experiment
from pgfed.methods.values import State
from pgfed.results.folder.history import read_history

SITES = 3
EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "rounds": 3,
    "cohort": 0.7,  # two of three: somebody always rests
    "methods": ["pgfed"],
    "train": {"epochs": 1, "batch_size": 20, "lr": 0.05},
}


@cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and each sample's client: 240 samples, unevenly divided; each site lacks classes."""
    data = datasets.load("digits", None)
    rng = np.random.default_rng(0)
    keep = np.sort(rng.permutation(len(data.y))[:240])
    x, y = data.x[keep], data.y[keep]
    client = np.select([y < 5, y < 8], [0, 1], default=2)
    moved = rng.random(len(y)) < 0.2
    return x, y, np.where(moved, (client + 1) % SITES, client)


def make(
    path: Path,
    server: str = "127.0.0.1:9",
    *,
    insecure: bool = False,
    approved: bool = True,
    **changes: Any,
) -> FederationFolder:
    """The federation's folder with all sites' folders in it, and each site's data beside."""
    path.mkdir(parents=True, exist_ok=True)
    experiment = path / "wanted.toml"
    experiment.write_text(tomli_w.dumps({**EXPERIMENT, **changes}))
    place = path / "federation"
    making.init(
        place,
        sites=SITES,
        experiment=experiment,
        server=server,
        classes=None,
        shape=None,
        insecure=insecure,
        with_keys=True,
    )
    x, y, client = digits()
    for i in range(SITES):
        np.savez(path / f"data-{i}.npz", x=x[client == i], y=y[client == i])
        site = site_path(place, i)
        text = (site / "site.toml").read_text()
        (site / "site.toml").write_text(
            text.replace('data = ""', f'data = "npz:../../../data-{i}.npz"').replace(
                "auto_approve = false", f"auto_approve = {str(approved).lower()}"
            )
        )
    return FederationFolder(place)


def site_path(place: Path, client: int) -> Path:
    return place / "sites" / FederationFolder(place).agreement.names[client]


def site_folder(folder: FederationFolder, client: int) -> SiteFolder:
    return SiteFolder(site_path(folder.path, client))


def simulated(folder: FederationFolder) -> tuple[experiments.Experiment, Federation]:
    """The same federation with all data in one place."""
    experiment, _ = load_experiment(folder.experiment_file)
    x, y, client = digits()
    data = Dataset.from_arrays("digits", x, y, client=client, class_names=folder.agreement.classes)
    return experiment, build(
        data,
        partition="given",
        test_share=experiment.data.test_share,
        validation_share=experiment.data.validation_share,
        seed=experiment.data.seed,
        stratify=experiment.data.stratify,
    )


def serial(folder: FederationFolder, method: str, seed: int = 0, **options: Any) -> Run:
    """The reference: all rounds in this process."""
    experiment, federation = simulated(folder)
    _, methods = load_experiment(folder.experiment_file)
    run = Run(
        methods[method],
        federation,
        Serial(federation, experiment.model.name or "mlp"),
        seed=seed,
        rounds=experiment.rounds,
        cohort=experiment.cohort_size(SITES),
        evaluate_every=experiment.evaluate_every,
        **options,
    )
    while not run.finished:
        run.step()
    return run


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Equal, bit for bit."""
    return set(left) == set(right) and all(
        torch.equal(v, right[k]) if isinstance(v, torch.Tensor) else v == right[k]
        for k, v in left.items()
    )


# -- what a run left behind --------------------------------------------------------------------


def checkpoint(folder: FederationFolder, method: str, seed: int = 0) -> State | None:
    """The server's state on record after the last round, if it is still there."""
    place = folder.run / method / f"seed-{seed}" / "checkpoint"
    if not place.is_dir():
        return None
    last = sorted(place.glob("round-*.json"))[-1]
    body = json.loads(last.read_text().splitlines()[0])
    cut = read_state(place / f"server-{body['round']:06d}.safetensors", body["server"])
    return {k.removeprefix("server."): v for k, v in cut.items() if k.startswith("server.")}


def history(folder: FederationFolder, method: str, seed: int = 0) -> list[dict[str, Any]]:
    path = folder.run / method / f"seed-{seed}" / "history.jsonl"
    return read_history(path, folder.agreement.names, format=2, strict=True)


def model_at(folder: FederationFolder, client: int, method: str, seed: int = 0) -> State:
    place = site_path(folder.path, client) / "models" / "small" / method / f"seed-{seed}"
    return load_file(place / "model.safetensors")


def assert_same_as_serial(
    folder: FederationFolder, method: str, seed: int = 0, **options: Any
) -> None:
    """Server, models, alphas, scores and bytes are those of the simulation."""
    run = serial(folder, method, seed, **options)
    assert same(checkpoint(folder, method, seed) or run.server, run.server)
    place = folder.run / method / f"seed-{seed}"
    wanted = run.task.named(run.global_model())
    assert same(load_file(place / "models" / "global.safetensors"), wanted)
    if (alpha := run.alpha()) is not None:
        with np.load(place / "alpha.npz") as kept:
            assert all(np.array_equal(kept[key], alpha[key]) for key in alpha)
    for client in range(SITES):
        wanted = run.task.named(run.personal_model(client))
        assert same(model_at(folder, client, method, seed), wanted), client
    told = history(folder, method, seed)
    assert [r["mean_score"] for r in told] == [r["mean_score"] for r in run.history]
    for key in ("cohort", "bytes_down", "bytes_up", "overhead_down", "overhead_up", "bytes_eval"):
        assert [r[key] for r in told] == [r[key] for r in run.history], key
