"""Load a model file: no pickle, and only the very bytes that were written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pgfed.errors import UserError
from pgfed.model.networks import MODELS, factory
from pgfed.results import manifest as manifests
from pgfed.results.manifest import Manifest
from pgfed.results.models import read_model


class Diverged(UserError):
    """A model that holds no numbers any more."""


@dataclass(frozen=True)
class Model:
    """A model file, and what its manifest says of it."""

    path: Path
    manifest: Manifest
    entry: dict[str, Any]  # the manifest as far as it is about this model
    values: dict[str, Tensor]  # the module's state_dict

    def module(self) -> nn.Module:
        """The model in evaluation mode."""
        about = self.manifest
        make = factory(about.model)
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
    client: int | None = None,
    *,
    method: str | None = None,
    seed: int | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """A model in evaluation mode, and what the manifest says of it.

    ``path`` is a model file (``.../models/client-0007.safetensors``), or a run folder: then
    ``client`` says whose model, and ``method`` and ``seed`` of which run in it (by default the
    only method and the first seed).
    """
    place = Path(path).expanduser()
    if place.is_dir():
        from pgfed.results.finished import RunFolder

        run = RunFolder.open(place)
        if client is None:
            raise UserError(f"{place}: a run folder holds a model per client; say which client")
        model = run.personal(run.method(method), run.seed(seed), client)
    elif client is not None or method is not None or seed is not None:
        raise UserError(f"{place}: client, method and seed are for a run folder; found no folder")
    else:
        model = open_model(place)
    return model.module(), model.entry


def open_model(path: Path) -> Model:
    """The model in a file; what is damaged, cut short or not in its manifest is refused.

    So is a model whose training diverged: it would answer with the first class, whatever it sees.
    """
    if path.suffix != ".safetensors":
        raise UserError(f"{path}: not a model file; expected NAME.safetensors of a run's models")
    if not path.is_file():
        raise UserError(f"{path}: cannot be read (No such file or directory)")
    about = manifests.read(path.parent)
    digest, entry = _entry(path, about)
    values = read_model(path, digest)
    # Of the types that models have: for smaller ones, in a file from elsewhere, torch cannot tell.
    floats = [v for v in values.values() if v.is_floating_point() and v.itemsize > 1]
    if not all(value.isfinite().all() for value in floats):
        raise Diverged(
            f"{about.method}'s {_whose(path, entry)} holds NaN or infinite values: its training "
            "diverged (lower train.lr)"
        )
    return Model(path, about, {**about.about(), **entry}, values)


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
