"""What a history of releases comes to, and the noise for what it may come to: by Opacus.

The number is its PRV accountant's (Gopi, Lee, Wutschitz, NeurIPS 2021), an upper bound; the RDP
accountant (Mironov 2017; Mironov, Talwar, Zhang 2019) beside it is a bracket, and takes its place
where PRV would need too much memory or does not hold.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pgfed.errors import UserError
from pgfed.model.private.policy import GRADIENT

History = Mapping[tuple[float, float], int]  # (sigma, q) -> how many releases
Releases = Mapping[tuple[str, float], int]  # (kind, q) -> how many
Merged = Sequence[tuple[float, float, int]]  # (sigma, q, how many), each pair once

SHARE = 0.2  # of the whole, that sums over all units get beside gradients
POINTS = 2e7  # of PRV's grid, beyond which it is made coarser, then left
WHOLE = [*range(2, 64), 64, 128, 256, 512]  # orders that are quick to compute
NEAR = 0.975  # of the target, that a plan comes to at least
SMALLEST, LARGEST = 0.3, 1e5  # noise multipliers that are tried


@dataclass(frozen=True)
class Spent:
    """What a history comes to."""

    epsilon: float
    delta: float
    accountant: str  # PRV or RDP

    @property
    def shown(self) -> str:
        """Rounded up to two digits after the point."""
        if math.isinf(self.epsilon):
            return "no promise"
        return f"{math.ceil(self.epsilon * 100 - 1e-9) / 100:.2f}"


def check_installed() -> None:
    """Refuse to begin where nothing can be counted."""
    _accountants()


def spent(history: History, delta: float) -> Spent:
    """What these releases come to, in any order."""
    return _spent(tuple(_merged(history)), delta)


@lru_cache(maxsize=4096)
def _spent(merged: tuple[tuple[float, float, int], ...], delta: float) -> Spent:
    if not merged:
        return Spent(0.0, delta, "PRV")
    if any(sigma <= 0 for sigma, _, _ in merged):
        return Spent(math.inf, delta, "none")
    bound = _rdp(merged, delta)
    found = _prv(merged, delta, bound)
    # Outside this bracket something is wrong with the finer number; the coarser one holds.
    if found is None or not bound / 2 <= found <= bound + 0.05:
        return Spent(bound, delta, "RDP")
    return Spent(found, delta, "PRV")


def noise(releases: Releases, sigma: float) -> dict[str, float]:
    """The noise multiplier of each kind, if gradients have ``sigma``.

    Sums over all units get a share of the whole, kinds alike. This only divides: what the result
    comes to, the accountant says.
    """
    gradients = {q: n for (kind, q), n in releases.items() if kind == GRADIENT}
    sums: dict[str, int] = {}
    for (kind, _), n in releases.items():
        if kind != GRADIENT:
            sums[kind] = sums.get(kind, 0) + n
    found = {GRADIENT: sigma} if gradients else {}
    if not sigma or not sums:
        return found | dict.fromkeys(sums, sigma)
    inner = math.expm1(min(1 / sigma**2, 500.0))
    square = sum(n / sigma**2 if q == 1 else n * q**2 * inner for q, n in gradients.items())
    rest = (1 - SHARE) / SHARE / square if gradients else sigma**2
    return found | {kind: math.sqrt(n * len(sums) * rest) for kind, n in sums.items()}


def history(releases: Releases, noises: Mapping[str, float]) -> dict[tuple[float, float], int]:
    """The releases as an accountant knows them: equal ones together."""
    found: dict[tuple[float, float], int] = {}
    for (kind, q), n in releases.items():
        at = (noises[kind], q)
        found[at] = found.get(at, 0) + n
    return found


def planned(releases: Releases, epsilon: float, delta: float) -> tuple[dict[str, float], Spent]:
    """The least noise with which these releases come to no more than (epsilon, delta)."""
    sigma, spent = _least(tuple(sorted(releases.items())), epsilon, delta)
    return noise(releases, sigma), spent


@lru_cache(maxsize=4096)
def _least(
    items: tuple[tuple[tuple[str, float], int], ...], epsilon: float, delta: float
) -> tuple[float, Spent]:
    releases = dict(items)
    if not releases:
        return 0.0, Spent(0.0, delta, "PRV")

    def quick(sigma: float) -> float:
        return _rdp(_merged(history(releases, noise(releases, sigma))), delta, WHOLE)

    def exact(sigma: float) -> Spent:
        return spent(history(releases, noise(releases, sigma)), delta)

    low, high = SMALLEST, LARGEST
    if quick(high) > epsilon:
        raise UserError(
            f"privacy.epsilon: found {epsilon:g}; no noise is enough for "
            f"{sum(releases.values()):,} releases with delta = {delta:g}"
        )
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if quick(middle) <= epsilon else (middle, high)
    # PRV is never begun at little noise, where its grid is large: it comes down from RDP's.
    best, low = exact(high), 0.0
    while best.epsilon < NEAR * epsilon and (not low or high / low > 1.002):
        # Nearly a power of sigma.
        guess = high * max(0.8, min(0.99, (best.epsilon / epsilon) ** 0.7 * 1.004))
        middle = math.sqrt(low * high) if low and guess <= low else guess
        if middle < SMALLEST:
            break
        found = exact(middle)
        if found.epsilon <= epsilon:
            high, best = middle, found
        else:
            low = middle
    return high, best


# -- Opacus ------------------------------------------------------------------------------------


def _merged(found: History) -> list[tuple[float, float, int]]:
    return [(sigma, q, n) for (sigma, q), n in sorted(found.items()) if n]


def _accountants() -> Any:
    try:
        return importlib.import_module("opacus.accountants")
    except ImportError:
        raise UserError(
            "privacy: needs opacus, which counts what leaves: pip install 'pgfed[privacy]'"
        ) from None


def _rdp(merged: Merged, delta: float, orders: Sequence[float] | None = None) -> float:
    cls = _accountants().RDPAccountant
    accountant = cls()
    accountant.history = list(merged)
    alphas = orders or [*cls.DEFAULT_ALPHAS, 64, 128, 256, 512]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "optimal order is the largest alpha": an upper bound
        return float(accountant.get_epsilon(delta, alphas=alphas))


def _prv(merged: Merged, delta: float, bound: float) -> float | None:
    """None where its grid would be too large, or where it fails."""
    steps = sum(n for _, _, n in merged)
    error = max(0.01, 0.002 * bound)
    per_error = 2 * (bound + 3) * math.sqrt(steps * math.log(12e3 / delta) / 2)
    if per_error / error > POINTS:
        error = min(0.1, per_error / POINTS)
    if per_error / error > 1.01 * POINTS:
        return None
    accountant = _accountants().PRVAccountant()
    accountant.history = list(merged)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # q = 1 takes the logarithm of 0
        try:
            found = float(accountant.get_epsilon(delta, eps_error=error, delta_error=delta / 1000))
        except (RuntimeError, ValueError, MemoryError):  # "Discrete mean differs" (opacus #601)
            return None
    return found if math.isfinite(found) else None
