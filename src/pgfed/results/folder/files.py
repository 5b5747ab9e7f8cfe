"""The files of a run folder that are written once. A file that is there is whole."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.data.federation import Federation
from pgfed.engine.storage.durable import write_atomic
from pgfed.model.metrics import Metric
from pgfed.results.folder import layout
from pgfed.results.folder.layout import csv_text, seed_folder
from pgfed.results.gains.clients import Gain
from pgfed.results.runs import Evidence, RunData, SeedRun
from pgfed.results.statistics import Floats
from pgfed.results.summary import client_rows, each_run, gain_of_run, gains, summary


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomic(path, content.getvalue())


def write_beginning(data: RunData, holdings: str) -> None:
    """What is known before the first round; ``holdings``: the content of data.json."""
    write_atomic(data.path / layout.EXPERIMENT, data.text)
    write_atomic(data.path / layout.DATA, holdings)
    said = {name: dataclasses.asdict(info) for name, info in data.methods.items()}
    write_json(data.path / layout.METHODS, said)
    write_json(data.path / layout.METRIC, _metric(data.metric))
    # Last: a folder that has it has begun.
    write_json(data.path / layout.ENVIRONMENT, data.environment)


def write_end(data: RunData, run: SeedRun) -> None:
    """What a method left under a seed; its history and models are there already."""
    folder = seed_folder(data.path, run.method, run.seed)
    if run.matrix is not None:
        _write_arrays(folder / layout.ALPHA, run.matrix)
    if run.exported is not None:
        _write_arrays(folder / layout.EXPORTED, run.exported)
    if run.evidence is not None:
        write_evidence(folder / layout.EVIDENCE, run.evidence, run.metrics)
    # This run is finished from here on. How sure its gains are is added after all runs.
    write_clients(data, run, gain_of_run(data, run, surely=False))


def write_clients(data: RunData, run: SeedRun, gain: Gain | None) -> None:
    """clients.csv, if it does not hold the same already."""
    path = seed_folder(data.path, run.method, run.seed) / layout.CLIENTS
    text = csv_text(client_rows(run, gain, data.clients))
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)


def _metric(metric: Metric) -> dict[str, Any]:
    """Its bounds as text: JSON has no infinity."""
    bounds = {"low": str(metric.low), "high": str(metric.high)}
    return {**dataclasses.asdict(metric), **bounds}


def write_summary(data: RunData) -> None:
    """After the last of all runs, which may have changed what gains are over."""
    found = gains(data)
    for run in each_run(data):
        write_clients(data, run, found[run.method, run.seed])
    sums = [summary(data, run, found[run.method, run.seed]) for run in each_run(data)]
    write_json(data.path / layout.SUMMARY, sums)


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_evidence(path: Path, evidence: Evidence, metrics: Mapping[str, Floats]) -> None:
    """Per sample what the models gave, and per client what that comes to."""
    parts = ("offsets", "outcome", "outputs", "target", "group")
    arrays = {k: v for k in parts if (v := getattr(evidence, k)) is not None}
    if metrics:
        arrays["metric_names"] = np.array(list(metrics), dtype=np.str_)
        arrays["metric_values"] = np.array(list(metrics.values()))
    _write_arrays(path, arrays)


def data_text(federation: Federation) -> str:
    """Who holds what: the content of data.json, a line per client."""
    names = json.dumps(list(federation.class_names))
    clients = ",\n".join(json.dumps(row, allow_nan=False) for row in federation.table())
    return f'{{"class_names": {names}, "clients": [\n{clients}\n]}}\n'
