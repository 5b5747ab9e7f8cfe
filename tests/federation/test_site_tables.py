"""Sites that hold tables agree on a schema, not on data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

from pgfed.data.dataset import Options
from pgfed.data.federation import build
from pgfed.data.own import load
from pgfed.data.tables.schema import from_plain
from pgfed.errors import UserError
from pgfed.federation.folders import making
from pgfed.federation.folders.folder import FederationFolder, SiteFolder, digest, load_experiment
from pgfed.federation.site.answers import Site

SCHEMA = {
    "target": "ill",
    "classes": ["no", "yes"],
    "numeric": {"age": {}, "dose": {"mean": 1.0, "scale": 2.0}},
    "categorical": {"ward": ["a", "b", "c"]},
}
EXPERIMENT = {
    "format": 2,
    "rounds": 2,
    "cohort": 1.0,
    "methods": ["fedavg"],
    "data": {"dataset": "csv:site.csv", "schema": "schema.toml"},
}


def table(site: int) -> pd.DataFrame:
    rng = np.random.default_rng(site)
    n = 30 + site
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50 + site, 9, n).round(1)),
            "dose": rng.normal(1, 2, n).round(2),
            "ward": rng.choice(list("abc")[: site + 1], n),
            "ill": np.array(["no", "yes"])[np.arange(n) % 2],
        }
    )


def made(folder: Path, schema: dict[str, object]) -> FederationFolder:
    (folder / "schema.toml").write_text(tomli_w.dumps(schema))
    (folder / "exp.toml").write_text(tomli_w.dumps(EXPERIMENT))
    making.init(
        folder / "federation",
        sites=3,
        experiment=folder / "exp.toml",
        server="127.0.0.1:9",
        classes=None,
        shape=None,
        insecure=False,
        with_keys=True,
    )
    return FederationFolder(folder / "federation")


def test_a_site_reads_its_table_as_in_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    federation = made(tmp_path, SCHEMA)
    assert federation.agreement.classes == ["no", "yes"]
    assert (federation.agreement.input_shape, federation.agreement.input) == ([5], "float32")
    for i in range(3):
        table(i).to_csv(tmp_path / f"{i}.csv", index=False)
    whole = pd.concat([table(i).assign(site=f"site-{i:02}") for i in range(3)])
    whole.to_csv(tmp_path / "whole.csv", index=False)
    schema = from_plain({**SCHEMA, "client": "site"}, "schema")
    simulated = build(
        load("csv:whole.csv", None, Options(schema=schema)),
        partition="given",
        by_name=True,
        stratify="auto",
    )
    agreed, _ = load_experiment(federation.experiment_file)
    for i in range(3):
        folder = SiteFolder(federation.path / "sites" / f"site-{i:02}")
        site = Site(folder, f"csv:{i}.csv")
        for part in ("train", "test"):
            here, there = getattr(site.federation, part)(i), getattr(simulated, part)(i)
            assert torch.equal(here.x, there.x)
            assert torch.equal(here.y, there.y)
        assert digest(site.file, site.experiment) == digest(federation.agreement, agreed)
        fitted = site.federation.fitted[i].plain()["numeric"]
        assert fitted["dose"] == {"mean": 1.0, "scale": 2.0, "fill": 1.0}
        assert json.loads(json.dumps(fitted)) == simulated.fitted[i].plain()["numeric"]


def test_a_site_with_another_schema_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    federation = made(tmp_path, SCHEMA)
    table(0).to_csv(tmp_path / "0.csv", index=False)
    folder = SiteFolder(federation.path / "sites" / "site-00")
    (folder.path / "schema.toml").write_text(tomli_w.dumps({**SCHEMA, "missing": ["-"]}))
    with pytest.raises(UserError, match="is not the file that was agreed on"):
        Site(folder, "csv:0.csv")


def test_categories_must_be_agreed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="categorical 'ward' lists no categories"):
        made(tmp_path, {**SCHEMA, "categorical": {"ward": []}})
    with pytest.raises(UserError, match=r"data\.schema: lists no classes"):
        made(tmp_path, {**SCHEMA, "classes": []})
