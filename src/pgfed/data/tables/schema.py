"""The schema of a table: what its columns are, and all that was agreed or learned of them.

A schema with nothing left open says how inputs are made of any row: such a one is fitted to each
client's training rows, and is kept beside the client's model.
"""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pgfed.data.files import toml
from pgfed.errors import UserError

MAX_FILE = 10_000_000  # bytes; a file beyond this is not a schema


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Numeric(_Strict):
    """A column of numbers: (x - mean) / scale, and what stands for a missing one.

    What is left open is each client's own: mean, standard deviation and median of its training
    rows.
    """

    min: float | None = None  # what a number may be
    max: float | None = None
    mean: float | None = None
    scale: float | None = Field(None, gt=0)
    fill: float | None = None

    @property
    def fitted(self) -> tuple[float, float, float]:
        """Mean, scale and fill of a column that leaves nothing open."""
        assert self.mean is not None, "fitted before it is used"
        assert self.scale is not None, "goes with the mean"
        assert self.fill is not None, "fitted with the others"
        return self.mean, self.scale, self.fill


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value


# What a class or a category is called: 0 and 1, true and false are names, too.
Name = Annotated[str, BeforeValidator(_as_text)]


class Schema(_Strict):
    """What the columns of a table are."""

    target: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    classes: list[Name] = Field(default_factory=list)  # of the target; empty: those of the data
    positive: Name | None = None  # the class that is looked for, of two
    target_mean: list[float] = Field(default_factory=list)  # of targets that are numbers
    target_scale: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    client: str | None = None  # the column that names a row's site
    group: str | None = None  # rows of one patient are never divided
    domain: str | None = None
    split: str | None = None  # train, validation or test
    drop: list[str] = Field(default_factory=list)  # columns that are not inputs
    missing: list[str] = Field(default_factory=list)  # texts for a missing value, beside the usual
    numeric: dict[str, Numeric] = Field(default_factory=dict)
    categorical: dict[str, list[Name]] = Field(default_factory=dict)  # empty: those of the data

    @property
    def roles(self) -> dict[str, str]:
        """The columns that are neither inputs nor targets, by what they are."""
        found = {role: getattr(self, role) for role in ("client", "group", "domain", "split")}
        return {role: column for role, column in found.items() if column is not None}

    @property
    def open_categories(self) -> list[str]:
        """The columns whose categories the data has yet to say."""
        return [name for name, categories in self.categorical.items() if not categories]

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return len(self.numeric) + sum(map(len, self.categorical.values()))

    @property
    def target_scaling(self) -> tuple[list[float], list[float]] | None:
        """Agreed means and scales of the targets."""
        return (self.target_mean, self.target_scale) if self.target_mean else None

    def plain(self) -> dict[str, Any]:
        """As JSON or TOML hold it; `from_plain` is the inverse."""
        return self.model_dump(exclude_none=True, exclude_defaults=True)


def from_plain(content: Any, where: str) -> Schema:
    """Check a schema; ``where`` it is from is said of what is wrong."""
    try:
        schema = Schema.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False)  # a misspelt key goes before what it leaves out
        first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = Numeric if first["loc"][0] == "numeric" else Schema
            allowed = ", ".join(known.model_fields)
            near = difflib.get_close_matches(str(first["loc"][-1]), known.model_fields, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UserError(f"{where}: {key}: unknown key{hint}; allowed: {allowed}") from None
        raise UserError(f"{where}: {key}: {first['msg']}") from None
    _check(schema, where)
    return schema


def _check(schema: Schema, where: str) -> None:
    if not schema.numeric and not schema.categorical:
        raise UserError(f"{where}: names no inputs; allowed: columns in [numeric], [categorical]")
    uses = [*schema.target, *schema.roles.values(), *schema.numeric, *schema.categorical]
    for column in uses:
        if uses.count(column) > 1 or column in schema.drop:
            raise UserError(f"{where}: column {column!r} stands in two places; allowed: one")
    for name, numbers in schema.numeric.items():
        if (numbers.mean is None) != (numbers.scale is None):
            raise UserError(f"{where}: numeric.{name}: mean and scale go together")
    for name, names in (("classes", schema.classes), *schema.categorical.items()):
        if len(set(names)) < len(names):
            raise UserError(f"{where}: {name}: each of its names once")
    if schema.positive is not None and schema.classes and schema.positive not in schema.classes:
        raise UserError(
            f"{where}: positive: found {schema.positive!r}; allowed: {', '.join(schema.classes)}"
        )
    targets = {len(schema.target_mean), len(schema.target_scale)}
    if targets not in ({0}, {len(schema.target)}):
        raise UserError(f"{where}: target_mean and target_scale: one number for each target")


def load(path: Path) -> tuple[Schema, str]:
    """The schema in a TOML file, and the SHA-256 of what it says."""
    content, raw = toml.read(path, MAX_FILE, "a schema", "data.schema")
    return from_plain(content, f"data.schema: {path}"), hashlib.sha256(raw).hexdigest()
