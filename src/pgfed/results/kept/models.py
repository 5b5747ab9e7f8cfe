"""The models of a run: as safetensors files with a manifest, or in memory.

Model files carry no metadata, so equal models are equal files. Names and values are those of the
module's own ``state_dict``. What is read is only the very bytes that the manifest names: no pickle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load as tensors_in
from torch import Tensor, nn

from pgfed.config import experiment as experiments
from pgfed.data.tables.schema import Schema
from pgfed.engine.storage.durable import sha256
from pgfed.errors import UserError
from pgfed.model.networks import MODELS, Factory, factory
from pgfed.modules import NONE, Allowed, allowed
from pgfed.results.folder import layout
from pgfed.results.folder.layout import seed_folder
from pgfed.results.kept import manifest as manifests
from pgfed.results.kept.manifest import Client, File, Manifest

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
