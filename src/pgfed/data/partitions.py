"""Who holds which samples.

Every scheme draws from numpy's legacy generator, whose stream is frozen: a partition depends on
the labels and the seed only, not on the numpy version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from pgfed.data.dataset import Dataset
from pgfed.errors import UserError, unknown

KINDS = ("dirichlet", "dirichlet-plain", "classes", "iid", "domain", "given")
MAX_DRAWS = 1_000

Ints = NDArray[np.int64]


def partition(
    kind: str,
    dataset: Dataset,
    *,
    clients: int,
    alpha: float,
    seed: int,
    min_samples: int,
    classes_per_client: int,
) -> list[Ints]:
    """The sample indices of each client, ascending; every sample belongs to exactly one client.

    With `given`, clients are those of the data in ascending order, and no other option acts.
    """
    if kind not in KINDS:
        raise unknown("data.partition", kind, KINDS)
    if kind == "given":
        if dataset.client is None:
            raise UserError(
                f'data.partition: "given" needs a client for every sample, but {dataset.name} '
                "has none"
            )
        owner = np.unique(dataset.client, return_inverse=True)[1].reshape(-1)
        return _by_owner(owner, int(owner.max()) + 1)
    if dataset.targets != "classes" and kind not in ("iid", "domain"):
        raise UserError(
            f"data.partition: {kind!r} divides by classes, and {dataset.name} has "
            f"{dataset.targets}; allowed: iid, domain, given"
        )
    if dataset.group is None:
        return _by_owner(
            _owner(kind, dataset, clients, alpha, seed, min_samples, classes_per_client), clients
        )
    # Whole groups are drawn, each by its first sample; then `min_samples` counts groups.
    _, first, group = np.unique(dataset.group, return_index=True, return_inverse=True)
    units = replace(
        dataset,
        x=dataset.x[first],
        y=dataset.y[first],
        domain=None if dataset.domain is None else dataset.domain[first],
    )
    owner = _owner(kind, units, clients, alpha, seed, min_samples, classes_per_client)
    return _by_owner(owner[group.reshape(-1)], clients)


def _owner(
    kind: str,
    dataset: Dataset,
    clients: int,
    alpha: float,
    seed: int,
    min_samples: int,
    classes_per_client: int,
) -> Ints:
    _check(dataset, clients, alpha, seed, min_samples)
    rng = RandomState(seed)
    if kind in ("dirichlet", "dirichlet-plain"):
        capped = kind == "dirichlet"
        return _dirichlet(rng, dataset, clients, alpha, min_samples, capped=capped)
    if kind == "classes":
        return _classes(rng, dataset, clients, classes_per_client, min_samples)
    if kind == "iid":
        return _iid(rng, dataset, clients)
    return _domain(rng, dataset, clients, alpha, min_samples)


def _check(dataset: Dataset, clients: int, alpha: float, seed: int, min_samples: int) -> None:
    n = len(dataset.y)
    if clients < 1:
        raise UserError(f"data.clients: found {clients}; allowed: 1 or more")
    if clients > n:
        raise UserError(
            f"data.clients: found {clients}, but {dataset.name} has only {n} samples; "
            f"allowed: 1 to {n}"
        )
    if not 0 < alpha < float("inf"):
        raise UserError(f"data.alpha: found {alpha}; allowed: a number above 0")
    if not 0 <= seed < 2**32:
        raise UserError(f"data.seed: found {seed}; allowed: 0 to {2**32 - 1}")
    if clients * min_samples > n:
        what = "samples" if dataset.group is None else "groups"
        raise UserError(
            f"data.min_samples: found {min_samples}, but {n} {what} over {clients} clients are "
            f"{n // clients} each; allowed: at most that, or fewer data.clients"
        )


def _by_owner(owner: Ints, clients: int) -> list[Ints]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _until(min_samples: int, what: str, clients: int, draw: Callable[[], Ints | None]) -> Ints:
    """Draw again until every client has enough; None is a draw that failed on its own."""
    for _ in range(MAX_DRAWS):
        owner = draw()
        # A client with nothing to train on is no client, whatever `min_samples` says.
        if owner is not None and np.bincount(owner, minlength=clients).min() >= max(1, min_samples):
            return owner
    raise UserError(
        f"data.min_samples: no {what} in {MAX_DRAWS:,} draws gave each of {clients} clients "
        f"{max(1, min_samples)} samples; lower it, use fewer clients or a larger data.alpha"
    )


def _dirichlet(
    rng: RandomState,
    dataset: Dataset,
    clients: int,
    alpha: float,
    min_samples: int,
    *,
    capped: bool,
) -> Ints:
    """Each class is cut by Dirichlet shares; `capped` gives nothing more to clients that already
    hold the average number of samples (the paper's scheme)."""
    n = len(dataset.y)

    def draw() -> Ints | None:
        owner = np.empty(n, dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        for label in range(len(dataset.class_names)):
            members = np.flatnonzero(dataset.y == label)
            rng.shuffle(members)
            shares = rng.dirichlet(np.full(clients, alpha))
            if capped:
                shares = shares * (held < n / clients)
            total = shares.sum()
            if not total > 0:  # a tiny alpha can leave nobody with a share, or no number at all
                return None
            cuts = (np.cumsum(shares / total) * len(members)).astype(np.int64)[:-1]
            pieces = np.diff(cuts, prepend=0, append=len(members))
            owner[members] = np.repeat(np.arange(clients), pieces)
            held += pieces
        return owner

    return _until(min_samples, "Dirichlet partition", clients, draw)


def _classes(
    rng: RandomState, dataset: Dataset, clients: int, per_client: int, min_samples: int
) -> Ints:
    """Each client has `per_client` classes; a class is shared evenly by those who have it."""
    counts = np.bincount(dataset.y, minlength=len(dataset.class_names))
    present = np.flatnonzero(counts)
    if not 1 <= per_client <= len(present):
        raise UserError(
            f"data.classes_per_client: found {per_client}; allowed: 1 to {len(present)}, the "
            f"classes of {dataset.name}"
        )
    if clients * per_client < len(present):
        raise UserError(
            f"data.classes_per_client: {clients} clients with {per_client} each cannot hold all "
            f"{len(present)} classes; allowed: at least {-(-len(present) // clients)}"
        )
    most = -(-clients * per_client // len(present))
    smallest = present[counts[present].argmin()]
    if counts[smallest] < most:
        raise UserError(
            f"data.classes_per_client: class {dataset.class_names[smallest]!r} has "
            f"{counts[smallest]} samples, fewer than the {most} clients that would share it; use "
            "fewer clients or fewer classes per client"
        )

    def draw() -> Ints:
        used = np.zeros(len(present), dtype=np.int64)
        has = np.zeros((clients, len(present)), dtype=bool)
        for client in range(clients):
            # The classes handed out least so far; ties are broken at random.
            chosen = np.lexsort((rng.random_sample(len(present)), used))[:per_client]
            has[client, chosen] = True
            used[chosen] += 1
        owner = np.empty(len(dataset.y), dtype=np.int64)
        for column, label in enumerate(present):
            members = np.flatnonzero(dataset.y == label)
            rng.shuffle(members)
            holders = np.flatnonzero(has[:, column])
            rng.shuffle(holders)  # the first of them get the odd samples
            owner[members] = holders[np.arange(len(members)) % len(holders)]
        return owner

    return _until(min_samples, "partition by classes", clients, draw)


def _iid(rng: RandomState, dataset: Dataset, clients: int) -> Ints:
    """Equal numbers of random samples; sizes differ by one at most."""
    owner = np.empty(len(dataset.y), dtype=np.int64)
    owner[rng.permutation(len(owner))] = np.arange(len(owner)) % clients
    return owner


def _domain(
    rng: RandomState, dataset: Dataset, clients: int, alpha: float, min_samples: int
) -> Ints:
    """Clients divided evenly over the sorted domains; Dirichlet shares per class within each."""
    if dataset.domain is None:
        raise UserError(
            f'data.partition: "domain" needs a domain for every sample, but {dataset.name} has none'
        )
    domains = np.unique(dataset.domain)
    if clients < len(domains):
        raise UserError(
            f"data.clients: found {clients}, fewer than the {len(domains)} domains of "
            f"{dataset.name}; allowed: {len(domains)} or more"
        )
    owner = np.empty(len(dataset.y), dtype=np.int64)
    teams = np.array_split(np.arange(clients), len(domains))
    for domain, team in zip(domains, teams, strict=True):
        members = np.flatnonzero(dataset.domain == domain)
        if len(team) * max(1, min_samples) > len(members):
            raise UserError(
                f"data.min_samples: domain {str(domain)!r} has {len(members)} samples for "
                f"{len(team)} clients of at least {max(1, min_samples)}; lower it or use fewer "
                "clients"
            )
        y, classes = dataset.y[members], len(dataset.class_names)
        if dataset.targets != "classes":  # sizes differ as they do within a class
            y, classes = np.zeros(len(members), dtype=np.int64), 1
        local = _dirichlet_rows(rng, y, classes, len(team), alpha, min_samples)
        owner[members] = team[local]
    return owner


def _dirichlet_rows(
    rng: RandomState, y: Ints, classes: int, clients: int, alpha: float, min_samples: int
) -> Ints:
    """Office-Home's scheme within one domain: a row of shares per class, rounded, without cap."""
    counts = np.bincount(y, minlength=classes)

    def draw() -> Ints | None:
        shares = rng.dirichlet(np.full(clients, alpha), size=classes)
        if not np.isfinite(shares).all() or (counts @ shares).min() < min_samples:
            return None
        wanted = np.rint(shares * counts[:, None]).astype(np.int64)
        cuts = np.minimum(np.cumsum(wanted, axis=1), counts[:, None])
        cuts[:, -1] = counts
        pieces = np.diff(cuts, axis=1, prepend=0)
        if pieces.sum(axis=0).min() < max(1, min_samples):
            return None
        owner = np.empty(len(y), dtype=np.int64)
        for label in range(classes):
            members = np.flatnonzero(y == label)
            rng.shuffle(members)
            owner[members] = np.repeat(np.arange(clients), pieces[label])
        return owner

    return _until(min_samples, "Dirichlet partition of a domain", clients, draw)
