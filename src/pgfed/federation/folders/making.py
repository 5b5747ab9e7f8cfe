"""The folder of a federation is made here, with the folder that each site is given."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from pgfed.config import experiment as experiments
from pgfed.config.schema import check
from pgfed.config.tables import Experiment, Task
from pgfed.engine.objective import targets_of
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError
from pgfed.federation.folders import templates
from pgfed.federation.folders.folder import (
    DATASET,
    SCHEMA,
    Agreement,
    FederationFile,
    FederationFolder,
    SiteFile,
    check_agreement,
    check_federated,
    read_table,
)

if TYPE_CHECKING:
    from pgfed.data.tables.schema import Schema


def init(
    path: Path,
    *,
    sites: int | list[str],
    experiment: Path | None,
    server: str,
    classes: list[str] | None,
    shape: list[int] | None,
    insecure: bool,
    with_keys: bool = False,
) -> Agreement:
    """Write the folder of a federation; ``with_keys``: and the key and folder of each site."""
    from pgfed.engine.setup import read_schema
    from pgfed.federation.folders.keys import make_authority

    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: exists and is not empty; give a new folder")
    loaded = experiments.load(experiment) if experiment else _default(path.absolute().name)
    schema, data = read_schema(loaded.data, Path())
    agreement = _agreement(loaded, sites, server, classes, shape, insecure, schema)
    check_agreement(agreement)
    if data.schema is not None:  # each site has a copy; its checksum is part of the experiment
        loaded = replace(loaded, data=replace(data, schema=SCHEMA))
    if schema is not None:
        loaded = replace(loaded, task=_told(loaded.task, schema))
    loaded = _resolved(loaded, agreement)
    document = tomli_w.dumps(loaded.document())

    keys = path / "server" / "keys"
    keys.mkdir(parents=True)
    for own in (path, path / "server"):  # what sites send, and the keys
        own.chmod(0o700)
    make_authority(path / "server", agreement.federation, agreement.hosts)
    common = agreement.model_dump(exclude_none=True)
    write_atomic(path / "federation.toml", templates.FEDERATION_HEAD + tomli_w.dumps(common))
    write_atomic(path / "experiment.toml", templates.EXPERIMENT_HEAD + document)
    if data.schema is not None:
        write_atomic(path / SCHEMA, Path(data.schema).read_bytes())
    write_atomic(
        path / "server" / "pgfed-server.service", templates.server_unit(agreement.federation)
    )
    if with_keys:
        _make_sites(FederationFolder(path))
    return agreement


def _make_sites(folder: FederationFolder) -> None:
    """Each site's key and folder, made here and handed out by somebody."""
    from pgfed.federation.folders.keys import make_site_key

    for client, name in enumerate(folder.agreement.names):
        site = folder.path / "sites" / name
        site.mkdir(parents=True)
        make_site_key(site / "site.key", site / "site.pub", name)
        write_atomic(folder.key(client), (site / "site.pub").read_bytes())
        write_site(site, handed(folder, client), (folder.server / "ca.crt").read_bytes())


def handed(folder: FederationFolder, client: int) -> dict[str, Any]:
    """What the site at this seat is given; nothing in it is secret, nothing of it is run."""
    schema = folder.path / SCHEMA
    return {
        "client": client,
        "agreement": folder.agreement.model_dump(include=set(Agreement.model_fields)),
        "experiment": folder.experiment_file.read_text(encoding="utf-8"),
        "schema": schema.read_text(encoding="utf-8") if schema.is_file() else None,
    }


OWN = {"data": "", "share_model": False, "allow_modules": [], "auto_approve": False}


def write_site(path: Path, content: dict[str, Any], authority: bytes) -> None:
    """A site's files from what it was handed; its own settings stay as they are.

    What is handed out comes from the server: of it, nothing but the agreement gets into site.toml.
    """
    agreement = check(Agreement, content["agreement"])
    check_agreement(agreement)
    given = {"client": content["client"], **agreement.model_dump()}
    own: dict[str, Any] = OWN
    if (path / "site.toml").is_file():
        own = read_table(path / "site.toml", SiteFile).model_dump(
            exclude=set(given), exclude_none=True, exclude_defaults=True
        )
    file = check(SiteFile, {**OWN, **own, **given})
    name = file.names[file.client]
    path.chmod(0o700)
    write_atomic(path / "site.toml", templates.SITE_HEAD + tomli_w.dumps({**given, **OWN, **own}))
    write_atomic(path / "experiment.toml", content["experiment"])
    write_atomic(path / "ca.crt", authority)
    if content["schema"] is not None:
        write_atomic(path / SCHEMA, content["schema"])
    write_atomic(path / "start.sh", templates.START)
    (path / "start.sh").chmod(0o755)
    write_atomic(path / "pgfed-site.service", templates.site_unit(file.federation, name))


def add_seats(folder: FederationFolder, more: int | list[str]) -> FederationFolder:
    """More seats, by number or by name: another agreement, which every site has to agree to."""
    old = folder.agreement
    if isinstance(more, int) and old.sites:
        raise UserError(f"the sites here have names, as {old.sites[0]}; give the new ones' names")
    count = more if isinstance(more, int) else len(more)
    seats = old.seats + count
    if isinstance(more, int):
        more = [f"site-{i:02}" for i in range(old.seats, seats)]
    content = tomllib.loads((folder.path / "federation.toml").read_text(encoding="utf-8"))
    content["seats"] = seats
    names = [*old.names, *more]
    if (
        names != old.model_copy(update={"seats": seats}).names
    ):  # the names that are in use stay as they are
        content["sites"] = names
    check_agreement(check(FederationFile, content))
    experiment = tomllib.loads(folder.experiment_file.read_text(encoding="utf-8"))
    experiment["data"]["clients"] = seats
    write_atomic(
        folder.path / "federation.toml", templates.FEDERATION_HEAD + tomli_w.dumps(content)
    )
    write_atomic(folder.experiment_file, templates.EXPERIMENT_HEAD + tomli_w.dumps(experiment))
    return FederationFolder(folder.path)


def _default(name: str) -> Experiment:
    """Without an experiment file: PGFed, every site in every round."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "federation"
    return experiments.from_dict({"name": name, "cohort": 1.0, "rounds": 20, "methods": ["pgfed"]})


def _agreement(
    experiment: Experiment,
    sites: int | list[str],
    server: str,
    classes: list[str] | None,
    shape: list[int] | None,
    insecure: bool,
    schema: Schema | None,
) -> Agreement:
    """Classes and shape are as asked, or those of the experiment's data where it is at hand."""
    form = targets_of(experiment.task)
    kind = "float32" if shape and len(shape) == 1 else "uint8"
    if schema is not None:
        if schema.open_categories:
            raise UserError(
                f"data.schema: categorical {schema.open_categories[0]!r} lists no categories; a "
                "federation's sites must agree on them"
            )
        columns = schema.target if form in ("labels", "values") else schema.classes
        classes = classes or columns
        if not classes:
            raise UserError(
                "data.schema: lists no classes; a federation's sites must agree on them"
            )
        shape, kind = [schema.width], "float32"
    if classes is None or shape is None:
        from pgfed.data import datasets

        try:
            table = experiment.data
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
        "seats": sites if isinstance(sites, int) else len(sites),
        # In the order in which a simulation has them: sums of floats depend on it.
        "sites": [] if isinstance(sites, int) else sorted(sites),
        "input_shape": shape,
        "input": kind,
        "classes": classes,
        "targets": form,
        "insecure": insecure,
    }
    if len(set(classes)) < len(classes):
        raise UserError("--classes: each class once")
    return check(Agreement, content)


def _told(table: Task, schema: Schema) -> Task:
    """With what the sites' schema says of the targets, where the experiment is silent."""
    if table.kind == "binary" and table.positive is None:
        return replace(table, positive=schema.positive)
    if table.kind == "regression" and schema.target_scaling and not table.target_means:
        means, scales = schema.target_scaling
        return replace(table, target_means=means, target_scales=scales)
    return table


def _resolved(experiment: Experiment, agreement: Agreement) -> Experiment:
    """Complete, so that server and sites cannot fill it in differently."""
    from pgfed.data.augment import check_augment
    from pgfed.engine.personal import fitted
    from pgfed.engine.setup import check_precision, with_cohort
    from pgfed.federation.folders.models import make_model
    from pgfed.model.networks import default_model

    check_federated(experiment)
    none = agreement.without_data()
    experiment = with_cohort(experiment, none)
    name = experiment.model.name or default_model(none)
    task = make_model(agreement, experiment, 0, none)
    if "local" not in experiment.methods:  # each site is to know what it gained
        experiment = replace(experiment, methods=["local", *experiment.methods])
    methods, experiment = fitted(*experiments.make_methods(experiment), task)
    for method in methods.values():
        check_augment(method.train.augment, none)
    check_precision(methods, task, none)
    data: dict[str, Any] = {"dataset": DATASET, "clients": agreement.seats, "partition": "given"}
    return replace(
        experiment,
        model=replace(experiment.model, name=name),
        data=replace(experiment.data, **data),
    )
