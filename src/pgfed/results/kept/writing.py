"""Model files and their manifest, written."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pgfed.config.tables import Experiment
from pgfed.data.federation import PIXEL_SCALE, Federation
from pgfed.engine.rounds import Run
from pgfed.engine.setup import Setup
from pgfed.engine.storage.durable import sha256, write_atomic
from pgfed.methods.contract import Algorithm
from pgfed.model.frozen import to_bytes
from pgfed.model.task import Task
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.models import FROZEN, GLOBAL, NEVER_SAMPLED, RESERVED, SUFFIX
from pgfed.results.summary import number


class ModelsInMemory:
    """Kept as flat vectors; clients that never took part share one."""

    def __init__(self, run: Run) -> None:
        self._task = run.task
        self._personal = {i: theta for i, theta, _ in _personal(run)}
        self._global = run.global_model()

    def personal(self, client: int) -> dict[str, Tensor]:
        return {**self._task.frozen(), **self._task.named(self._personal[client])}

    def shared(self) -> dict[str, Tensor]:
        return {**self._task.frozen(), **self._task.named(self._global)}


def write_models(
    folder: Path, setup: Setup, run: Run, method: str, rows: Sequence[dict[str, Any]]
) -> None:
    """All personalized models, the global one, and the manifest, written last.

    ``rows`` tell of the clients, as in clients.csv; each gets its model's file and scores.
    """
    folder.mkdir()
    names = model_files(setup.federation)
    files: dict[int, dict[str, str]] = {}
    common: dict[str, str] | None = None
    for i, theta, is_common in _personal(run):
        if is_common and common is not None:
            files[i] = common
            continue
        name = NEVER_SAMPLED if is_common else names[i]
        files[i] = write_model(folder / name, run.task.named(theta))
        if is_common:
            common = files[i]
    clients = [
        {
            "client": row["client"],
            "id": i,
            **row,
            **manifests.fitted_table(setup.federation, i),
            **files[i],
            "score": number(run.score[i]),
            "loss": number(run.loss[i]),
        }
        for i, row in enumerate(rows)
    ]
    content = manifest(
        setup.experiment,
        setup.federation,
        method,
        run.algorithm,
        run.task,
        round=run.round,
        seed=run.seed,
        shared=write_model(folder / GLOBAL, run.task.named(run.global_model())),
        frozen=write_frozen(folder, run.task),
        clients=clients,
        class_shares=run.class_shares(),
    )
    manifests.write(folder, content)


def model_files(federation: Federation) -> list[str]:
    """What the clients' model files are called: by number, or as the data calls the client.

    A name serves where it is no mere number, safe, and not what another file is called.
    """
    digits = max(4, len(str(len(federation) - 1)))
    numbered = [f"client-{i:0{digits}}" for i in range(len(federation))]
    labels = federation.client_labels
    names = numbered if labels is None else [str(label) for label in labels]
    times = Counter(name.casefold() for name in names)
    return [
        (name if _serves(name, own, times[name.casefold()]) else own) + SUFFIX
        for name, own in zip(names, numbered, strict=True)
    ]


def _serves(name: str, own: str, times: int) -> bool:
    safe = re.fullmatch(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None
    taken = name.casefold() in RESERVED or re.fullmatch(r"client-\d+", name.casefold()) is not None
    return safe and times == 1 and (name == own or not taken)


def manifest(
    experiment: Experiment,
    federation: Federation,
    method: str,
    algorithm: Algorithm,
    task: Task,
    *,
    round: int,
    seed: int,
    shared: dict[str, str] | None,
    frozen: dict[str, str] | None,
    clients: Sequence[dict[str, Any]],
    class_shares: list[float] | None = None,
) -> dict[str, Any]:
    """The content of manifest.json; a client whose model is elsewhere has no file."""
    return {
        "format": manifests.FORMAT,
        "method": method,
        "hyperparameters": dataclasses.asdict(algorithm),
        "round": round,
        "seed": seed,
        "kept": experiment.output.keep,
        "metric": task.objective.metric,
        "task": task_table(experiment),
        "model": experiment.model.name,
        "model_options": experiment.model.options,
        "head": task.head_name,
        "input_shape": list(federation.input_shape),
        "classes": list(federation.class_names),
        "targets": federation.targets,
        "normalisation": normalisation(federation),
        "table": None if federation.schema is None else federation.schema.plain(),
        **({} if class_shares is None else {"class_shares": class_shares}),
        "image_size": experiment.data.image_size,
        "data_fingerprint": federation.fingerprint if len(federation.y) else None,
        "global": shared,
        "frozen": frozen,
        "clients": list(clients),
    }


def task_table(experiment: Experiment) -> dict[str, Any]:
    """What a model is judged by: the [task] table as far as it says something."""
    return {k: v for k, v in dataclasses.asdict(experiment.task).items() if v is not None}


def normalisation(federation: Federation) -> dict[str, Any]:
    """What is done to inputs before the model sees them: (x / divide) - subtract."""
    if federation.x.dtype == torch.uint8:
        return {"input": "uint8", "divide": PIXEL_SCALE, "subtract": 1.0}
    kind = "float32" if federation.x.dtype == torch.float32 else "int64"
    return {"input": kind, "divide": 1.0, "subtract": 0.0}


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
    data = to_bytes(values)
    write_atomic(path, data)
    return {"file": path.name, "sha256": sha256(data)}


def write_frozen(folder: Path, task: Task) -> dict[str, str] | None:
    """The file of what is never trained, once for all models of a folder; what a manifest says."""
    frozen = task.frozen()
    return write_model(folder / FROZEN, frozen) if frozen else None
