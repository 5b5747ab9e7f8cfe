"""The tables of an experiment file as `pgfed.run` takes them: dictionaries with known keys.

For editors and type checkers: while it runs, `config.tables` decides, with bounds and meaning
(`pgfed settings`). A test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict

from pgfed.data.federation import Federation
from pgfed.model.networks import Factory


class Frame(Protocol):
    """A pandas DataFrame."""

    @property
    def columns(self) -> Any: ...


# A name or KIND:PATH; arrays (x, y) or (x, y, client); a DataFrame; a Federation.
Samples = str | tuple[Any, Any] | tuple[Any, Any, Any] | Frame | Federation


class DataTable(TypedDict, total=False):
    """[data]; unlike in a file, ``dataset`` may be what lies in memory, ``schema`` what it says."""

    dataset: Samples
    clients: int | None
    partition: Literal["dirichlet", "dirichlet-plain", "classes", "iid", "domain", "given"] | None
    alpha: float
    classes_per_client: int
    test_share: float
    validation_share: float
    min_samples: int
    new_clients: float
    seed: int
    image_size: int | None
    skip_bad: bool
    schema: str | Mapping[str, Any] | None
    schema_sha256: str | None
    stratify: Literal["auto"] | bool
    draws: Literal["by-name", "by-number"]


class TaskTable(TypedDict, total=False):
    """[task]"""

    kind: str
    metric: str | None
    metrics: list[str] | None
    positive: str | None
    class_weights: Literal["none", "balanced"] | list[float]
    target_means: list[float] | None
    target_scales: list[float] | None


class ModelTable(TypedDict, total=False):
    """[model]; unlike in a file, ``name`` may be the factory itself."""

    name: str | Factory | None
    head: str | None
    norm: Literal["group", "batch"] | None
    vocabulary: int | None


class TrainTable(TypedDict, total=False):
    """[train]"""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    momentum_policy: Literal["paper", "official"]
    reset_momentum: bool
    optimizer: Literal["sgd", "adamw"]
    weight_decay: float
    clip: float
    schedule: Literal["constant", "cosine"]
    augment: str
    precision: Literal["float32", "bfloat16"]


class ServerTable(TypedDict, total=False):
    """[server]"""

    optimizer: Literal["none", "momentum", "adam"]
    lr: float | None
    beta: float
    beta_2: float
    tau: float


class EngineTable(TypedDict, total=False):
    """[engine]"""

    backend: Literal["serial", "process", "ray"]
    workers: int
    workers_per_device: int
    address: str
    device: str
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "norm-clip"]
    availability: float
    attackers: float
    max_update_norm: float | None
    checkpoint_every: int
    state_memory: str
    compression: Literal["none", "int8", "top-k"]
    top_k: float


class AttackTable(TypedDict, total=False):
    """[attack]"""

    kind: Literal["none", "sign-flip", "scale", "label-flip", "noise"]
    share: float
    strength: float


class OutputTable(TypedDict, total=False):
    """[output]; its ``callbacks`` are an argument of their own."""

    models: Literal["all", "last", "none"]
    keep: Literal["last", "best"]
    keep_state: bool


class PrivacyTable(TypedDict, total=False):
    """[privacy]"""

    epsilon: float | None
    delta: float
    clip: float
    noise_multiplier: float | None
    unit: Literal["record", "group"] | None
    size: int | None
    size_test: int | None
    loss_scale: float | None
    personal: Literal["at-home", "private"]
    participations: int | None
    without: list[str]


class PersonalTable(TypedDict, total=False):
    """[personal]"""

    frame: Literal["none", "serving", "training"]
    blend: float | Literal["auto"]
    refresh: bool
