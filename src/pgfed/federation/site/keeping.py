"""A site's personalized model, with what it is worth: written once, and never written over."""

from __future__ import annotations

import csv
import logging
import shutil
from dataclasses import dataclass
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
from pgfed.results.folder.files import write_evidence
from pgfed.results.folder.layout import EVIDENCE, csv_text, seed_folder
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.writing import manifest, write_frozen, write_model
from pgfed.results.runs import Evidence

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A client's personalized model after a run's last round."""

    experiment: Experiment
    federation: Federation
    client: int
    side: ClientSide
    theta: Tensor

    def write(
        self,
        place: Path,
        report: Path,
        about: dict[str, Any],
        evidence: State,
        numbers: State,
        alone: float | None,
    ) -> None:
        """Into the run's folder, whole or not at all; a line of it into the report.

        ``about``: run, method, seed and round. ``alone``: what training alone came to.
        """
        folder = seed_folder(place, about["method"], about["seed"])
        row = self._row(numbers, alone)
        new = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
        new.mkdir(parents=True)
        file = write_model(new / "model.safetensors", self.side.task.named(self.theta))
        if (folder / manifests.NAME).is_file():
            shutil.rmtree(new)
            if manifests.read(folder).clients[0].sha256 != file["sha256"]:
                raise Refused(f"{folder} holds another model of this run; it is not written over")
            return
        write_evidence(new / EVIDENCE, _evidence(evidence), {})
        manifests.write(new, self._manifest(new, about, row, file))
        new.rename(folder)
        _report(report, about | row)
        log.info(
            "%s, seed %d: the personalized model is in %s", about["method"], about["seed"], folder
        )

    def _row(self, numbers: State, alone: float | None) -> dict[str, Any]:
        test = self.federation.test(self.client)
        score = self.side.task.score(self.theta, test).score if len(test) else None
        return {
            "client": str(self.client),
            "n_train": int(self.federation.n_train[self.client]),
            "n_test": len(test),
            "final": score,
            "local": alone,
            "gain": None if score is None or alone is None else round(score - alone, 9),
            **numbers,
        }

    def _manifest(
        self, folder: Path, about: dict[str, Any], row: dict[str, Any], file: dict[str, str]
    ) -> dict[str, Any]:
        fitted = manifests.fitted_table(self.federation, self.client)
        return manifest(
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


def _report(path: Path, row: dict[str, Any]) -> None:
    """One line per run, method and seed in report.csv."""
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


def _evidence(found: State) -> Evidence:
    """What the site's model gave for its own test samples."""
    outcome = found["outcome"].numpy()
    return Evidence(np.array([0, len(outcome)]), outcome, found["outputs"].numpy())
