"""The matrix A of PGFed, stored by the pairs (i, j) that have met.

A_ij weighs client j's risk in client i's objective. It starts at 1/M everywhere and changes only
for pairs that met, so memory follows the number of those and not N squared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def empty(clients: int, cohort: int) -> dict[str, Any]:
    """The server's side: sorted keys i * N + j, their values, and how often i met j."""
    return {
        "clients": clients,
        "alpha_start": 1.0 / cohort,
        "alpha_pairs": torch.empty(0, dtype=torch.int64),
        "alpha": torch.empty(0),
        "meetings": torch.empty(0, dtype=torch.int64),
    }


def empty_row(cohort: int) -> dict[str, Any]:
    """A client's side: the sorted ids it has met, and their values."""
    return {
        "alpha_start": 1.0 / cohort,
        "alpha_ids": torch.empty(0, dtype=torch.int64),
        "alpha": torch.empty(0),
    }


def find(keys: Tensor, values: Tensor, wanted: Tensor, default: float) -> Tensor:
    found = torch.full(wanted.shape, default, device=wanted.device)
    if len(keys):
        at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        found = torch.where(keys[at] == wanted, values[at].to(found.dtype), found)
    return found


def merge(keys: Tensor, new: Tensor, *columns: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Sorted union of the keys, with each column's (old, new) values; new ones win."""
    both = torch.cat([keys, new])
    union, place = torch.unique(both, return_inverse=True)
    merged = []
    for old, fresh in columns:
        out = torch.empty(len(union), dtype=old.dtype, device=old.device)
        out[place[: len(keys)]] = old
        out[place[len(keys) :]] = fresh
        merged.append(out)
    return union, *merged


def matrix(server: Mapping[str, Any], rows: Sequence[int], columns: Tensor) -> Tensor:
    """The dense block of A for these rows and columns."""
    keys = columns.new_tensor(list(rows))[:, None] * server["clients"] + columns
    found = find(server["alpha_pairs"], server["alpha"], keys.flatten(), server["alpha_start"])
    return found.view(keys.shape)


def with_rows(
    server: Mapping[str, Any], columns: Tensor, rows: Mapping[int, Tensor]
) -> dict[str, Any]:
    """The entries of `server` that change when client i reports its row over ``columns``."""
    if not rows or not len(columns):
        return {}
    ids = sorted(rows)
    keys = (columns.new_tensor(ids)[:, None] * server["clients"] + columns).flatten()
    fresh = torch.cat([rows[i] for i in ids])
    met = find(server["alpha_pairs"], server["meetings"], keys, 0.0).to(torch.int64) + 1
    pairs, alpha, meetings = merge(
        server["alpha_pairs"], keys, (server["alpha"], fresh), (server["meetings"], met)
    )
    return {"alpha_pairs": pairs, "alpha": alpha, "meetings": meetings}


def row(state: Mapping[str, Any], ids: Tensor) -> Tensor:
    """A client's own alphas for these ids, as a new tensor."""
    return find(state["alpha_ids"], state["alpha"], ids, state["alpha_start"])


def with_row(state: Mapping[str, Any], ids: Tensor, alpha: Tensor) -> dict[str, Any]:
    """The entries of a client's state that hold its row after the update."""
    keys, values = merge(state["alpha_ids"], ids, (state["alpha"], alpha))
    return {"alpha_start": state["alpha_start"], "alpha_ids": keys, "alpha": values}


DENSE = 2000  # clients up to which the matrix is written out in full


def export(server: Mapping[str, Any]) -> dict[str, Any]:
    """The matrix for files and figures: dense arrays, or the parts of a CSR matrix."""
    n = int(server["clients"])
    keys = server["alpha_pairs"].cpu().numpy()
    values = server["alpha"].cpu().numpy()
    counts = server["meetings"].cpu().numpy()
    start = float(server["alpha_start"])
    if n <= DENSE:
        alpha = np.full((n, n), start, dtype=np.float32)
        alpha.flat[keys] = values
        meetings = np.zeros((n, n), dtype=np.int64)
        meetings.flat[keys] = counts
        return {"alpha": alpha, "start": start, "meetings": meetings, **_last_gradients(server)}
    rows, columns = np.divmod(keys, n)
    pointers = np.searchsorted(rows, np.arange(n + 1))
    return {
        "data": values,
        "indices": columns,
        "indptr": pointers,
        "shape": np.array([n, n]),
        "start": start,
        "meetings": counts,
        **_last_gradients(server),
    }


def _last_gradients(server: Mapping[str, Any]) -> dict[str, Any]:
    """Whose gradients the server holds after the last round, and their inner products.

    With a row of A they tell how much each gradient adds to a client's auxiliary gradient.
    """
    if "gradients" not in server or not 0 < len(server["ids"]) <= DENSE:
        return {}
    gradients = server["gradients"]
    products = gradients @ gradients.T
    return {"last_ids": server["ids"].cpu().numpy(), "last_products": products.cpu().numpy()}
