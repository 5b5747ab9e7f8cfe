"""Simulated attacks: some clients send the server false updates, or train on false labels.

For measuring what an attack does and what `engine.aggregation` holds against it. The attackers are
the same clients for all methods under one seed, and do their own local training as ever; only what
leaves them is false. They attack in every round that they are drawn in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pgfed.data.federation import Shard
from pgfed.errors import UserError, unknown
from pgfed.methods.randomness import Rng, generator
from pgfed.methods.values import Kind, Message, Update

ATTACKS = ("sign-flip", "scale", "noise", "label-flip")


@dataclass(frozen=True)
class Attack:
    """The [attack] table.

    - sign-flip: the update points the other way, ``strength`` times as long;
    - scale: the update is ``strength`` times as long;
    - noise: Gaussian noise in the update's place, ``strength`` times as long;
    - label-flip: the client trains with class K - 1 - y for class y.
    """

    kind: str
    share: float = 0.2  # of all clients: at least one, and never all of them
    strength: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in ATTACKS:
            raise unknown("attack.kind", self.kind, ATTACKS)
        if not 0 < self.share < 1:
            raise UserError(f"attack.share: must be between 0 and 1, found {self.share:g}")
        if not 0 < self.strength <= 1e6:
            raise UserError(f"attack.strength: must be > 0 and <= 1e6, found {self.strength:g}")

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """Which clients attack."""
        size = min(clients - 1, max(1, int(self.share * clients + 1e-9)))
        drawn = generator(seed, "attackers").choice(clients, size=size, replace=False)
        return frozenset(int(i) for i in drawn)

    def data(self, data: Shard, classes: int) -> Shard:
        """What an attacker trains on."""
        return replace(data, y=classes - 1 - data.y) if self.kind == "label-flip" else data

    def update(
        self, update: Update, leaves: Mapping[str, Kind], message: Message, rng: Rng
    ) -> Update:
        """What an attacker sends in the place of its update. Counts and rows stay true."""
        if self.kind == "label-flip":
            return update
        return {
            key: value
            if leaves[key] in ("count", "row", "index")
            else self._false(value, message.get(key), rng, key)
            for key, value in update.items()
        }

    def _false(self, value: Any, start: Tensor | None, rng: Rng, key: str) -> Any:
        """The false value for a vector, which moved away from ``start``, or for a number."""
        step = value if start is None else value - start
        if self.kind == "noise":
            step = _noise_like(step, rng, key)
        step = step * (-self.strength if self.kind == "sign-flip" else self.strength)
        return step if start is None else start + step


def _noise_like(step: Any, rng: Rng, key: str) -> Any:
    """Gaussian noise about as long as the step."""
    drawn = rng.generator(f"attack {key}")
    if not isinstance(step, Tensor):
        return step * float(drawn.standard_normal())
    noise = torch.from_numpy(drawn.standard_normal(tuple(step.shape)).astype("float32"))
    return noise.to(step.device) * (float(step.norm()) / max(1, step.numel()) ** 0.5)
