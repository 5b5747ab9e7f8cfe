"""The folder of a federation is made here, with the folder that each site is given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from pgfed.config import experiment as experiments
from pgfed.config.schema import check
from pgfed.config.tables import Experiment
from pgfed.engine.objective import targets_of
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.federation.folders import templates
from pgfed.federation.folders.folder import (
    DATASET,
    SCHEMA,
    Agreement,
    check_federated,
    check_insecure,
    site_name,
    split_address,
)

if TYPE_CHECKING:
    from pgfed.data.tables.schema import Schema


def init(
    path: Path,
    *,
    sites: int,
    experiment: Path | None,
    server: str,
    classes: list[str] | None,
    shape: list[int] | None,
    insecure: bool,
) -> Agreement:
    """Write the folder of a federation, and in it the folder of each site."""
    from pgfed.engine.setup import read_schema
    from pgfed.federation.folders.keys import make_authority, make_site_key

    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: exists and is not empty; give a new folder")
    loaded = experiments.load(experiment) if experiment else _default(path.absolute().name)
    schema, data = read_schema(loaded.data, Path())
    agreement = _agreement(loaded, sites, server, classes, shape, insecure, schema)
    check_insecure(agreement)
    if data.schema is not None:  # each site has a copy; its checksum is part of the experiment
        loaded = replace(loaded, data=replace(data, schema=SCHEMA))
    loaded = _resolved(loaded, agreement)
    document = tomli_w.dumps(loaded.document())

    keys = path / "server" / "keys"
    keys.mkdir(parents=True)
    (path / "server").chmod(0o700)
    make_authority(path / "server", agreement.federation, agreement.hosts)
    authority = (path / "server" / "ca.crt").read_bytes()
    common = agreement.model_dump(exclude_none=True)
    write_atomic(path / "federation.toml", templates.FEDERATION_HEAD + tomli_w.dumps(common))
    write_atomic(path / "experiment.toml", templates.EXPERIMENT_HEAD + document)
    write_atomic(
        path / "server" / "pgfed-server.service", templates.server_unit(agreement.federation)
    )
    for client in range(sites):
        name = site_name(client, sites)
        folder = path / "sites" / name
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        make_site_key(folder / "site.key", folder / "site.pub", name)
        write_atomic(keys / f"{name}.pub", (folder / "site.pub").read_bytes())
        own = {
            "client": client,
            "data": "",
            "share_model": False,
            "allow_modules": [],
            "auto_approve": False,
            **common,
        }
        write_atomic(folder / "site.toml", templates.SITE_HEAD + tomli_w.dumps(own))
        write_atomic(folder / "experiment.toml", templates.EXPERIMENT_HEAD + document)
        write_atomic(folder / "ca.crt", authority)
        if data.schema is not None:
            write_atomic(folder / SCHEMA, Path(data.schema).read_bytes())
        write_atomic(folder / "start.sh", templates.START)
        (folder / "start.sh").chmod(0o755)
        write_atomic(folder / "pgfed-site.service", templates.site_unit(agreement.federation, name))
    return agreement


def _default(name: str) -> Experiment:
    """Without an experiment file: PGFed, every site in every round."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "federation"
    return experiments.from_dict({"name": name, "cohort": 1.0, "rounds": 20, "methods": ["pgfed"]})


def _agreement(
    experiment: Experiment,
    sites: int,
    server: str,
    classes: list[str] | None,
    shape: list[int] | None,
    insecure: bool,
    schema: Schema | None,
) -> Agreement:
    """Classes and shape are as asked, or those of the experiment's data where it is at hand."""
    kind = "float32" if shape and len(shape) == 1 else "uint8"
    if schema is not None:
        if schema.open_categories:
            raise UserError(
                f"data.schema: categorical {schema.open_categories[0]!r} lists no categories; a "
                "federation's sites must agree on them"
            )
        classes = classes or schema.classes or None
        shape, kind = [schema.width], "float32"
    if classes is None or shape is None:
        from pgfed.data import datasets

        try:
            table = experiment.data
            form = targets_of(experiment.task)
            data = datasets.load(table.dataset, None, skip_bad=table.skip_bad, targets=form)
        except UserError as error:
            raise UserError(
                f"--classes, --shape: needed, as the experiment's data is not here ({error})"
            ) from None
        classes = classes or list(data.class_names)
        shape = shape or list(data.x.shape[1:])
        kind = data.x.dtype.name
    content: dict[str, Any] = {
        "federation": experiment.name,
        "server": server,
        "seats": sites,
        "input_shape": shape,
        "input": kind,
        "classes": classes,
        "insecure": insecure,
    }
    split_address(server)
    if len(set(classes)) < len(classes):
        raise UserError("--classes: each class once")
    return check(Agreement, content)


def _resolved(experiment: Experiment, agreement: Agreement) -> Experiment:
    """Complete, so that server and sites cannot fill it in differently."""
    from pgfed.data.augment import check_augment
    from pgfed.federation.folders.models import make_model
    from pgfed.model.networks import default_model

    check_federated(experiment)
    none = agreement.without_data()
    name = experiment.model.name or default_model(none)
    make_model(agreement, experiment, 0, none)
    if "local" not in experiment.methods:  # each site is to know what it gained
        experiment = replace(experiment, methods=["local", *experiment.methods])
    methods, experiment = experiments.make_methods(experiment)
    for method in methods.values():
        check_augment(method.train.augment, none)
    data: dict[str, Any] = {"dataset": DATASET, "clients": agreement.seats, "partition": "given"}
    return replace(
        experiment,
        model=replace(experiment.model, name=name),
        data=replace(experiment.data, **data),
    )
