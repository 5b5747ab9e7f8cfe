"""The clients' data as the engines train on it: two tensors, and where each client's part lies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pgfed.data import DEFAULT_CLIENTS, partitions
from pgfed.data.dataset import Dataset, Targets
from pgfed.data.partitions import Ints
from pgfed.errors import UserError

__all__ = ["PIXEL_SCALE", "Federation", "Shard", "build", "build_seat"]

# Pixels 0..255 are divided by this, and 1 is subtracted: -1..1.
PIXEL_SCALE = 127.5

_CHUNK = 4_096  # samples moved at a time, so that memory holds no second copy of the data


@dataclass(frozen=True, slots=True)
class Shard:
    """Some samples of one client: a view into the federation's tensors."""

    x: Tensor  # images N x H x W x C, others N x anything; uint8, float32 or int64
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Inputs as float32 (images N x C x H x W, channels last in memory), and targets.

        Integers (tokens) stay what they are.
        """
        if isinstance(index, slice):
            x, y = self.x[index], self.y[index]
        else:
            x, y = self.x.index_select(0, index), self.y.index_select(0, index)
        if x.dtype == torch.uint8:
            x = torch.div(x, PIXEL_SCALE).sub_(1.0)
        elif isinstance(index, slice):
            # Some kernels give other last bits on memory that is aligned otherwise.
            x = x.clone()
        return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), y

    def rows(self, start: int, stop: int) -> Shard:
        """The samples from `start` up to `stop`, as a view."""
        return Shard(self.x[start:stop], self.y[start:stop])

    def class_counts(self, classes: int) -> Tensor:
        """How many samples of each class, as int64; for classes only."""
        return torch.bincount(self.y, minlength=classes)


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
        start, stop = self.bounds[client, part : part + 2].tolist()
        return Shard(self.x[start:stop], self.y[start:stop])

    def pooled(self) -> Shard:
        """Everybody's training data, as one client would hold it."""
        parts = [torch.arange(start, stop) for start, stop in self.bounds[:, :2].tolist()]
        index = torch.cat(parts).to(self.x.device)
        return Shard(self.x[index], self.y[index])

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
) -> Federation:
    """Divide a data set among clients, and each client's samples into train, validation, test."""
    for key, value in (("test_share", test_share), ("validation_share", validation_share)):
        if not 0 <= value < 1:
            raise UserError(f"data.{key}: found {value}; allowed: 0 up to, but not including, 1")
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
    order, bounds = _split(dataset, parts, labels, test_share, validation_share, seed)
    return Federation(
        name=dataset.name,
        x=torch.from_numpy(_gather(dataset.x, order)),
        y=torch.from_numpy(dataset.y[order]),
        bounds=bounds,
        input_shape=dataset.x.shape[1:],
        class_names=dataset.class_names,
        domains=_client_domains(dataset.domain, order, bounds),
        client_labels=labels,
        targets=dataset.targets,
    )


def build_seat(
    dataset: Dataset,
    client: int,
    clients: int,
    *,
    test_share: float,
    validation_share: float,
    seed: int,
) -> Federation:
    """All samples are one client's; the other seats are empty.

    The client's samples are divided as they would be if all clients' data were in one place.
    """
    parts = [np.arange(len(dataset.y))]
    order, own = _split(dataset, parts, None, test_share, validation_share, seed, first=client)
    bounds = np.zeros((clients, 4), dtype=np.int64)
    bounds[client] = own[0]
    return Federation(
        name=dataset.name,
        x=torch.from_numpy(_gather(dataset.x, order)),
        y=torch.from_numpy(dataset.y[order]),
        bounds=bounds,
        input_shape=dataset.x.shape[1:],
        class_names=dataset.class_names,
        targets=dataset.targets,
    )


def _split(
    dataset: Dataset,
    parts: list[Ints],
    labels: NDArray[np.str_] | None,
    test_share: float,
    validation_share: float,
    seed: int,
    first: int = 0,
) -> tuple[Ints, Ints]:
    """The samples in their final order, and the bounds of each client's parts in it.

    ``first`` is the id of the first client.
    """
    n = np.array([len(part) for part in parts], dtype=np.int64)
    samples = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), n)
    position = np.arange(len(samples)) - np.repeat(np.cumsum(n) - n, n)
    random = _keyed_noise(seed, owner + first, position)
    if dataset.split is None:
        order = samples[np.lexsort((random, owner))]
        # The margin undoes rounding: (1 - 0.3) * 10 must be 7.
        n_train = np.maximum(1, np.floor((1 - test_share) * n + 1e-9).astype(np.int64))
    else:
        part = dataset.split[samples] * 2  # train, validation, test: 0, 1, 2
        if dataset.validation is not None:
            part = part + dataset.validation[samples]
        order = samples[np.lexsort((random, part, owner))]
        n_train = n - np.bincount(owner[part == 2], minlength=len(parts))
        held_out = np.bincount(owner[part == 1], minlength=len(parts))
        _check_train(dataset.name, n_train, held_out, labels, first)
    if dataset.validation is None:
        held_out = np.floor(validation_share * n_train + 1e-9).astype(np.int64)
        held_out = np.minimum(held_out, n_train - 1)
    end = np.cumsum(n)
    start = end - n
    bounds = np.stack([start, start + n_train - held_out, start + n_train, end], axis=1)
    return order, bounds


def _check_train(
    name: str, n_train: Ints, held_out: Ints, labels: NDArray[np.str_] | None, first: int
) -> None:
    """``n_train`` counts the validation samples ``held_out``, too."""
    left = n_train - held_out
    if left.min() >= 1:
        return
    client = int(left.argmin())
    only = "only test samples" if not n_train[client] else "only validation and test samples"
    raise UserError(
        f"{name}: client {labels[client] if labels is not None else first + client} has {only} "
        "(its split holds no 'train'); each client needs at least one training sample"
    )


def _keyed_noise(seed: int, owner: Ints, position: Ints) -> NDArray[np.uint64]:
    """A random number per sample from (seed, client, position) alone: no client's split depends
    on another's, and all are drawn at once."""
    key = np.full(len(owner), seed % 2**64, dtype=np.uint64)
    for part in (owner, position):
        key = _mix(key ^ _mix(part.astype(np.uint64)))
    return key


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al., 2014)."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _gather(x: NDArray[Any], order: Ints) -> NDArray[Any]:
    """The samples in order, images with channels last."""
    if x.ndim != 4:
        return np.ascontiguousarray(x[order])
    n, channels, height, width = x.shape
    out = np.empty((n, height, width, channels), dtype=x.dtype)
    for start in range(0, n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        out[rows] = x[order[rows]].transpose(0, 2, 3, 1)
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
