"""Each client's samples as train | validation | test."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pgfed.data.dataset import Dataset
from pgfed.data.partitions import Ints
from pgfed.errors import NOTES, UserError

Stratify = Literal["auto"] | bool
Noise = NDArray[np.uint64]

LOOKED_AT = 1 << 20  # bytes of samples at a time: they stay in a cache, and may lie in a large file


@dataclass(frozen=True)
class Rules:
    """How samples are divided that the data does not divide itself."""

    test_share: float = 0.25
    validation_share: float = 0.0
    seed: int = 1
    stratify: Stratify = False  # each class divided alike; auto: where it has enough samples

    def __post_init__(self) -> None:
        for key in ("test_share", "validation_share"):
            value = getattr(self, key)
            if not 0 <= value < 1:
                raise UserError(
                    f"data.{key}: found {value}; allowed: 0 up to, but not including, 1"
                )

    def stratified(self, counts: Ints) -> NDArray[np.bool_]:
        """At which clients each class is divided alike; ``counts``: clients x classes."""
        if self.stratify == "auto":
            least: Ints = np.where(counts > 0, counts, self.enough).min(axis=1)
            return least >= self.enough
        return np.full(len(counts), self.stratify)

    @property
    def enough(self) -> int:
        """How many samples of a class give one to test and one to train on."""
        shares = [s for s in (self.test_share, 1 - self.test_share, self.validation_share) if s]
        return int(np.ceil(min(1 / min(shares), 1e9) - 1e-9))


def split(
    dataset: Dataset, parts: list[Ints], rules: Rules, keys: Ints, names: NDArray[Any]
) -> tuple[Ints, Ints]:
    """The samples in their final order, and the bounds of each client's parts in it.

    ``keys`` are the clients' in random draws, ``names`` theirs in messages.
    """
    n = np.array([len(part) for part in parts], dtype=np.int64)
    samples = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), n)
    position = np.arange(len(samples)) - np.repeat(np.cumsum(n) - n, n)
    random = keyed_noise(rules.seed, keys[owner], position)
    if dataset.split is None:
        order, n_train, held_out = _drawn(dataset, samples, owner, n, random, rules)
    else:
        part = dataset.split[samples] * 2  # train, validation, test: 0, 1, 2
        if dataset.validation is not None:
            part = part + dataset.validation[samples]
        order = samples[np.lexsort((random, part, owner))]
        n_train = n - np.bincount(owner[part == 2], minlength=len(parts))
        held_out = np.bincount(owner[part == 1], minlength=len(parts))
        _check_train(dataset.name, n_train, held_out, names)
        if dataset.validation is None:
            held_out = _share(rules.validation_share, n_train)
    end = np.cumsum(n)
    start = end - n
    bounds = np.stack([start, start + n_train - held_out, start + n_train, end], axis=1)
    _warn(dataset, order, bounds)
    return order, bounds


def _share(share: float, n_train: Ints) -> Ints:
    """Of training samples, at least one stays. The margin undoes rounding."""
    held_out: Ints = np.minimum(np.floor(share * n_train + 1e-9).astype(np.int64), n_train - 1)
    return held_out


def _drawn(
    dataset: Dataset, samples: Ints, owner: Ints, n: Ints, random: Noise, rules: Rules
) -> tuple[Ints, Ints, Ints]:
    """The order, and how many of each client's samples are for training and for validation."""
    # The margin undoes rounding: (1 - 0.3) * 10 must be 7.
    n_train = np.maximum(1, np.floor((1 - rules.test_share) * n + 1e-9).astype(np.int64))
    if dataset.group is not None:
        return _by_group(dataset, samples, owner, n, n_train, random, rules)
    place = _places(dataset, samples, owner, len(n), random, rules)
    return (
        samples[np.lexsort((random, *place, owner))],
        n_train,
        _share(rules.validation_share, n_train),
    )


def _places(
    dataset: Dataset, samples: Ints, owner: Ints, clients: int, random: Noise, rules: Rules
) -> list[NDArray[np.float64]]:
    """Where in its client's order a sample belongs, if its class is to be divided like the others.

    The samples of a class stand at equal distances: each stretch of the order has its share.
    """
    if not rules.stratify or dataset.targets != "classes":
        return []
    y = dataset.y[samples]
    classes = len(dataset.class_names)
    cells = owner * classes + y
    counts = np.bincount(cells, minlength=clients * classes)
    chosen = rules.stratified(counts.reshape(clients, classes))
    by_cell = np.lexsort((random, cells))
    first = (np.cumsum(counts) - counts)[cells[by_cell]]
    rank = np.empty(len(samples), dtype=np.int64)
    rank[by_cell] = np.arange(len(samples)) - first
    # Each class begins somewhere: else the rare ones would always be trained on.
    begin = np.empty(len(samples))
    begin[by_cell] = _mix(random[by_cell][first]) / 2.0**64
    return [np.where(chosen[owner], (rank + begin) / counts[cells], 0.0)]


def _by_group(
    dataset: Dataset,
    samples: Ints,
    owner: Ints,
    n: Ints,
    n_train: Ints,
    random: Noise,
    rules: Rules,
) -> tuple[Ints, Ints, Ints]:
    """Whole groups are drawn; parts are as near to their shares as that allows."""
    assert dataset.group is not None, "asked by who has seen it"
    group = np.unique(dataset.group[samples], return_inverse=True)[1].reshape(-1)
    units, first, unit = np.unique(
        owner * (group.max() + 1) + group, return_index=True, return_inverse=True
    )
    size = np.bincount(unit, minlength=len(units))
    whose = owner[first]
    place = _places(dataset, samples[first], whose, len(n), random[first], rules)
    rank = np.empty(len(units), dtype=np.int64)
    in_order = np.lexsort((random[first], *place, whose))
    rank[in_order] = np.arange(len(units))
    order = samples[np.argsort(rank[unit], kind="stable")]
    trained, held_out = np.empty_like(n), np.empty_like(n)
    ends = np.searchsorted(whose[in_order], np.arange(len(n) + 1))
    for i, (start, stop) in enumerate(itertools.pairwise(ends)):
        cuts = np.cumsum(size[in_order[start:stop]])
        trained[i] = _nearest(cuts, n_train[i], alone=rules.test_share == 0)
        inner = cuts[cuts <= trained[i]]
        wanted = trained[i] - int(np.floor(rules.validation_share * trained[i] + 1e-9))
        held_out[i] = trained[i] - _nearest(inner, wanted, alone=rules.validation_share == 0)
    return order, trained, held_out


def _nearest(cuts: Ints, wanted: int, *, alone: bool) -> int:
    """The cut between groups that is nearest; the last is none if there is another."""
    free = cuts if alone or len(cuts) == 1 else cuts[:-1]
    return int(free[np.abs(free - wanted).argmin()])


def _check_train(name: str, n_train: Ints, held_out: Ints, names: NDArray[Any]) -> None:
    """``n_train`` counts the validation samples ``held_out``, too."""
    left = n_train - held_out
    if left.min() >= 1:
        return
    client = int(left.argmin())
    only = "only test samples" if not n_train[client] else "only validation and test samples"
    raise UserError(
        f"{name}: client {names[client]} has {only} (its split holds no 'train'); each client "
        "needs at least one training sample"
    )


def _warn(dataset: Dataset, order: Ints, bounds: Ints) -> None:
    """What stands on both sides of the split tells little about new samples."""
    part = np.zeros(len(order), dtype=np.bool_)
    for start, stop in bounds[:, 2:].tolist():
        part[start:stop] = True
    trained, tested = order[~part], order[part]
    if not len(tested):
        return
    if dataset.group is not None:
        # Two clients may call different patients the same.
        owner = np.repeat(np.arange(len(bounds)), bounds[:, 3] - bounds[:, 0])
        known_groups = set(zip(owner[~part], dataset.group[trained], strict=True))
        both = known_groups & set(zip(owner[part], dataset.group[tested], strict=True))
        if both:
            NOTES.warning(
                f"{dataset.name}: {len(both)} group(s) stand in train and test, as "
                f"{str(min(both)[1])!r}: scores may be too good"
            )
    known = np.unique(_digests(dataset, trained))
    again = int(np.isin(_digests(dataset, tested), known).sum())
    if again:
        NOTES.warning(
            f"{dataset.name}: {again} of {len(tested)} test samples stand in the training data, "
            "too (same input and target): scores may be too good"
        )


def _digests(dataset: Dataset, samples: Ints) -> Noise:
    """A number for each sample, which those with the same input and target share; others do by
    accident only (one pair in 2^64)."""
    found = np.empty(len(samples), dtype=np.uint64)
    together = max(1, LOOKED_AT // (dataset.x[:1].nbytes + dataset.y[:1].nbytes))
    for i in range(0, len(samples), together):
        some = samples[i : i + together]
        found[i : i + together] = _mix(_digest(dataset.x[some])) + _digest(dataset.y[some])
    return found


def _digest(rows: NDArray[Any]) -> Noise:
    """Of each row's bytes: words of eight, each mixed with its place, and added up."""
    raw = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    padded = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
    words = np.ascontiguousarray(padded).view(np.uint64)
    digest: Noise = _mix(words ^ _mix(np.arange(words.shape[1], dtype=np.uint64))).sum(axis=1)
    return digest


# -- keys --------------------------------------------------------------------------------------


def name_key(name: str) -> int:
    """A client's key in random draws by what it is called; a number is its own."""
    if name.isascii() and name.isdecimal() and len(name) <= 18:
        return int(name)
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_noise(seed: int, key: Ints, position: Ints) -> Noise:
    """A random number per sample from (seed, client, position) alone: no client's split depends
    on another's, and all are drawn at once."""
    noise = np.full(len(key), seed % 2**64, dtype=np.uint64)
    for part in (key, position):
        noise = _mix(noise ^ _mix(part.astype(np.uint64)))
    return noise


def _mix(z: Noise) -> Noise:
    """The finalizer of SplitMix64 (Steele et al., 2014)."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
