"""The experiment file: what is run, on which data, with which settings.

Every key has a default; the defaults together are the built-in experiment. Importing this module
does not import torch.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pgfed.config.schema import Table, check, shown
from pgfed.data import DEFAULT_CLIENTS as DEFAULT_CLIENTS
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms

if TYPE_CHECKING:
    from pgfed.methods.contract import Algorithm

FORMAT: Literal[2] = 2  # of experiment files and run folders; those without a number are 0.1's
LAST = 10  # rounds, the last ones, that are always scored: every table leads with their mean
MAX_FILE = 1_000_000  # bytes; a file beyond this is not an experiment
IN_MEMORY = "memory"  # data.dataset of a run on arrays that were passed from Python
BASE = "base"  # the key of a [method.NAME] that makes NAME a variant of another method

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]


class Data(Table):
    """Which samples, and who holds them."""

    dataset: str = "digits"  # a name of `pgfed datasets`, npz:PATH or folder:PATH
    # Defaults: as the data says where it names each sample's client, otherwise 20 and dirichlet.
    clients: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    partition: (
        Literal["dirichlet", "dirichlet-plain", "classes", "iid", "domain", "given"] | None
    ) = None
    alpha: float = Field(0.3, gt=0)  # concentration of the Dirichlet partitions
    classes_per_client: Count = 2  # of the partition by classes
    test_share: float = Field(0.25, ge=0, lt=1)  # overridden by a split in the data
    validation_share: float = Field(0.0, ge=0, lt=1)  # of each client's training data
    min_samples: int = Field(40, ge=0, le=10**9)  # redraw until each client has that many
    # Share of the clients, the last ones, that take no part: they join after the training.
    new_clients: float = Field(0.0, ge=0, lt=1)
    seed: Seed = 1  # of the partition and of the split
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None  # for folders of images

    def first_new(self, clients: int) -> int:
        """The id of the first of the new clients; all that follow are new, too."""
        return clients - (max(1, int(self.new_clients * clients + 1e-9)) if self.new_clients else 0)


class Model(Table):
    """The network that every client trains."""

    name: str | None = None  # cnn, mlp or package.module:factory; cnn from 16x16 pixels on
    head: str | None = None  # the part that is the classifier; the last nn.Linear


class Train(Table):
    """Local training; a [method.NAME] may override each key."""

    epochs: Count = 5
    batch_size: int = Field(10, ge=0, le=10**9)  # 0: the whole training set in one batch
    lr: float = Field(0.005, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    momentum_policy: Literal["paper", "official"] = "paper"
    reset_momentum: bool = False


class Engine(Table):
    """Where the clients' work is done, and what becomes of their replies."""

    backend: Literal["serial", "process", "ray"] = "process"
    workers: int = Field(0, ge=0, le=1024)  # 0: one per core
    address: str = ""  # of a Ray cluster; empty: one of our own, on this machine
    device: str = "cpu"
    # How replies become one; all but mean withstand a share of attackers.
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "norm-clip"] = "mean"
    attackers: float = Field(0.2, gt=0, lt=0.5)  # the share trimmed-mean and krum reckon with
    # Replies whose step or gradient is longer are dropped.
    max_update_norm: Annotated[float, Field(gt=0)] | None = None
    checkpoint_every: Count = 1  # rounds; the last one is always saved
    state_memory: str = "2GiB"  # clients' states in memory; what is beyond goes to disk

    @field_validator("state_memory")
    @classmethod
    def _size(cls, text: str) -> str:
        if not re.fullmatch(r"\d{1,9} ?(B|kB|KiB|MB|MiB|GB|GiB)", text):
            raise ValueError("allowed: a size such as 512MiB or 2GiB")
        return text

    @property
    def memory(self) -> int:
        """state_memory in bytes."""
        number, unit = re.fullmatch(r"(\d+) ?(\w+)", self.state_memory).groups()  # type: ignore[union-attr]
        powers = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
        powers |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        return int(number) * powers[unit]


class Attack(Table):
    """Some clients simulate an attack: scores are then those of the honest ones."""

    kind: Literal["none", "sign-flip", "scale", "label-flip", "noise"] = "none"
    share: float = Field(0.2, gt=0, lt=1)  # of the clients
    strength: float = Field(10.0, gt=0, le=1e6)  # how much longer the false update is


class Output(Table):
    """What the run folder keeps."""

    models: Literal["all", "last", "none"] = "all"  # of every seed, of the last one, or none
    # Of which round: the last one, or the one with the best mean accuracy on validation data.
    keep: Literal["last", "best"] = "last"


class Experiment(Table):
    """A whole experiment file."""

    format: Literal[1, 2] = FORMAT  # of the file: 1 has the defaults of 0.1
    name: str = "digits"  # by default named after the data
    seeds: list[Seed] = Field([0], min_length=1)
    rounds: Count = 40
    cohort: float = Field(0.25, gt=0, le=1)  # share of the clients drawn per round
    methods: list[str] = Field(
        ["local", "fedavg", "fedavg-local", "pgfed", "pgfed-mo", "pgfed-ce"], min_length=1
    )
    evaluate_every: Count = 1  # rounds; the last ten are always scored
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    method: dict[str, dict[str, Any]] = {}
    engine: Engine = Engine()
    attack: Attack = Attack()
    output: Output = Output()
    sweep: dict[str, Any] = Field({}, exclude=True)  # grids, which only `pgfed sweep` reads

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        _check_folder("name", name)
        return name

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise UserError(f"seeds: found {shown(seeds)}; allowed: each seed once")
        return seeds

    @model_validator(mode="after")
    def _methods_exist(self) -> Self:
        own = {algorithms.folder(name) for name in self.methods if ":" in name}
        for name, table in self.method.items():
            if BASE in table:
                _check_variant(name, table[BASE], {*algorithms.METHODS, *own})
        for name in self.methods:
            if ":" not in self.base(name) and self.base(name) not in algorithms.METHODS:
                variants = [v for v, table in self.method.items() if BASE in table]
                known = [*algorithms.METHODS, *variants, "package.module:Class"]
                raise unknown("methods", name, known)
        folders = [algorithms.folder(name) for name in self.methods]
        for folder in folders:
            if folders.count(folder) > 1:
                raise UserError(f"methods: found {folder!r} twice; allowed: each method once")
        return self

    def base(self, name: str) -> str:
        """The method that ``name`` is a variant of; for any other method itself."""
        base: str = self.method.get(name, {}).get(BASE, name)
        return base

    def cohort_size(self, clients: int) -> int:
        """M, the number of clients drawn per round."""
        return max(1, int(self.cohort * clients + 1e-9))

    def document(self) -> dict[str, Any]:
        """As nested plain values, for TOML: what has no value is left out.

        Complete, so that it means the same in any format: always written in the newest.
        """
        document: dict[str, Any] = _without_none(self.model_dump())
        return {**document, "format": FORMAT}


def of_run(folder: Path) -> Experiment:
    """The experiment of a run folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of a run")
    if not (folder / "experiment.toml").is_file():
        raise UserError(f"{folder}: not a run folder (it holds no experiment.toml)")
    if (folder / "federation.toml").is_file():
        raise UserError(f"{folder}: holds a federation; its run is {folder / 'run'}")
    return load(folder / "experiment.toml")


def data_root(given: str | Path | None) -> Path:
    """Where the data sets' files lie: as given, else $PGFED_DATA, else ./data."""
    return Path(given or os.environ.get("PGFED_DATA") or "data").expanduser()


def load(path: Path | None, overrides: Sequence[str] = (), *, smoke: bool = False) -> Experiment:
    """Read an experiment file, or take the built-in experiment, and apply `--set key=value`.

    ``smoke`` makes it small before that: the same methods and settings in about ten seconds.
    """
    content: dict[str, Any] = {} if path is None else {"format": 1, **_read(path)}
    if path is not None and "name" not in content:
        content["name"] = _folder_name(path.stem)
    if smoke:
        content = _small(from_dict(content))
        if path is None:
            del content["name"]  # an override may name the data that names it
    for override in overrides:
        _apply(content, override)
    experiment = from_dict(content)
    if smoke and "name" not in content:
        return experiment.model_copy(update={"name": _smoke(experiment.name)})
    return experiment


def from_dict(content: Mapping[str, Any]) -> Experiment:
    """Check everything that can be checked without the data and without loading a method."""
    experiment = check(Experiment, content)
    known = {*algorithms.METHODS, *map(algorithms.folder, experiment.methods)}
    for name, table in experiment.method.items():
        if name not in known and BASE not in table:
            raise unknown("method", name, known)
    if "name" not in content:
        name = _data_name(experiment.data.dataset)
        experiment = experiment.model_copy(update={"name": name})
    return experiment


def _data_name(dataset: str) -> str:
    """What an experiment on this data is called, unless it has a name."""
    kind, _, path = dataset.partition(":")
    if kind == "npz":
        return _folder_name(Path(path).stem)
    if kind == "folder":  # absolute, since `folder:.` has a name too
        return _folder_name(os.path.basename(os.path.abspath(os.path.expanduser(path))))
    return _folder_name(dataset)


def _folder_name(text: str) -> str:
    """The text as far as `_check_folder` lets it pass."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "experiment"


def make_methods(experiment: Experiment) -> tuple[dict[str, Algorithm], Experiment]:
    """folder -> method, and the experiment with every field of the methods it runs spelled out."""
    from pgfed.config.settings import make

    made: dict[str, Algorithm] = {}
    tables: dict[str, dict[str, Any]] = {}
    run = {algorithms.folder(name): name for name in experiment.methods}
    # A table of a method that is not run is checked too: a misspelt key in it is still a mistake.
    for folder in [*run, *(name for name in experiment.method if name not in run)]:
        base = experiment.base(run.get(folder, folder))
        table = experiment.method.get(folder, {})
        own = {}
        if BASE in table:  # a variant differs from its base in what its table says, and only there
            own = {BASE: base}
            table = {**experiment.method.get(algorithms.folder(base), {}), **table}
            del table[BASE]
        method, complete = make(algorithms.get(base), table, experiment.train, f"method.{folder}")
        if folder in run:
            made[folder], tables[folder] = method, {**own, **complete}
    return made, experiment.model_copy(update={"method": tables})


def _check_variant(name: str, base: object, methods: set[str]) -> None:
    at = f"method.{name}.{BASE}"
    if name in methods:
        raise UserError(f"{at}: {name!r} is a method; give its variant a name of its own")
    _check_folder("method", name)
    if not isinstance(base, str) or (":" not in base and base not in algorithms.METHODS):
        raise unknown(
            at,
            base if isinstance(base, str) else shown(base),
            [*algorithms.METHODS, "package.module:Class"],
        )


def _check_folder(key: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(
            f"{key}: found {shown(name)}; allowed: letters, digits, '.', '_' and '-' "
            "(it names a folder)"
        )


def _smoke(name: str) -> str:
    return f"{name[:90]}-smoke"


def _small(experiment: Experiment) -> dict[str, Any]:
    """The experiment on built-in data, with few clients and rounds: everything still happens."""
    content = {**experiment.document(), "sweep": experiment.sweep}
    domains = experiment.data.partition == "domain"
    content["name"] = _smoke(experiment.name)
    # The fewer methods, the more rounds: pairs of clients meet, and it takes as long.
    content["rounds"] = min(experiment.rounds, max(4, min(48 // len(experiment.methods), 10)))
    content["seeds"] = experiment.seeds[:2]
    content["data"] |= {
        "dataset": "digits-styles" if domains else "digits",
        "clients": 8 if domains else 12,
        "test_share": 0.7,  # few samples to train on: quick; many to test on: steady
        "min_samples": 40,
    }
    content["output"]["models"] = "last"
    if experiment.data.partition == "given":
        content["data"]["partition"] = "dirichlet"
    content["data"].pop("image_size", None)
    if experiment.model.name == "cnn":  # the images are too small for it
        del content["model"]["name"]
    return content


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_FILE:
        raise UserError(f"{path}: larger than {MAX_FILE:,} bytes; not an experiment file")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file (TOML is UTF-8)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, leaf = [part.strip() for part in key.split(".")]
    if not equals or not leaf or not all(tables):
        raise UserError(f"--set: found {shown(override)}; allowed: key=value or table.key=value")
    for depth, table in enumerate(tables):
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {key.strip()}: {'.'.join(tables[: depth + 1])!r} is no table")
        content = inner
    content[leaf] = toml_value(text)


def toml_value(text: str) -> Any:
    """A TOML value; what does not parse is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
