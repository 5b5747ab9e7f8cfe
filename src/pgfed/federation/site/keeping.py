"""A site's personalized model, with what it is worth: written once, and never written over."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pgfed.config.tables import Experiment
from pgfed.data.federation import Federation
from pgfed.engine.client import ClientSide
from pgfed.engine.storage.durable import write_atomic
from pgfed.federation.site.house import Refused
from pgfed.methods.values import State
from pgfed.model.kinds import Binary, Regression
from pgfed.report import rendering as reports
from pgfed.results.caveats import SHORT
from pgfed.results.folder.files import write_evidence
from pgfed.results.folder.layout import EVIDENCE, csv_text, seed_folder
from pgfed.results.gains.clients import Gain, gain_between
from pgfed.results.gains.resampling import Measure
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.writing import manifest, write_frozen, write_model
from pgfed.results.runs import TOLD, Evidence, client_names
from pgfed.results.summary import gain_rows
from pgfed.results.verdict import own_gain

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Alone:
    """What the model that a site trained alone came to, in a folder of a run's, under one seed."""

    folder: Path
    seed: int

    def write(self, scores: State) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, json.dumps(scores))

    @property
    def score(self) -> float | None:
        """None where it was not trained, or is undefined."""
        if not self._path.is_file():
            return None
        found: float | None = json.loads(self._path.read_text()).get("test_score")
        return found

    @property
    def _path(self) -> Path:
        return self.folder / f"alone-{self.seed}.json"


@dataclass(frozen=True)
class Model:
    """A client's personalized model after a run's last round."""

    experiment: Experiment
    federation: Federation
    client: int
    side: ClientSide
    theta: Tensor
    privacy: dict[str, Any] | None = None  # what it was trained under, and whether that covers it

    def write(
        self,
        place: Path,
        report: Path,
        about: dict[str, Any],
        evidence: State,
        numbers: State,
        alone: tuple[float | None, State | None],
    ) -> dict[str, float]:
        """Into the run's folder, whole or not at all; a line of it into the report.

        ``about``: run, method, seed and round. ``alone``: what training alone came to, and what it
        gave for each sample. Returned is what the site says of its gain, which may leave it.
        """
        folder = seed_folder(place, about["method"], about["seed"])
        row = self._row(numbers, alone[0])
        own = self._evidence(evidence)
        gain = self._gain(own, row, alone)
        if gain is not None:
            row |= gain_rows(gain, 1)[0]
        said = {k: float(row[k]) for k in TOLD if gain is not None and row[k] is not None}
        new = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
        new.mkdir(parents=True)
        file = write_model(new / "model.safetensors", self.side.task.named(self.theta))
        if (folder / manifests.NAME).is_file():
            shutil.rmtree(new)
            if manifests.read(folder).clients[0].sha256 != file["sha256"]:
                raise Refused(f"{folder} holds another model of this run; it is not written over")
            return said
        write_evidence(new / EVIDENCE, own, {})
        manifests.write(new, self._manifest(new, about, row, file))
        new.rename(folder)
        rows = _report(report, about | row)
        if reports.possible():  # else the table alone says it
            of_run = [r for r in rows if str(r["run"]) == str(about["run"])]
            metric = self.side.task.objective.primary
            reports.write_site_page(report.with_suffix(".html"), of_run, metric)
        log.info(
            "%s, seed %d: the personalized model is in %s", about["method"], about["seed"], folder
        )
        if gain is not None:
            gain = replace(gain, judged=about["round"] >= SHORT)
            about_gain = own_gain(gain, self.side.task.objective.primary)
            log.info("%s, seed %d: %s", about["method"], about["seed"], about_gain)
        return said

    def _gain(
        self, own: Evidence, row: dict[str, Any], alone: tuple[float | None, State | None]
    ) -> Gain | None:
        """Over the model that this site trained alone, on the same test samples."""
        score, samples = alone
        if row["final"] is None or score is None or samples is None:
            return None
        scores = np.array([[row["final"]]]), np.array([[score]])
        objective = self.side.task.objective
        measure = Measure(objective.primary, self.experiment.task.kind)
        if isinstance(objective, Binary):
            measure = replace(measure, positive=objective.positive)
        if isinstance(objective, Regression):
            means, scales = objective.means.tolist(), objective.scales.tolist()
            measure = replace(measure, means=means, scales=scales)
        pair = own, self._evidence(samples)
        return gain_between([pair], scores, np.diff(own.offsets), measure)

    def _evidence(self, found: State) -> Evidence:
        """What a model gave for the site's own test samples."""
        outcome = found["outcome"].numpy()
        # Masks have outcomes alone.
        outputs, target = (found[k].numpy() if k in found else None for k in ("outputs", "target"))
        group = self.federation.groups(self.client, part=2)
        return Evidence(np.array([0, len(outcome)]), outcome, outputs, target, group)

    def _row(self, numbers: State, alone: float | None) -> dict[str, Any]:
        test = self.federation.test(self.client)
        score = self.side.task.score(self.theta, test).score if len(test) else None
        gain = None
        if score is not None and alone is not None:  # above zero is good, whatever the metric
            gain = round(self.side.task.objective.primary.sign * (score - alone), 9)
        return {
            "client": client_names(self.federation)[self.client],
            "n_train": int(self.federation.n_train[self.client]),
            "n_test": len(test),
            "final": score,
            "local": alone,
            "gain": gain,
            **({} if self.privacy is None else {"covered": str(self.privacy["covered"])}),
            **numbers,
        }

    def _manifest(
        self, folder: Path, about: dict[str, Any], row: dict[str, Any], file: dict[str, str]
    ) -> dict[str, Any]:
        fitted = manifests.fitted_table(self.federation, self.client)
        found = manifest(
            self.experiment,
            self.federation,
            about["method"],
            self.side.algorithm,
            self.side.task,
            round=about["round"],
            seed=about["seed"],
            shared=None,
            frozen=write_frozen(folder, self.side.task),
            clients=[{**row, "id": self.client, "score": row["final"], **fitted, **file}],
        )
        return found if self.privacy is None else {**found, "privacy": self.privacy}


def _report(path: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per run, method and seed in report.csv; all of them."""
    key = ("run", "method", "seed")
    rows: list[dict[str, Any]] = []
    if path.is_file():
        rows = list(csv.DictReader(path.read_text().splitlines()))
        # As 0.1 called it.
        rows = [{"gain" if k == "gain_over_local" else k: r[k] for k in r} for r in rows]
    rows = [r for r in rows if [r[k] for k in key] != [str(row[k]) for k in key]]
    rows.append(row)
    # Another task has other metrics.
    columns = list(dict.fromkeys(name for r in rows for name in r))
    write_atomic(path, csv_text(rows, columns))
    return rows
