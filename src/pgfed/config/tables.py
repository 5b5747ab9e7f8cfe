"""The tables of an experiment file: what each key means, its default and its bounds.

Plain dataclasses: `dataclasses.replace` gives a changed copy, `config.schema.check` reads one from
a file. A bare text beside a type is the key's help. Every key has a default; the defaults together
are the built-in experiment.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

from pgfed.config.privacy import Privacy
from pgfed.config.schema import shown
from pgfed.data import OWN
from pgfed.data.tables.schema import Name
from pgfed.errors import UserError, unknown
from pgfed.methods import registry as algorithms
from pgfed.methods.settings import PersonalConfig, TrainConfig
from pgfed.model.metrics import BY_KIND

FORMAT: Literal[2] = 2  # of experiment files and run folders; those without a number are 0.1's
DEFAULT_COHORT = 0.25
TENSORBOARD = "tensorboard"  # the callback that comes with pgfed
BASE = "base"  # the key of a [method.NAME] that makes NAME a variant of another method

Count = Annotated[int, Ge(1), Le(1_000_000)]
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]


@dataclass(frozen=True)
class Data:
    """Which samples, and who holds them."""

    dataset: Annotated[str, f"a name of `pgfed datasets`, {', '.join(OWN)}"] = "digits"
    clients: Annotated[
        Annotated[int, Ge(1), Le(10_000_000)] | None,
        "how many; by default as many as the data names, otherwise 20",
    ] = None
    partition: Annotated[
        Literal["dirichlet", "dirichlet-plain", "classes", "iid", "domain", "given"] | None,
        "who holds which samples; by default given where the data names each one's client or site, "
        "otherwise dirichlet",
    ] = None
    alpha: Annotated[float, Gt(0), "concentration of the Dirichlet partitions"] = 0.3
    classes_per_client: Annotated[Count, "how many a client has, in the partition by classes"] = 2
    test_share: Annotated[
        float, Ge(0), Lt(1), "of each client's samples, to test on; a split in the data goes first"
    ] = 0.25
    validation_share: Annotated[
        float, Ge(0), Lt(1), "of each client's training data, to choose on; likewise"
    ] = 0.0
    min_samples: Annotated[
        int, Ge(0), Le(10**9), "redraw the partition until each client has that many"
    ] = 40
    new_clients: Annotated[
        float,
        Ge(0),
        Lt(1),
        "share of the clients, the last ones, that take no part: they join after the training",
    ] = 0.0
    seed: Annotated[Seed, "that partition and split are drawn with"] = 1
    image_size: Annotated[
        Annotated[int, Ge(1), Le(4096)] | None, "for folders of images: resize to this square"
    ] = None
    skip_bad: Annotated[bool, "leave out files and rows that cannot be used"] = False
    schema: Annotated[
        str | None, "of tables (csv, parquet): the TOML file that `pgfed data schema` proposes"
    ] = None
    schema_sha256: Annotated[str | None, "of the schema's file, as it was when this ran"] = None
    stratify: Annotated[
        Literal["auto"] | bool,
        "each class divided alike between training and test; auto: where each has enough samples",
    ] = "auto"
    draws: Annotated[
        Literal["by-name", "by-number"],
        "what is drawn for a client that the data names: by-name, as if others were not there",
    ] = "by-name"

    def first_new(self, clients: int) -> int:
        """The id of the first of the new clients; all that follow are new, too."""
        return clients - (max(1, int(self.new_clients * clients + 1e-9)) if self.new_clients else 0)


@dataclass(frozen=True)
class Task:
    """What is predicted, and by which number it is judged."""

    kind: Annotated[
        str,
        "what is predicted: classes, binary, multilabel, regression, segmentation or "
        "package.module:Objective",
    ] = "classes"
    metric: Annotated[
        str | None,
        "the primary one, which all else follows; by default accuracy (classes), auc (binary, "
        "multilabel), r2 (regression), dice (segmentation)",
    ] = None
    metrics: Annotated[
        list[str] | None, "also scored of the kept models, per client; a set by default"
    ] = None
    positive: Annotated[
        Name | None, "of a binary task the class that is looked for; the last when sorted"
    ] = None
    class_weights: Annotated[
        Literal["none", "balanced"] | list[float],
        "of a sample's loss by its class; balanced: by each client's own training counts",
    ] = "none"
    target_means: Annotated[
        list[float] | None,
        "of regression: the means that targets are standardised by; in a simulation those of all "
        "training data",
    ] = None
    target_scales: Annotated[list[float] | None, "of regression: likewise, their scales"] = None

    def __post_init__(self) -> None:
        if ":" not in self.kind and self.kind not in BY_KIND:
            raise unknown("task.kind", self.kind, [*BY_KIND, "package.module:Objective"])


@dataclass(frozen=True)
class Model:
    """The network that every client trains."""

    name: Annotated[
        str | None,
        "cnn, mlp, linear, resnet18, gru, unet-small or package.module:factory; by default "
        "unet-small for masks, gru for tokens, cnn from 16x16 pixels on, otherwise mlp",
    ] = None
    head: Annotated[
        str | None, "the part that is the classifier; the last nn.Linear, or else convolution"
    ] = None
    norm: Annotated[
        Literal["group", "batch"] | None, "of resnet18: how its layers normalise; group by default"
    ] = None
    vocabulary: Annotated[
        Annotated[int, Ge(1), Le(10_000_000)] | None,
        "of gru: how many different tokens there are; in a simulation as many as in the data",
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """What only some models take."""
        given = {"norm": self.norm, "vocabulary": self.vocabulary}
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class Engine:
    """Where the clients' work is done, and what becomes of their replies."""

    backend: Annotated[
        Literal["serial", "process", "ray"],
        "where clients are trained: in this process, in worker processes, on Ray",
    ] = "process"
    workers: Annotated[
        int,
        Ge(0),
        Le(1024),
        "processes that train clients; 0: one per core, or workers_per_device on a GPU",
    ] = 0
    workers_per_device: Annotated[
        int, Ge(1), Le(64), "processes that share a GPU, each with a context of its own on it"
    ] = 1
    address: Annotated[str, "of a Ray cluster; empty: one of its own, on this machine"] = ""
    device: Annotated[str, "that computes: cpu, cuda, mps or xpu"] = "cpu"
    aggregation: Annotated[
        Literal["mean", "median", "trimmed-mean", "krum", "norm-clip"],
        "how replies become one; all but mean withstand a share of attackers",
    ] = "mean"
    availability: Annotated[
        float, Gt(0), Le(1), "share of the drawn clients that answer; the others are away"
    ] = 1.0
    compression: Annotated[
        Literal["none", "int8", "top-k"],
        "of what travels in training: a byte per value both ways, or the largest values up",
    ] = "none"
    top_k: Annotated[float, Gt(0), Le(1), "share of a vector's values that top-k sends"] = 0.05
    attackers: Annotated[
        float, Gt(0), Lt(0.5), "the share that trimmed-mean and krum reckon with"
    ] = 0.2
    max_update_norm: Annotated[
        Annotated[float, Gt(0)] | None, "replies whose step or gradient is longer are dropped"
    ] = None
    checkpoint_every: Annotated[
        Count,
        "rounds from checkpoint to checkpoint, or more where they are shorter than writing one; "
        "the last one is always saved",
    ] = 1
    state_memory: Annotated[
        str, "clients' states in memory, as 512MiB; what is beyond goes to disk"
    ] = "2GiB"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d{1,9} ?(B|kB|KiB|MB|MiB|GB|GiB)", self.state_memory):
            raise UserError(
                f"engine.state_memory: found {shown(self.state_memory)}; allowed: a size such as "
                "512MiB or 2GiB"
            )

    @property
    def memory(self) -> int:
        """state_memory in bytes."""
        number, unit = re.fullmatch(r"(\d+) ?(\w+)", self.state_memory).groups()  # type: ignore[union-attr]
        powers = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
        powers |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        return int(number) * powers[unit]


@dataclass(frozen=True)
class Server:
    """How the server's model follows the mean of a round's replies."""

    optimizer: Annotated[
        Literal["none", "momentum", "adam"], "none: the mean itself; FedAvgM, FedAdam"
    ] = "none"
    lr: Annotated[
        Annotated[float, Gt(0)] | None, "its step; by default 1 with momentum, 0.01 with adam"
    ] = None
    beta: Annotated[float, Ge(0), Lt(1), "momentum; of adam beta_1"] = 0.9
    beta_2: Annotated[float, Ge(0), Lt(1), "of adam's squares"] = 0.99
    tau: Annotated[float, Gt(0), "of adam: how far it adapts; 1e-3 to 1e-1"] = 1e-3


@dataclass(frozen=True)
class Attack:
    """Some clients simulate an attack: scores are then those of the honest ones."""

    kind: Annotated[
        Literal["none", "sign-flip", "scale", "label-flip", "noise"], "what the attackers do"
    ] = "none"
    share: Annotated[float, Gt(0), Lt(1), "of the clients that attack"] = 0.2
    strength: Annotated[float, Gt(0), Le(1e6), "how much longer the false update is"] = 10.0


@dataclass(frozen=True)
class Output:
    """What the run folder keeps."""

    models: Annotated[
        Literal["all", "last", "none"],
        "which are kept: those of every seed, of the last one, or none",
    ] = "all"
    keep: Annotated[
        Literal["last", "best"],
        "models of which round: the last, or the one with the best mean score on validation data",
    ] = "last"
    keep_state: Annotated[
        bool, "keep what is needed to go on for more rounds (`pgfed resume DIR --rounds N`)"
    ] = False
    callbacks: Annotated[
        list[str], "who is told of each round: tensorboard, or package.module:Class of your own"
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.callbacks:
            if name != TENSORBOARD and ":" not in name:
                raise unknown("output.callbacks", name, [TENSORBOARD, "package.module:Class"])


DEFAULT_METHODS = ("local", "alone", "fedavg", "fedavg-local", "fedavg-framed", "pgfed")


@dataclass(frozen=True)
class Experiment:
    """A whole experiment file."""

    format: Annotated[
        Literal[1, 2], "of this file; 1, and a file without it, has the defaults of 0.1"
    ] = FORMAT
    name: Annotated[
        str, "of the experiment, and of its folder in runs/; by default named after the data"
    ] = "digits"
    seeds: Annotated[list[Seed], MinLen(1), "each runs all methods once"] = field(
        default_factory=lambda: [0]
    )
    rounds: Annotated[Count, "of training, in each of which a cohort of clients takes part"] = 40
    cohort: Annotated[
        Annotated[float, Gt(0), Le(1)] | None,
        "share of the clients drawn per round: 0.25, or 1.0 where the data names fewer than ten",
    ] = None
    methods: Annotated[
        list[str], MinLen(1), "names of `pgfed methods`, of a [method.NAME], package.module:Class"
    ] = field(default_factory=lambda: list(DEFAULT_METHODS))
    evaluate_every: Annotated[
        Count, "all models are scored every so many rounds, and in each of the last ten"
    ] = 1
    start_from: Annotated[
        str | None, "the folder of an earlier run: each client begins with its own model of it"
    ] = None
    data: Data = field(default_factory=Data)
    task: Task = field(default_factory=Task)
    model: Model = field(default_factory=Model)
    train: TrainConfig = field(default_factory=TrainConfig)
    personal: PersonalConfig = field(default_factory=PersonalConfig)
    method: dict[str, dict[str, Any]] = field(default_factory=dict)
    privacy: Privacy = field(default_factory=Privacy)
    server: Server = field(default_factory=Server)
    engine: Engine = field(default_factory=Engine)
    attack: Attack = field(default_factory=Attack)
    output: Output = field(default_factory=Output)
    sweep: dict[str, Any] = field(default_factory=dict)  # grids, which only `pgfed sweep` reads

    def __post_init__(self) -> None:
        check_folder("name", self.name)
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds: found {shown(self.seeds)}; allowed: each seed once")
        self._check_methods()
        for name in self.privacy.without:
            if name not in self.methods:
                raise unknown("privacy.without", name, self.methods)

    def _check_methods(self) -> None:
        own = {algorithms.folder(name) for name in self.methods if ":" in name}
        for name, table in self.method.items():
            if BASE in table:
                _check_variant(name, table[BASE], {*algorithms.NAMES, *own})
        for name in self.methods:
            if ":" not in self.base(name) and self.base(name) not in algorithms.NAMES:
                variants = [v for v, table in self.method.items() if BASE in table]
                known = [*algorithms.NAMES, *variants, "package.module:Class"]
                raise unknown("methods", name, known)
        folders = [algorithms.folder(name) for name in self.methods]
        for folder in folders:
            if folders.count(folder) > 1:
                raise UserError(f"methods: found {folder!r} twice; allowed: each method once")

    def base(self, name: str) -> str:
        """The method that ``name`` is a variant of; for any other method itself."""
        base: str = self.method.get(name, {}).get(BASE, name)
        return base

    def cohort_size(self, clients: int) -> int:
        """M, the number of clients drawn per round."""
        share = DEFAULT_COHORT if self.cohort is None else self.cohort
        return max(1, int(share * clients + 1e-9))

    def values(self) -> dict[str, Any]:
        """As nested plain values; without [sweep], which is no part of what is run."""
        found = asdict(self)
        del found["sweep"]
        return found

    def document(self) -> dict[str, Any]:
        """For TOML: what has no value is left out.

        Complete, so that it means the same in any format: always written in the newest.
        """
        document: dict[str, Any] = _without_none(self.values())
        return {**document, "format": FORMAT}


def check_folder(key: str, name: str) -> None:
    """Refuse what cannot name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(
            f"{key}: found {shown(name)}; allowed: letters, digits, '.', '_' and '-' "
            "(it names a folder)"
        )


def _check_variant(name: str, base: object, methods: set[str]) -> None:
    at = f"method.{name}.{BASE}"
    if name in methods:
        raise UserError(f"{at}: {name!r} is a method; give its variant a name of its own")
    check_folder("method", name)
    if not isinstance(base, str) or (":" not in base and base not in algorithms.NAMES):
        raise unknown(
            at,
            base if isinstance(base, str) else shown(base),
            [*algorithms.NAMES, "package.module:Class"],
        )


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
