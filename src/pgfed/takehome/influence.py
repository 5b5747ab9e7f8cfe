"""`pgfed why`: which clients' risks a client's model weighed most."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgfed.errors import UserError
from pgfed.report.figures.colours import BLUE, GREEN, VERMILLION
from pgfed.results.folder import layout
from pgfed.results.folder.reader import finished_run
from pgfed.results.runs import RunData, client_title
from pgfed.results.statistics import Pairs
from pgfed.takehome.figures import drawing

_CARE = "Read it with care: "
_NO_PROOF = "and a large weight does not prove that those data helped."
# By alpha_gradient. With the mean gradient client i moves alpha_ij by the same amount for all j,
# but for a number that client j sent to everybody.
LIMITS = {
    "mean": f"{_CARE}within a round the weights move in the same order for every client, by a "
    "number that depends on the weighed client alone, so clients' weights differ only by who met "
    f"whom, how many steps each took and what was cut at 0, {_NO_PROOF}",
    "exact": f"{_CARE}a weight falls by an estimate of this client's loss on the other's data, the "
    f"more often the two met and the more steps this client took, {_NO_PROOF}",
}
MOST = 20  # rows shown


@dataclass(frozen=True)
class Weight:
    """What client i made of client j's risk."""

    client: int
    name: str
    n_train: int
    met: int  # rounds in which i trained with j's gradient
    weight: float  # A_ij at the end
    change: float  # against its start
    share: float | None  # of the last auxiliary gradient; None: j took no part in it


@dataclass(frozen=True)
class Reasons:
    client: int
    name: str
    method: str
    seed: int
    start: float  # 1/M
    weights: list[Weight]  # largest first
    has_gradient: bool  # is there a last auxiliary gradient?
    limits: str  # of what can be read from it

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def why(run: RunData, client: int | str, *, method: str | None, seed: int | None) -> Reasons:
    """The row of A, the parts of the last auxiliary gradient, and how often they met."""
    chosen = layout.choose_seed(run.experiment, seed)
    if method is None:
        name = _pgfed(run, chosen)
    else:
        name = layout.choose_method(run.experiment, run.path, method)
    found = finished_run(run, name, chosen)
    client = layout.choose_client(run.clients.names, client)
    pairs = found.alpha
    if found.matrix is None or pairs is None:
        raise UserError(f"method: {name} learns no matrix of weights; the PGFed family does")
    path = layout.seed_folder(run.path, name, chosen) / layout.ALPHA
    shares = _checked_shares(path, pairs, found.matrix, client)
    mine = pairs.row == client
    change = dict(zip(pairs.column[mine].tolist(), pairs.change[mine].tolist(), strict=True))
    met = dict(zip(pairs.column[mine].tolist(), pairs.meetings[mine].tolist(), strict=True))
    weights = [
        Weight(
            client=j,
            name=client_title(run.clients, j),
            n_train=int(run.clients.n_train[j]),
            met=met.get(j, 0),
            weight=pairs.start + change.get(j, 0.0),
            change=change.get(j, 0.0),
            share=shares.get(j),
        )
        for j in sorted({*change, *shares})
    ]
    weights.sort(key=lambda w: (-w.weight, w.client))
    return Reasons(
        client=client,
        name=client_title(run.clients, client),
        method=name,
        seed=chosen,
        start=pairs.start,
        weights=weights,
        has_gradient=bool(shares),
        limits=LIMITS[_gradient(run, name)],
    )


def _pgfed(run: RunData, seed: int) -> str:
    """The first method that learned a matrix."""
    for name, runs in run.runs.items():
        if seed in runs and runs[seed].matrix is not None:
            return name
    raise UserError(
        f"{run.path}: no finished method of the PGFed family with seed {seed}; the others learn "
        "no weights"
    )


def _gradient(run: RunData, method: str) -> str:
    """Whose gradient the weights moved along."""
    exact = run.experiment.method.get(method, {}).get("alpha_gradient") == "exact"
    return "exact" if exact else "mean"


def _checked_shares(
    path: Path, pairs: Pairs, arrays: dict[str, Any], client: int
) -> dict[int, float]:
    """Each gradient's share of the last auxiliary gradient."""
    try:
        return _shares(pairs, arrays, client)
    except Exception as error:  # arrays that do not fit together raise a dozen kinds
        raise UserError(f"{path}: not a matrix of weights ({error})") from None


def _shares(pairs: Pairs, arrays: dict[str, Any], client: int) -> dict[int, float]:
    """g = sum of a_j g_j: the share of a_j g_j is its projection on g over the length of g.

    They add up to one; one that points against the sum is negative.
    """
    if "last_ids" not in arrays:
        return {}
    ids: NDArray[np.int64] = arrays["last_ids"]
    products = arrays["last_products"].astype(np.float64)
    mine = pairs.row == client
    alpha = np.full(pairs.clients, pairs.start)
    alpha[pairs.column[mine]] += pairs.change[mine]
    a = alpha[ids]
    inner = a * (products @ a)
    total = inner.sum()
    if not total > 0:  # all weights are zero: there is no auxiliary gradient
        return dict.fromkeys(ids.tolist(), 0.0)
    return dict(zip(ids.tolist(), (inner / total).tolist(), strict=True))


def figure(reasons: Reasons, path: Path) -> Path:
    """Save the weights and shares as bars (PNG, SVG, PDF)."""
    shown = reasons.weights[:MOST][::-1]
    (left, right), save = drawing(path, (8, 1.6 + 0.3 * len(shown)), columns=2)
    names = [w.name + (" (itself)" if w.client == reasons.client else "") for w in shown]
    left.barh(range(len(shown)), [w.weight for w in shown], color=BLUE)
    left.axvline(reasons.start, color=VERMILLION, linewidth=1)
    left.set_yticks(range(len(shown)), names, fontsize=8)
    left.set_xlabel(f"weight of its risk (line: start, {reasons.start:.3g})")
    right.barh(range(len(shown)), [100 * (w.share or 0.0) for w in shown], color=GREEN)
    right.set_xlabel("share of the last auxiliary gradient, %")
    left.set_title(f"{reasons.name}, {reasons.method}: whose risks it weighed", fontsize=9)
    return save()
