"""A table, or one per site, as samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.data.dataset import Options, Samples
from pgfed.data.tables.proposal import FEW_CLASSES, propose
from pgfed.data.tables.reading import Bad, Rows, files, frame, numbers, raw, rows
from pgfed.data.tables.schema import Schema
from pgfed.data.targets import Targets
from pgfed.errors import NOTES, UserError


def samples(name: str, place: Path, options: Options) -> Samples:
    """The rows of a file, or of a folder's files: then each file is a site, called by its name."""
    bad = Bad(options.skip_bad)
    tables = {path: frame(path, bad) for path in files(name.partition(":")[0], place)}
    sites = [path.stem for path in tables] if place.is_dir() else None
    return from_tables(name, tables, sites, options, bad)


def from_tables(
    name: str,
    tables: Mapping[Path, Any],
    sites: Sequence[str] | None,
    options: Options,
    bad: Bad,
    target: Sequence[str] | None = None,
) -> Samples:
    """Tables by their names in messages; ``sites``: whose each of them is.

    ``target``: what is to be predicted, where no schema says it.
    """
    schema = options.schema
    if schema is None:
        proposal = propose(tables, target)
        schema = proposal.schema
        NOTES.info(f"{name}: no data.schema; as proposed: {_told(schema)}")
        for warning in proposal.warnings:
            NOTES.warning(f"{name}: {warning}")
    numeric = options.targets in ("labels", "values")
    parts = [
        rows(path, table, schema, bad, numeric_targets=numeric) for path, table in tables.items()
    ]
    bad.settle(name)
    if not sum(len(part.line) for part in parts):
        raise UserError(f"{name}: none of its rows can be used")
    _say_ignored(name, tables, schema)
    values, columns = raw(parts, schema)
    roles = {role: _text(np.concatenate([p.roles[role] for p in parts])) for role in schema.roles}
    if "client" not in roles and sites is not None:
        roles["client"] = np.repeat(np.array(sites), [len(part.line) for part in parts])
    return Samples(
        x=values,
        y=_targets(name, parts, schema, options.targets),
        class_names=_names(schema, options.targets),
        columns=columns,
        **roles,
    )


def _text(found: NDArray[Any]) -> NDArray[np.str_]:
    return found.astype(np.str_)


def _names(schema: Schema, form: Targets) -> list[str] | None:
    if form == "classes":
        return schema.classes or None
    return schema.target


def _targets(name: str, parts: Sequence[Rows], schema: Schema, form: Targets) -> NDArray[Any]:
    target = np.concatenate([part.target for part in parts])
    if form == "masks":
        raise UserError(f"task.kind: {name} is a table, and masks are images")
    if form != "classes":
        return np.stack([numbers(column)[0] for column in target.T], axis=1)
    if target.shape[1] > 1:
        raise UserError(
            f"{name}: {target.shape[1]} targets ({', '.join(schema.target)}); allowed: one, or "
            'task.kind = "multilabel" or "regression"'
        )
    if schema.classes:
        return _text(target[:, 0])
    values, wrong = numbers(target[:, 0])
    if wrong.any():
        return _text(target[:, 0])
    if not (values == np.round(values)).all():
        return values
    if len(found := np.unique(values)) > FEW_CLASSES:
        raise UserError(
            f"{name}: the target {schema.target[0]} has {len(found)} different numbers; "
            'task.kind = "regression" predicts numbers; if they are classes, list them in the '
            "schema (classes)"
        )
    return values.astype(np.int64)


def _say_ignored(name: str, tables: Mapping[Path, Any], schema: Schema) -> None:
    used = {*schema.target, *schema.roles.values(), *schema.drop}
    used |= {*schema.numeric, *schema.categorical}
    first = next(iter(tables.values()))
    left = [str(column) for column in first.columns if column not in used]
    if left:
        NOTES.info(f"{name}: columns that the schema does not name are ignored: {', '.join(left)}")


def _told(schema: Schema) -> str:
    parts = [f"target {', '.join(schema.target)}"]
    parts += [f"{role} {column}" for role, column in schema.roles.items()]
    parts += [f"{len(schema.numeric)} numeric, {len(schema.categorical)} categorical columns"]
    if schema.drop:
        parts.append(f"without {', '.join(schema.drop)}")
    return "; ".join(parts) + " (`pgfed data schema` writes it down)"
