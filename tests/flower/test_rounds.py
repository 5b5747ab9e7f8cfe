"""The rounds of a federation, site by site in this process: the same bits as one simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flower import small
from flower.local_grid import LocalGrid, grid_of
from pgfed import algorithms
from pgfed.files import read_state
from pgfed.flower.server import Options, conduct
from pgfed.flower.site import Site

QUICK = Options(round_timeout=1.0)


def sites_of(folder):
    return [Site(small.site_folder(folder, i)) for i in range(small.SITES)]


def checkpoint(folder, method, seed=0):
    """The server's state on record after the last round."""
    place = folder.run / method / f"seed-{seed}" / "checkpoint"
    last = sorted(place.glob("round-*.json"))[-1]
    body = json.loads(last.read_text().splitlines()[0])
    cut = read_state(place / f"server-{body['round']:06d}.safetensors", body["server"])
    return {k.removeprefix("server."): v for k, v in cut.items() if k.startswith("server.")}


def history(folder, method, seed=0):
    path = folder.run / method / f"seed-{seed}" / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def model_at(folder, client, method, seed=0):
    place = small.site_path(folder.path, client) / "models" / method / f"seed-{seed}"
    return load_file(place / "model.safetensors")


def assert_same_as_serial(folder, method, seed=0, lose=None):
    run = small.serial(folder, method, seed, lose)
    assert small.same(checkpoint(folder, method, seed), run.server)
    for client in range(small.SITES):
        wanted = run.task.named(run.personal_model(client))
        assert small.same(model_at(folder, client, method, seed), wanted), client
    told = history(folder, method, seed)
    assert [r["mean_accuracy"] for r in told] == [r["mean_accuracy"] for r in run.history]
    for key in ("cohort", "bytes_down", "bytes_up", "overhead_down", "overhead_up", "bytes_eval"):
        assert [r[key] for r in told] == [r[key] for r in run.history], key
    return run


@pytest.mark.parametrize("method", [name for name in algorithms.METHODS if name != "local"])
def test_same_bits_as_serial(tmp_path: Path, method):
    folder = small.make(tmp_path, methods=[method])
    conduct(grid_of(sites_of(folder)), folder, QUICK)
    run = assert_same_as_serial(folder, method)
    theta = run.task.named(run.global_model())
    kept = load_file(folder.run / method / "seed-0" / "models" / "global.safetensors")
    assert small.same(kept, theta)
