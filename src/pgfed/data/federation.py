"""The clients' data as the engines train on it: two tensors, and where each client's part lies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pgfed.data import DEFAULT_CLIENTS, partitions
from pgfed.data.dataset import Dataset, Targets
from pgfed.data.files import mapped
from pgfed.data.partitions import Ints
from pgfed.data.splits import Rules, Stratify, name_key, split
from pgfed.data.tables.preparation import prepared
from pgfed.data.tables.schema import Schema
from pgfed.errors import NOTES

__all__ = ["PIXEL_SCALE", "Federation", "Shard", "build", "build_seat", "name_keys"]

# Pixels 0..255 are divided by this, and 1 is subtracted: -1..1.
PIXEL_SCALE = 127.5


@dataclass(frozen=True, slots=True)
class Shard:
    """Some samples of one client: a view into the federation's tensors."""

    x: Tensor  # images N x H x W x C, others N x anything; uint8, float32 or int64
    y: Tensor
    group: Tensor | None = None  # whose a sample is; those of one patient are never divided

    def __len__(self) -> int:
        return self.y.shape[0]  # torch's own len() takes ten times as long

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Inputs as float32 (images N x C x H x W, channels last in memory), and targets.

        Integers (tokens) stay what they are.
        """
        if isinstance(index, slice):
            x, y = self.x[index], self.y[index]
        else:
            x, y = self.x.index_select(0, index), self.y.index_select(0, index)
        if x.dtype == torch.uint8:
            x = _pixels(x)
        elif isinstance(index, slice):
            # Some kernels give other last bits on memory that is aligned otherwise.
            x = x.clone()
        return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), y

    def as_floats(self) -> Shard:
        """The same, with pixels as batches have them: four times the memory."""
        x = _pixels(self.x) if self.x.dtype == torch.uint8 else self.x
        return Shard(x, self.y, self.group)

    def rows(self, start: int, stop: int) -> Shard:
        """The samples from `start` up to `stop`, as a view."""
        group = None if self.group is None else self.group[start:stop]
        return Shard(self.x[start:stop], self.y[start:stop], group)

    def only(self, index: Tensor) -> Shard:
        """These samples, as a copy."""
        group = None if self.group is None else self.group[index.to(self.group.device)]
        return Shard(self.x[index], self.y[index], group)

    def cut(self, at: Callable[[int], int]) -> tuple[Shard, Shard]:
        """The samples before a place, and the rest; ``at`` says the place for so many samples."""
        place = at(len(self))
        return self.rows(0, place), self.rows(place, len(self))

    def class_counts(self, classes: int) -> Tensor:
        """How many samples of each class, as int64; for classes only."""
        return torch.bincount(self.y, minlength=classes)


def _pixels(x: Tensor) -> Tensor:
    return torch.div(x, PIXEL_SCALE).sub_(1.0)


@dataclass(frozen=True)
class Federation:
    """All samples by client, each client's as train | validation | test.

    Nothing is held per client but numbers in arrays: a hundred thousand clients cost a few
    megabytes beyond their samples.
    """

    name: str
    x: Tensor
    y: Tensor
    bounds: Ints  # clients x 4: start, end of train, of validation, of test
    input_shape: tuple[int, ...]  # (C, H, W), (features,) or any other
    class_names: tuple[str, ...]  # one for each output of a model: classes, labels or columns
    domains: NDArray[np.str_] | None = None  # one per client; "mixed" where samples differ
    client_labels: NDArray[np.str_] | None = None  # what a given partition calls its clients
    targets: Targets = "classes"
    schema: Schema | None = None  # of tables: what all clients have in common
    fitted: tuple[Schema, ...] | None = None  # and how each client's inputs were made
    keys: Ints | None = None  # the clients' in random draws; None: their numbers
    stratified: int = 0  # clients whose classes are divided alike
    # Whose each sample is, as a number: rows of one patient. No two clients have one in common.
    group: Ints | None = None

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client: ArrayLike | None = None,
        domain: ArrayLike | None = None,
        split: ArrayLike | None = None,
        class_names: list[str] | tuple[str, ...] | None = None,
        *,
        group: ArrayLike | None = None,
        name: str = "arrays",
        targets: Targets = "classes",
        **options: Any,
    ) -> Federation:
        """From arrays in memory; `options` are those of `build`. With `client`, as it says."""
        dataset = Dataset.from_arrays(
            name,
            x,
            y,
            client=client,
            domain=domain,
            split=split,
            class_names=class_names,
            targets=targets,
            group=group,
        )
        if client is not None:
            options.setdefault("partition", "given")
        elif targets != "classes":
            options.setdefault("partition", "iid")
        return build(dataset, **options)

    def __len__(self) -> int:
        return len(self.bounds)

    def train(self, client: int) -> Shard:
        return self._part(client, 0)

    def validation(self, client: int) -> Shard:
        return self._part(client, 1)

    def test(self, client: int) -> Shard:
        return self._part(client, 2)

    def _part(self, client: int, part: int) -> Shard:
        if not 0 <= client < len(self.bounds):
            raise IndexError(f"client {client} of {len(self.bounds)}")
        return self._all.rows(*self.bounds[client, part : part + 2].tolist())

    @property
    def _all(self) -> Shard:
        group = None if self.group is None else torch.from_numpy(self.group)
        return Shard(self.x, self.y, group)

    def groups(self, client: int, part: int = 0) -> Ints | None:
        """The groups of a client's training samples; of its test samples, ``part`` = 2."""
        start, stop = self.bounds[client, part : part + 2].tolist()
        return None if self.group is None else self.group[start:stop]

    def pooled(self) -> Shard:
        """Everybody's training data, as one client would hold it."""
        parts = [torch.arange(start, stop) for start, stop in self.bounds[:, :2].tolist()]
        return self._all.only(torch.cat(parts).to(self.x.device))

    def example(self) -> Tensor:
        """Two inputs as batches have them, for a model to be tried on: the first training samples.

        Without any data, as at the server of a real federation, they are zeros.
        """
        first = next((i for i, n in enumerate(self.n_train.tolist()) if n), None)
        if first is None or not len(self.x):
            dtype = torch.float32 if self.x.dtype == torch.uint8 else self.x.dtype
            return torch.zeros(2, *self.input_shape, dtype=dtype, device=self.x.device)
        x, _ = self.train(first).batch(slice(0, 2))
        return x if len(x) == 2 else torch.cat([x, x])

    def trains_on(self, client: int) -> int:
        """How many samples; among very many clients faster than `n_train`, which has all."""
        return int(self.bounds[client, 1] - self.bounds[client, 0])

    def key(self, client: int) -> int:
        """A client's in random draws: its number, or what follows from its name."""
        return client if self.keys is None else int(self.keys[client])

    @property
    def positive(self) -> str | None:
        """The class that is looked for, as the schema of a table says."""
        return None if self.schema is None else self.schema.positive

    @property
    def target_scaling(self) -> tuple[list[float], list[float]] | None:
        """Means and scales of the targets, where a schema agrees on them."""
        return None if self.schema is None else self.schema.target_scaling

    # Not cached: in a federation of real sites, bounds change as sites join.
    @property
    def n_train(self) -> Ints:
        return self.bounds[:, 1] - self.bounds[:, 0]

    @property
    def n_validation(self) -> Ints:
        return self.bounds[:, 2] - self.bounds[:, 1]

    @property
    def n_test(self) -> Ints:
        return self.bounds[:, 3] - self.bounds[:, 2]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the samples, labels and bounds: equal data, equal fingerprint."""
        digest = hashlib.sha256()
        for array in (self.x.cpu().numpy(), self.y.cpu().numpy(), self.bounds):
            digest.update(f"{array.dtype.str} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def between(self, first: int, last: int) -> Federation:
        """The clients from ``first`` up to, but not including, ``last``, and their samples only."""
        bounds = self.bounds[first:last]
        start, stop = int(bounds[0, 0]), int(bounds[-1, 3])
        return replace(
            self,
            x=self.x[start:stop],
            y=self.y[start:stop],
            bounds=bounds - start,
            domains=None if self.domains is None else self.domains[first:last],
            client_labels=None if self.client_labels is None else self.client_labels[first:last],
            fitted=None if self.fitted is None else self.fitted[first:last],
            keys=None if self.keys is None else self.keys[first:last],
            group=None if self.group is None else self.group[start:stop],
        )

    def share_memory_(self) -> Federation:
        """Move the samples to shared memory, for worker processes; returns self."""
        for tensor in (self.x, self.y):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with its samples on a device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def counts(self) -> Ints | None:
        """Samples of each class (columns) at each client (rows), in all three parts.

        None where what is predicted is not one class per sample.
        """
        if self.targets != "classes":
            return None
        classes = len(self.class_names)
        sizes = self.bounds[:, 3] - self.bounds[:, 0]
        owner = np.repeat(np.arange(len(self)), sizes)
        cells = np.bincount(owner * classes + self.y.cpu().numpy(), minlength=len(self) * classes)
        return cells.reshape(len(self), classes)

    def table(self) -> list[dict[str, Any]]:
        """One row per client: sizes, and for classes their number and samples of each."""
        rows = []
        counts = self.counts()
        parts = np.diff(self.bounds, axis=1).tolist()
        for client, (n_train, n_validation, n_test) in enumerate(parts):
            row: dict[str, Any] = {
                "client": client,
                "domain": None if self.domains is None else str(self.domains[client]),
                "n_train": n_train,
                "n_validation": n_validation,
                "n_test": n_test,
            }
            if counts is not None:
                row["classes"] = int(np.count_nonzero(counts[client]))
                row["counts"] = counts[client].tolist()
            if self.client_labels is not None:
                row["label"] = str(self.client_labels[client])
            rows.append(row)
        return rows


def build(
    dataset: Dataset,
    *,
    partition: str = "dirichlet",
    clients: int = DEFAULT_CLIENTS,
    alpha: float = 0.3,
    test_share: float = 0.25,
    validation_share: float = 0.0,
    min_samples: int = 40,
    seed: int = 1,
    classes_per_client: int = 2,
    stratify: Stratify = False,
    by_name: bool = False,
) -> Federation:
    """Divide a data set among clients, and each client's samples into train, validation, test.

    ``by_name``: what is drawn for a client that the data names follows its name, and not its
    number, which others' absence changes.
    """
    rules = Rules(test_share, validation_share, seed, stratify)
    parts = partitions.partition(
        partition,
        dataset,
        clients=clients,
        alpha=alpha,
        seed=seed,
        min_samples=min_samples,
        classes_per_client=classes_per_client,
    )
    labels = None
    if partition == "given" and dataset.client is not None:
        labels = np.unique(dataset.client).astype(np.str_)
    numbers = np.arange(len(parts))
    keys = None if labels is None or not by_name else name_keys(labels)
    names = numbers if labels is None else labels
    order, bounds = split(dataset, parts, rules, numbers if keys is None else keys, names)
    made = _made(dataset, order, bounds)
    counts = made.counts()
    stratified = 0
    if counts is not None and dataset.split is None:
        stratified = int(rules.stratified(counts).sum())
    return replace(
        made,
        stratified=stratified,
        domains=_client_domains(dataset.domain, order, bounds),
        client_labels=labels,
        keys=keys,
    )


def build_seat(
    dataset: Dataset,
    client: int,
    names: Sequence[str],
    *,
    test_share: float,
    validation_share: float,
    seed: int,
    stratify: Stratify = False,
    by_name: bool = False,
) -> Federation:
    """All samples are one client's; the others that are named are not here.

    The client's samples are divided as they would be if all clients' data were in one place.
    """
    rules = Rules(test_share, validation_share, seed, stratify)
    labels = np.array(names, dtype=np.str_)
    keys = name_keys(labels) if by_name else None
    key = np.array([client]) if keys is None else keys[[client]]
    order, own = split(dataset, [np.arange(len(dataset.y))], rules, key, labels[[client]])
    made = _made(dataset, order, own)
    bounds = np.zeros((len(labels), 4), dtype=np.int64)
    bounds[client] = own[0]
    fitted = None if made.fitted is None else made.fitted * len(labels)
    return replace(made, bounds=bounds, fitted=fitted, client_labels=labels, keys=keys)


def name_keys(labels: NDArray[np.str_]) -> Ints | None:
    """The clients' keys in random draws by what they are called; None: they are the numbers."""
    keys = np.array([name_key(str(label)) for label in labels], dtype=np.int64)
    return None if np.array_equal(keys, np.arange(len(keys))) else keys


def _made(dataset: Dataset, order: Ints, bounds: Ints) -> Federation:
    """The samples in order; of a table's rows inputs are made."""
    schema = fitted = None
    if dataset.columns is None:
        x, shape = _gather(dataset.x, order), dataset.x.shape[1:]
    else:
        made = prepared(dataset.columns, dataset.x, order, bounds)
        x, shape, schema, fitted = made.x, made.x.shape[1:], made.schema, made.fitted
        for column, count in made.unseen.items():
            NOTES.warning(
                f"{dataset.name}: {count} rows have a category of {column!r} that is not in the "
                "schema, or in no training row: all zeros for them"
            )
    return Federation(
        name=dataset.name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(dataset.y[order]),
        bounds=bounds,
        input_shape=shape,
        class_names=dataset.class_names,
        targets=dataset.targets,
        schema=schema,
        fitted=fitted,
        group=_groups(dataset, order, bounds),
    )


def _groups(dataset: Dataset, order: Ints, bounds: Ints) -> Ints | None:
    """Two clients may call different patients the same."""
    if dataset.group is None:
        return None
    names, number = np.unique(dataset.group, return_inverse=True)
    owner = np.repeat(np.arange(len(bounds)), bounds[:, 3] - bounds[:, 0])
    return owner * len(names) + number.reshape(-1)[order]


def _gather(x: NDArray[Any], order: Ints) -> NDArray[Any]:
    """The samples in order, images with channels last; on disk if they were."""
    images = x.ndim == 4
    n, *inner = x.shape
    out = mapped.empty(x, (n, *inner[1:], inner[0]) if images else x.shape, x.dtype)
    for rows in mapped.chunks(x):
        out[rows] = x[order[rows]].transpose(0, 2, 3, 1) if images else x[order[rows]]
    return out


def _client_domains(
    domain: NDArray[np.str_] | None, order: Ints, bounds: Ints
) -> NDArray[np.str_] | None:
    if domain is None:
        return None
    names, number = np.unique(domain, return_inverse=True)
    number = number.reshape(-1)[order]
    lowest = np.minimum.reduceat(number, bounds[:, 0])
    highest = np.maximum.reduceat(number, bounds[:, 0])
    return np.where(lowest == highest, names[lowest], "mixed")
