"""Which clients stand beside each other in a heat map: by size, or those that are alike."""

from __future__ import annotations

import numpy as np

from pgfed.results.statistics import Floats, Ints

CLUSTERED = 100  # clients; beyond, nobody reads names, and likeness says more than size


def by_likeness(profiles: Floats | Ints) -> Ints:
    """The rows in an order in which neighbours point the same way.

    Rows are joined pair by pair, the most alike first (average linkage over their directions); the
    order is that of the leaves of the tree.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage

    values = np.asarray(profiles, dtype=np.float64)
    length = np.linalg.norm(values, axis=1, keepdims=True)
    directions = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
    order: Ints = leaves_list(linkage(directions, method="average")).astype(np.int64)
    return order
