"""A finished run folder: its experiment, its models, its clients' data."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgfed.config import experiment as experiments
from pgfed.config.experiment import Experiment
from pgfed.data.federation import Federation
from pgfed.engine.runs import load_federation
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.results import manifest as manifests
from pgfed.results.loading import Model, open_model
from pgfed.results.manifest import Manifest


@dataclass(frozen=True)
class RunFolder:
    """Read when asked for, and checked as it is read."""

    path: Path
    experiment: Experiment

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        return cls(path, experiments.of_run(path))

    @property
    def methods(self) -> list[str]:
        """The methods by the names of their folders."""
        return [algorithms.folder(name) for name in self.experiment.methods]

    def method(self, asked: str | None) -> str:
        """The method asked for; without one, the only one."""
        if asked is None and len(self.methods) == 1:
            return self.methods[0]
        if asked is None:
            raise UserError(
                f"method: {self.path} holds several: {', '.join(self.methods)}; say which"
            )
        name = algorithms.folder(asked)
        if name not in self.methods:
            raise unknown("method", asked, self.methods)
        return name

    def chosen(self, asked: str | None) -> list[str]:
        """The method asked for, or all of them."""
        return self.methods if asked is None else [self.method(asked)]

    def seed(self, asked: int | None) -> int:
        """The seed asked for; without one, the first whose models are kept."""
        seeds = self.experiment.seeds
        if asked is None:
            return seeds[-1] if self.experiment.output.models == "last" else seeds[0]
        if asked not in seeds:
            raise UserError(f"seed: found {asked}; allowed: {', '.join(map(str, seeds))}")
        return asked

    def seed_folder(self, method: str, seed: int) -> Path:
        return self.path / method / f"seed-{seed}"

    def manifest(self, method: str, seed: int) -> Manifest:
        """Of the models of a method and seed; says why there are none."""
        folder = self.seed_folder(method, seed)
        if not (folder / "clients.csv").is_file():
            raise self._unfinished(method, seed)
        if not (folder / "models").is_dir():
            raise UserError(
                f"{folder}: its models were not kept; run again with output.models = 'all'"
            )
        return manifests.read(folder / "models")

    def personal(self, method: str, seed: int, client: int) -> Model:
        """A client's personalized model."""
        about = self.manifest(method, seed)
        folder = self.seed_folder(method, seed) / "models"
        row = next((row for row in about.clients if row.client == client), None)
        if row is None:
            raise UserError(f"client: found {client}; allowed: 0 to {len(about.clients) - 1}")
        if row.file is None:
            raise UserError(f"{folder}: the model of client {client} is not here but at its site")
        model = open_model(folder / row.file)
        # Several clients may have this file in common; this is about the one.
        entry = {**about.about(), "role": "client", **row.model_dump()}
        return replace(model, entry=entry)

    def shared(self, method: str, seed: int) -> Model:
        """The method's global model, which a new client starts from."""
        about = self.manifest(method, seed)
        folder = self.seed_folder(method, seed) / "models"
        if about.shared is None:
            raise UserError(f"{folder}: holds no global model")
        return open_model(folder / about.shared.file)

    def clients(self, method: str, seed: int) -> list[dict[str, str]]:
        """The rows of clients.csv."""
        path = self.seed_folder(method, seed) / "clients.csv"
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except FileNotFoundError:
            raise self._unfinished(method, seed) from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None
        if not all(
            row.get("client") == str(i) and row.get("n_train") for i, row in enumerate(rows)
        ):
            raise UserError(f"{path}: not a table of clients; the file is damaged")
        return rows

    def _unfinished(self, method: str, seed: int) -> UserError:
        return UserError(f"{self.path}: {method} with seed {seed} has not finished")

    def federation(self, data_root: Path) -> Federation:
        """The clients' data, divided as in the run."""
        return load_federation(self.experiment.data, data_root)[0]


def client_name(row: Mapping[str, Any]) -> str:
    """A client's number, and what the data calls it."""
    name = row.get("label") or row.get("domain")
    return f"client {row['client']}" + (f" ({name})" if name else "")
