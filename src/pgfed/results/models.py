"""The models of a run: as safetensors files with a manifest, or in memory.

Model files carry no metadata, so equal models are equal files. Names and values are those of the
module's own ``state_dict``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from pgfed.data.federation import Federation
from pgfed.engine.durable import sha256, write_atomic
from pgfed.engine.rounds import Run
from pgfed.engine.runs import Setup, number
from pgfed.errors import UserError

if TYPE_CHECKING:
    from pgfed.results.manifest import Client, File

FORMAT = 1  # of manifest.json
GLOBAL = "global.safetensors"
NEVER_SAMPLED = "never-sampled.safetensors"


class Models(Protocol):
    """The models of one method and seed, as the module's ``state_dict``."""

    def personal(self, client: int) -> dict[str, Tensor]: ...

    def shared(self) -> dict[str, Tensor]:
        """The global model, which a new client starts from."""


class ModelsInMemory:
    """Kept as flat vectors; clients that never took part share one."""

    def __init__(self, run: Run) -> None:
        self._task = run.task
        self._personal = {i: theta for i, theta, _ in _personal(run)}
        self._global = run.global_model()

    def personal(self, client: int) -> dict[str, Tensor]:
        return self._task.named(self._personal[client])

    def shared(self) -> dict[str, Tensor]:
        return self._task.named(self._global)


class ModelsInFolder:
    """Read from the files of a run folder when asked for."""

    def __init__(self, folder: Path) -> None:
        from pgfed.results.manifest import read  # which needs this module

        self._folder = folder
        manifest = read(folder)
        self._files = {row.client: row for row in manifest.clients}
        self._shared = manifest.shared

    def personal(self, client: int) -> dict[str, Tensor]:
        return self._read(self._files.get(client))

    def shared(self) -> dict[str, Tensor]:
        return self._read(self._shared)

    def _read(self, row: Client | File | None) -> dict[str, Tensor]:
        if row is None or row.file is None or row.sha256 is None:
            raise UserError(f"{self._folder}: holds no such model")
        return read_model(self._folder / row.file, row.sha256)


def read_model(path: Path, digest: str) -> dict[str, Tensor]:
    """The ``state_dict`` in a model file: only the very bytes that the manifest names."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if sha256(data) != digest:
        raise UserError(
            f"{path}: not the file that was written (its SHA-256 is not the one in "
            "manifest.json): damaged, cut short or replaced"
        )
    try:
        return {name: value.clone() for name, value in load(data).items()}
    except Exception as error:  # safetensors and torch raise a dozen kinds on hostile bytes
        raise UserError(f"{path}: not a safetensors file ({error})") from None


def write_models(
    folder: Path, setup: Setup, run: Run, method: str, rows: list[dict[str, Any]]
) -> None:
    """All personalized models, the global one, and the manifest, written last.

    ``rows`` tell of the clients, as in clients.csv; each gets its model's file and scores.
    """
    folder.mkdir()
    digits = max(4, len(str(len(rows) - 1)))
    files: dict[int, dict[str, str]] = {}
    shared: dict[str, str] | None = None
    for i, theta, is_common in _personal(run):
        if is_common and shared is not None:
            files[i] = shared
            continue
        name = NEVER_SAMPLED if is_common else f"client-{i:0{digits}}.safetensors"
        files[i] = write_model(folder / name, run.task.named(theta))
        if is_common:
            shared = files[i]
    manifest = {
        "format": FORMAT,
        "method": method,
        "hyperparameters": hyperparameters(run),
        "round": run.round,
        "seed": run.seed,
        "kept": setup.experiment.output.keep,
        "model": setup.experiment.model.name,
        "head": run.task.head_name,
        "input_shape": list(setup.federation.input_shape),
        "classes": list(setup.federation.class_names),
        "normalisation": normalisation(setup.federation),
        "image_size": setup.experiment.data.image_size,
        "data_fingerprint": setup.federation.fingerprint,
        "global": write_model(folder / GLOBAL, run.task.named(run.global_model())),
        "clients": [{**row, **files[row["client"]], **_scores(run, row["client"])} for row in rows],
    }
    write_manifest(folder, manifest)


def complete_models(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Add to a manifest what was not known of the clients when the models were written."""
    from pgfed.results.manifest import read  # which needs this module

    about = read(folder)
    clients = {row.client for row in about.clients}
    if clients != {row["client"] for row in rows}:
        raise UserError(f"{folder / 'manifest.json'}: not the run's clients; the file is damaged")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    known = {entry["client"]: entry for entry in manifest["clients"]}
    manifest["clients"] = [{**row, **known[row["client"]]} for row in rows]
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    write_atomic(folder / "manifest.json", text)


def _scores(run: Run, client: int) -> dict[str, float | None]:
    """Of the model as it is now, on the client's own test data."""
    return {"accuracy": number(run.score[client]), "loss": number(run.loss[client])}


def hyperparameters(run: Run) -> dict[str, Any]:
    """Every field of the method; those of local training under `train`."""
    return dataclasses.asdict(run.algorithm)


def normalisation(federation: Federation) -> dict[str, Any]:
    """What is done to inputs before the model sees them: (x / divide) - subtract."""
    if federation.x.dtype == torch.uint8:
        return {"input": "uint8", "divide": 127.5, "subtract": 1.0}
    return {"input": "float32", "divide": 1.0, "subtract": 0.0}


def _personal(run: Run) -> Iterator[tuple[int, Tensor, bool]]:
    """(client, its model, whether it is the one that never-sampled clients have in common)."""
    clients = range(run.info.clients)
    never = next((i for i in clients if not run.touched(i)), None)
    common = None if never is None else run.personal_model(never)
    for i, theta in run.personal_models():
        # A method may make each client's model from its own data even so: those differ.
        is_common = common is not None and not run.touched(i) and torch.equal(theta, common)
        yield i, common if is_common and common is not None else theta, is_common


def write_model(path: Path, values: dict[str, Tensor]) -> dict[str, str]:
    """A model file of a ``state_dict``; what a manifest says of it."""
    data = save({name: value.cpu().contiguous() for name, value in values.items()})
    write_atomic(path, data)
    return {"file": path.name, "sha256": sha256(data)}


def not_kept(method: str, seed: int) -> UserError:
    return UserError(
        f"the models of {method}, seed {seed} were not kept; allowed with output.models = 'all'"
    )
