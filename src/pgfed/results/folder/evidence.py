"""evidence.npz: what the kept models gave for each test sample, and what that comes to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pgfed.data.files import npz
from pgfed.errors import UserError
from pgfed.results.runs import Evidence
from pgfed.results.statistics import Floats

EVIDENCE = ("offsets", "outcome")
EVIDENCE_PARTS = ("outputs", "target", "group", "metric_names", "metric_values")


def read_evidence(path: Path, clients: int, *, outputs: bool = False) -> Evidence | None:
    """What the kept models gave for each test sample; None where nobody wrote it down.

    ``outputs``: also read the models' outputs, which are as many numbers for each class.
    """
    if not path.is_file():
        return None
    skip = ("metric_names", "metric_values", *(() if outputs else ("outputs", "target")))
    arrays = npz.read(path, EVIDENCE, EVIDENCE_PARTS, skip=skip)
    offsets, outcome, out = arrays["offsets"], arrays["outcome"], arrays.get("outputs")
    target, group = arrays.get("target"), arrays.get("group")
    sound = offsets.dtype == np.int64 and outcome.dtype == np.float32
    sound = sound and (offsets.shape, outcome.ndim) == ((clients + 1,), 1)
    sound = sound and offsets[0] == 0 and bool((np.diff(offsets) >= 0).all())
    sound = sound and len(outcome) == offsets[-1]
    if out is not None:
        sound = sound and out.dtype == np.float32
        sound = sound and (out.ndim, len(out)) == (2, len(outcome))
    if target is not None:
        sound = sound and target.dtype.kind in "if" and target.shape[:1] == outcome.shape
    if group is not None:
        sound = sound and group.dtype == np.int64 and group.shape == outcome.shape
    if not sound:
        raise UserError(f"{path}: not the evidence of {clients} clients; the file is damaged")
    return Evidence(offsets, outcome, out, target, group, None if outputs else path)


def whole(evidence: Evidence) -> Evidence:
    """With the models' outputs, where they are kept and were not read."""
    if evidence.file is None:
        return evidence
    read = read_evidence(evidence.file, len(evidence.offsets) - 1, outputs=True)
    return evidence if read is None else replace(read, file=None)


def read_metrics(path: Path, clients: int) -> dict[str, Floats]:
    """The metrics of the kept models, of a run that has not come to its end."""
    arrays = npz.read(
        path, EVIDENCE, EVIDENCE_PARTS, skip=(*EVIDENCE, "outputs", "target", "group")
    )
    names, values = arrays.get("metric_names"), arrays.get("metric_values")
    if names is None or values is None:
        return {}
    sound = names.dtype.kind == "U" and values.dtype == np.float64
    if not sound or (names.ndim, values.shape) != (1, (len(names), clients)):
        raise UserError(f"{path}: not the metrics of {clients} clients; the file is damaged")
    return {str(name): row for name, row in zip(names, values, strict=True)}
