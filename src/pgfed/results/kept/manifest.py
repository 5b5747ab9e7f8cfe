"""manifest.json: what a model file is, how its inputs are prepared, and its checksum."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pgfed.data.federation import Federation
from pgfed.data.tables.schema import Schema, from_plain
from pgfed.engine.storage.durable import write_atomic
from pgfed.errors import UserError

NAME = "manifest.json"
FORMAT = 2
MAX_FILE = 1_000_000_000  # bytes; a federation of a million clients stays below
# What 0.1 (format 1) called the facts of a client.
RENAMED = {"accuracy": "score", "gain_over_local": "gain", "last10": "mean"}

Size = Annotated[int, Field(ge=1, le=2**31)]


class _Part(BaseModel):
    """What is needed is checked; what else stands there is passed on."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)


class File(_Part):
    """A model file beside the manifest."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # never a path
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Client(_Part):
    """A client; without a file its model is not in this folder."""

    client: str  # its name
    id: int = Field(ge=0)
    file: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")


class Normalisation(_Part):
    """What is done to inputs before the model sees them: (x / divide) - subtract."""

    input: Literal["uint8", "float32", "int64"]
    divide: float
    subtract: float


class Manifest(_Part):
    """The models of one method and seed."""

    format: Literal[2]
    method: str
    hyperparameters: dict[str, Any]
    round: int = Field(ge=0)
    seed: int = Field(ge=0)
    metric: str
    task: dict[str, Any] = Field(default_factory=dict)  # [task]; what it does not say is default
    model: str
    model_options: dict[str, str | int] = Field(default_factory=dict)
    head: str
    input_shape: list[Size] = Field(min_length=1, max_length=4)
    classes: list[str] = Field(min_length=1)  # a name for each output
    targets: Literal["classes", "labels", "values", "masks"] = "classes"
    normalisation: Normalisation
    table: dict[str, Any] | None = None  # the schema of a table; each client has its own, fitted
    # Of the federation's classes, where clients' models are corrected from them to their own.
    class_shares: list[float] | None = None
    privacy: dict[str, Any] | None = None  # a site's: what it was trained under, and if covered
    image_size: Size | None = None  # images were resized to this square
    data_fingerprint: str | None = None
    shared: File | None = Field(None, alias="global")
    frozen: File | None = None  # what all models have in common: it was never trained
    clients: list[Client]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.input_shape)

    @property
    def frame(self) -> str:
        """Whether a client's model has its class shares folded in: personal.frame."""
        return str(self.hyperparameters.get("personal", {}).get("frame", "none"))

    @property
    def promised(self) -> str | None:
        """What privacy says of a model in this folder, in words; None where there is none."""
        if self.privacy is None:
            return None
        if not self.privacy.get("covered"):
            return "not covered by privacy: it may reveal training records to whoever uses it"
        known = ", ".join(
            f"{k} {self.privacy[k]}" for k in ("epsilon", "delta") if k in self.privacy
        )
        return f"covered by privacy: {known}, per {self.privacy.get('unit')}"

    def about(self) -> dict[str, Any]:
        """All that is true of each model of the folder."""
        return self.model_dump(by_alias=True, exclude={"shared", "clients"})


def read(folder: Path) -> Manifest:
    """The manifest of a folder of models, or one line about what is wrong with it."""
    path = folder / NAME
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"{path}: larger than {MAX_FILE:,} bytes; not a manifest")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path}: missing; a model file needs the {NAME} that was written beside it"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON; the file is damaged or cut short") from None
    found = content.get("format") if isinstance(content, dict) else None
    if type(found) is not int or found not in (1, FORMAT):
        raise UserError(f"{path}: format {found!r}; this version of pgfed reads 1 and {FORMAT}")
    try:
        return Manifest.model_validate(content if found == FORMAT else _from_format_1(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {where}: {first['msg']}; the file is damaged") from None


def _from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """0.1 knew one metric, and called clients by their numbers."""
    rows = content.get("clients")
    if isinstance(rows, list):
        rows = [_client(row) if isinstance(row, dict) else row for row in rows]
    return {"metric": "accuracy", **content, "format": FORMAT, "clients": rows}


def _client(row: dict[str, Any]) -> dict[str, Any]:
    row = {RENAMED.get(key, key): value for key, value in row.items()}
    number = row.get("client")
    return {**row, "client": str(row.pop("label", None) or number), "id": number}


def fitted_table(federation: Federation, client: int) -> dict[str, Any]:
    """For a client's row: how its inputs were made of the rows of a table."""
    return {} if federation.fitted is None else {"table": federation.fitted[client].plain()}


def table_of(entry: dict[str, Any], folder: Path) -> Schema | None:
    """How a model's inputs are made of the rows of a table, if it was trained on one."""
    content = entry.get("table")
    return None if content is None else from_plain(content, f"{folder / NAME}: table")


def write(folder: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomic(folder / NAME, text)


def complete(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add what was not known of the clients when the models were written."""
    about = read(folder)
    if [(row.client, row.id) for row in about.clients] != [
        (row["client"], i) for i, row in enumerate(rows)
    ]:
        raise UserError(f"{folder / NAME}: not the run's clients; the file is damaged")
    content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    content["clients"] = [
        {**row, **known} for row, known in zip(rows, content["clients"], strict=True)
    ]
    write(folder, content)
