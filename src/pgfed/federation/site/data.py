"""A site's own samples, with the classes that the federation agreed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pgfed.config.tables import Data
from pgfed.data import OWN
from pgfed.data import matching as agreed
from pgfed.data.federation import Federation, build_seat
from pgfed.data.tables.schema import Schema
from pgfed.engine.setup import read_schema
from pgfed.errors import UserError
from pgfed.federation.folders.folder import SiteFolder


def is_there(folder: SiteFolder, data: str) -> Path | None:
    """None if the site's data is there; else the path that is missing, or an empty folder."""
    name, at = (data, Path.cwd()) if data else (folder.file.data, folder.path)
    path = at / Path(name.partition(":")[2]).expanduser()
    missing = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    return path if missing and ":" in name else None


def load(folder: SiteFolder, name: str, data: Data, at: Path) -> Federation:
    """The site's samples in its seat, divided as the experiment says; ``at``: relative to where.

    The schema of a table is the one that was handed out with the experiment.
    """
    site = folder.file
    if not name:
        raise UserError(f"data: allowed: {', '.join(OWN)} (in site.toml, or --data)")
    kind, _, path = name.partition(":")
    shape = tuple(site.input_shape)
    dataset = agreed.load(
        f"{kind}:{(at / Path(path).expanduser()).absolute()}" if path else name,
        None,
        classes=site.classes,
        input_shape=shape,
        input_type=site.input,
        image_size=shape[1] if len(shape) == 3 and shape[1] == shape[2] else None,
        skip_bad=data.skip_bad,
        targets=site.targets,
        schema=_schema(folder, data),
    )
    return build_seat(
        dataset,
        site.client,
        site.names,
        test_share=data.test_share,
        validation_share=data.validation_share,
        seed=data.seed,
        stratify=data.stratify,
        by_name=data.draws == "by-name",
    )


def _schema(folder: SiteFolder, data: Data) -> Schema | None:
    if data.schema is not None:
        data = replace(data, schema=str(folder.path / data.schema))
    return read_schema(data, folder.path)[0]
