"""Keyed randomness: every stream is named by what it is for, never continued from another one.

What one client, method or scoring pass draws cannot shift what another one gets, and a client's
work can be done again anywhere with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """An independent random stream for (seed, purpose, client, round, epoch)."""
    digest = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, digest, *key))))


@contextmanager
def torch_stream(key: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Dropout and the like draw from torch's global stream: keyed here, put back after."""
    with torch.random.fork_rng(devices=[]):
        seed = int(key.integers(2**62))
        if device.type == "cpu":
            # torch.manual_seed formats a stack trace per kind of device: longer than a small batch.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


def draw_cohort(
    seed: int, round: int, clients: int, cohort: int, keys: Sequence[int] | None = None
) -> list[int]:
    """The sorted ids of the clients of a round: the same for all methods under one seed.

    With ``keys`` each client draws its own lot: that another is not there changes none.
    """
    if keys is None:
        drawn = generator(seed, "cohort", round).choice(clients, size=cohort, replace=False)
        return sorted(int(i) for i in drawn)
    lots = [generator(seed, "lot", round, int(key)).random() for key in keys]
    return sorted(sorted(range(clients), key=lots.__getitem__)[:cohort])


def answers(seed: int, round: int, key: int, availability: float) -> bool:
    """Whether a client that was drawn is there, the same for all methods under one seed."""
    return availability >= 1 or generator(seed, "away", round, key).random() < availability


def further_seed(seed: int, k: int) -> int:
    """The seed of the k-th further initial model, for methods with several."""
    return int(generator(seed, "further start", k).integers(2**31))


@dataclass(frozen=True)
class Rng:
    """The random streams of one client in one round."""

    seed: int
    client: int
    round: int
    key: int | None = None  # in the client's place, where the data names it

    def generator(self, purpose: str, epoch: int = 0) -> np.random.Generator:
        client = self.client if self.key is None else self.key
        return generator(self.seed, purpose, client, self.round, epoch)

    def permutation(self, n: int, purpose: str, epoch: int = 0) -> Tensor:
        return torch.from_numpy(self.generator(purpose, epoch).permutation(n))


@dataclass(frozen=True)
class ServerRng:
    """The random streams of the server in one round: the same for `messages` and `aggregate`."""

    seed: int
    round: int

    def generator(self, purpose: str, client: int = 0) -> np.random.Generator:
        """For what concerns one client, or the round as a whole."""
        return generator(self.seed, f"server {purpose}", client, self.round)
