"""The models of a run: as safetensors files with a manifest, or in memory.

Model files carry no metadata, so equal models are equal files. Names and values are those of the
module's own ``state_dict``. What is read is only the very bytes that the manifest names: no pickle.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load as tensors_in
from torch import Tensor, nn

from pgfed.config import experiment as experiments
from pgfed.config.tables import Experiment
from pgfed.data.federation import PIXEL_SCALE, Federation
from pgfed.data.tables.schema import Schema
from pgfed.engine.durable import sha256, write_atomic
from pgfed.engine.rounds import Run
from pgfed.engine.runs import Setup
from pgfed.errors import UserError
from pgfed.methods.contract import Algorithm
from pgfed.model.frozen import to_bytes
from pgfed.model.networks import MODELS, Factory, factory
from pgfed.model.task import Task
from pgfed.modules import NONE, Allowed, allowed
from pgfed.results import layout
from pgfed.results import manifest as manifests
from pgfed.results.layout import seed_folder
from pgfed.results.manifest import Client, File, Manifest
from pgfed.results.runs import number

SUFFIX = ".safetensors"
GLOBAL = "global" + SUFFIX
FROZEN = "frozen" + SUFFIX  # what all models of the folder have in common
NEVER_SAMPLED = "never-sampled" + SUFFIX
RESERVED = {"global", "never-sampled", "frozen"}


class Diverged(UserError):
    """A model that holds no numbers any more."""


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
        return {**self._task.frozen(), **self._task.named(self._personal[client])}

    def shared(self) -> dict[str, Tensor]:
        return {**self._task.frozen(), **self._task.named(self._global)}


class ModelsInFolder:
    """Read from the files of a run folder when asked for."""

    def __init__(self, folder: Path, allowed: Allowed = NONE) -> None:
        self._folder = folder
        self._allowed = allowed
        self.manifest = manifests.read(folder)
        self._files = {row.id: row for row in self.manifest.clients}

    def personal(self, client: int) -> dict[str, Tensor]:
        return self._read(self._files.get(client))

    def shared(self) -> dict[str, Tensor]:
        return self._read(self.manifest.shared)

    def _read(self, row: Client | File | None) -> dict[str, Tensor]:
        if row is None or row.file is None or row.sha256 is None:
            raise UserError(f"{self._folder}: holds no such model")
        own = read_model(self._folder / row.file, row.sha256)
        return {**_frozen(self._folder, self.manifest), **own}

    def personal_model(self, client: int | str) -> Model:
        """A client's personalized model, and what there is to say of it."""
        rows = self.manifest.clients  # in the order of their numbers
        row = rows[layout.choose_client([row.client for row in rows], client)]
        if row.file is None:
            raise UserError(
                f"{self._folder}: the model of client {client} is not here but at its site"
            )
        model = open_model(self._folder / row.file, self._allowed)
        # Several clients may have this file in common; this is about the one.
        entry = {**self.manifest.about(), "role": "client", **row.model_dump()}
        return dataclasses.replace(model, entry=entry)

    def shared_model(self) -> Model:
        """The method's global model, which a new client starts from."""
        if self.manifest.shared is None:
            raise UserError(f"{self._folder}: holds no global model")
        return open_model(self._folder / self.manifest.shared.file, self._allowed)

    def factory(self) -> Factory:
        """What builds these models; one of a user's own only if it is allowed."""
        check_module(self.manifest, self._folder, self._allowed)
        return factory(self.manifest.model, self.manifest.model_options)


def kept_models(path: Path, method: str, seed: int, allowed: Allowed = NONE) -> ModelsInFolder:
    """The models of a method and seed in a run folder; says why there are none."""
    folder = seed_folder(path, method, seed)
    if not (folder / layout.CLIENTS).is_file():
        raise layout.unfinished(path, method, seed)
    if not (folder / layout.MODELS).is_dir():
        raise UserError(f"{folder}: its models were not kept; run again with output.models = 'all'")
    return ModelsInFolder(folder / layout.MODELS, allowed)


def not_kept(method: str, seed: int) -> UserError:
    return UserError(
        f"the models of {method}, seed {seed} were not kept; allowed with output.models = 'all'"
    )


# -- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A model file, and what its manifest says of it."""

    path: Path
    manifest: Manifest
    entry: dict[str, Any]  # the manifest as far as it is about this model
    values: dict[str, Tensor]  # the module's state_dict
    allowed: Allowed = NONE  # modules that its manifest may name

    @property
    def table(self) -> Schema | None:
        """How inputs are made of the rows of a table, if it was trained on one."""
        return manifests.table_of(self.entry, self.path.parent)

    def check_module(self) -> None:
        """Refuse a model that would import a module which is not allowed."""
        check_module(self.manifest, self.path.parent, self.allowed)

    def module(self) -> nn.Module:
        """The model in evaluation mode."""
        about = self.manifest
        self.check_module()
        make = factory(about.model, about.model_options)
        try:
            if about.model in MODELS:  # a manifest may claim inputs of any size: none is allocated
                with torch.device("meta"):
                    make(about.shape, len(about.classes)).load_state_dict(self.values, assign=True)
            with torch.random.fork_rng(devices=[]):  # the values it starts with are replaced
                module = make(about.shape, len(about.classes))
            module.load_state_dict(self.values)
        except UserError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise UserError(
                f"{self.path}: does not fit the model {about.model!r} ({reason})"
            ) from None
        return module.eval()


def load(
    path: str | Path,
    client: int | str | None = None,
    *,
    method: str | None = None,
    seed: int | None = None,
    allow_modules: Sequence[str] = (),
) -> tuple[nn.Module, dict[str, Any]]:
    """A model in evaluation mode, and what the manifest says of it.

    ``path`` is a model file (``.../models/client-0007.safetensors``), or a run folder: then
    ``client`` says whose model (by its number or name), and ``method`` and ``seed`` of which run
    in it (by default the only method and the first seed). A model of one's own,
    ``package.module:factory``, is imported only if ``allow_modules`` holds its module.
    """
    model = find_model(Path(path).expanduser(), client, method, seed, allowed(allow_modules))
    return model.module(), model.entry


def find_model(
    place: Path, client: int | str | None, method: str | None, seed: int | None, trusted: Allowed
) -> Model:
    """The model in a file, or of a client of a run folder."""
    if place.is_dir():
        experiment = experiments.of_run(place)
        if client is None:
            raise UserError(f"{place}: a run folder holds a model per client; say which client")
        name = layout.choose_method(experiment, place, method)
        kept = kept_models(place, name, layout.choose_seed(experiment, seed), trusted)
        return kept.personal_model(client)
    if client is not None or method is not None or seed is not None:
        raise UserError(f"{place}: client, method and seed are for a run folder; found no folder")
    return open_model(place, trusted)


def open_model(path: Path, allowed: Allowed = NONE) -> Model:
    """The model in a file; what is damaged, cut short or not in its manifest is refused.

    So is a model whose training diverged: it would answer with the first class, whatever it sees.
    """
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: not a model file; expected NAME.safetensors of a run's models")
    if not path.is_file():
        raise UserError(f"{path}: cannot be read (No such file or directory)")
    about = manifests.read(path.parent)
    digest, entry = _entry(path, about)
    values = {**_frozen(path.parent, about), **read_model(path, digest)}
    # Of the types that models have: for smaller ones, in a file from elsewhere, torch cannot tell.
    floats = [v for v in values.values() if v.is_floating_point() and v.itemsize > 1]
    if not all(value.isfinite().all() for value in floats):
        raise Diverged(
            f"{about.method}'s {_whose(path, entry)} holds NaN or infinite values: its training "
            "diverged (lower train.lr)"
        )
    return Model(path, about, {**about.about(), **entry}, values, allowed)


def check_module(about: Manifest, folder: Path, allowed: Allowed) -> None:
    """A manifest may be a stranger's: what it names is imported only if that is allowed here."""
    allowed.check("model", about.model, folder / manifests.NAME)


def _whose(path: Path, entry: dict[str, Any]) -> str:
    if entry["role"] == "global":
        return "global model"
    return f"model of client {entry['client']}" if "client" in entry else f"model {path.name}"


def _entry(path: Path, about: Manifest) -> tuple[str, dict[str, Any]]:
    """The file's checksum, and what the manifest says of it beside what it says of all."""
    if about.shared is not None and about.shared.file == path.name:
        return about.shared.sha256, {"role": "global", **about.shared.model_dump()}
    rows = [row for row in about.clients if row.file == path.name and row.sha256 is not None]
    if not rows or rows[0].sha256 is None:
        raise UserError(f"{path}: {manifests.NAME} beside it knows no such file")
    digest = rows[0].sha256
    if len(rows) == 1:
        return digest, {"role": "client", **rows[0].model_dump()}
    # Clients that never took part have one model, and so one file, in common.
    common = {"file": path.name, "sha256": digest, "clients": [row.client for row in rows]}
    return digest, {"role": "client", **common}


def _frozen(folder: Path, about: Manifest) -> dict[str, Tensor]:
    """What the models of a folder have in common because it was never trained."""
    return {} if about.frozen is None else read_model(folder / FROZEN, about.frozen.sha256)


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
        return {name: value.clone() for name, value in tensors_in(data).items()}
    except Exception as error:  # safetensors and torch raise a dozen kinds on hostile bytes
        raise UserError(f"{path}: not a safetensors file ({error})") from None


# -- writing -----------------------------------------------------------------------------------


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
