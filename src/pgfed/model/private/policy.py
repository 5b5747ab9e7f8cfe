"""What a site's privacy is made of in one run, and the count of what was given of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["record", "group"]
Personal = Literal["at-home", "private"]

# Kinds of releases: the noisy gradient of a draw, and noisy sums over all units.
GRADIENT = "gradient"
PASS = "pass"  # a gradient and a loss together, as PGFed tells of its risk
LOSSES = "losses"  # of several models, as FedFomo and IFCA compare them
COUNTS = "counts"  # of the classes: once per ledger
SCORES = "scores"  # right or wrong and the loss on test units: once per run, where they leave
ONCE = (COUNTS,)

Releases = Counter[tuple[str, float]]  # (kind, share of the units drawn) -> how many

MARGIN = 1 - 1e-4  # of the bound, for rounding in single precision


@dataclass(frozen=True)
class Policy:
    """What protects one client's units, with numbers that do not depend on them."""

    size: int  # how many units the client says it has
    clip: float  # C, the bound on the gradient of one unit
    noise: Mapping[str, float]  # kind of release -> standard deviation over sensitivity
    loss_scale: float  # L, the bound on one unit's loss where losses are summed
    unit: Unit = "record"
    personal: Personal = "at-home"
    releases: Mapping[tuple[str, float], int] = field(default_factory=dict)  # per participation

    def sigma(self, kind: str) -> float:
        if kind not in self.noise:
            raise Unplanned(f"a release of kind {kind!r} is not in the plan")
        return self.noise[kind]


class Unplanned(Exception):
    """More would leave than the plan has: nothing is sent."""


class Meter:
    """Counts releases."""

    def __init__(self) -> None:
        self.releases: Releases = Counter()

    def add(self, kind: str, q: float = 1.0) -> None:
        self.releases[kind, q] += 1

    def check(self, policy: Policy) -> None:
        """Raise where more was released than planned for one participation."""
        for (kind, q), count in self.releases.items():
            planned = policy.releases.get((kind, q), 0)
            if count > planned:
                raise Unplanned(f"{count} releases ({kind}, q = {q:g}); planned: {planned}")
