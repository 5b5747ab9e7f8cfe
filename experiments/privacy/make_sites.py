"""Four made-up sites with 4,000 records each: `python make_sites.py sites.npz`.

Three classes in 20 numbers from -1 to 1. The sites agree on most of what tells the classes apart,
and each has a turn of its own: a common model is good, a personal one is better. Nothing of it is
anybody's, so that settings can be tuned on it as often as one likes.
"""

from __future__ import annotations

import sys

import numpy as np

SITES, RECORDS, FEATURES, CLASSES = 4, 4000, 20, 3


def main(path: str) -> None:
    rng = np.random.default_rng(16)
    common = rng.normal(size=(FEATURES, CLASSES))
    xs, ys, clients = [], [], []
    for site in range(SITES):
        own = common + 0.5 * rng.normal(size=(FEATURES, CLASSES))
        x = rng.uniform(-1, 1, size=(RECORDS, FEATURES))
        y = (x @ own + rng.gumbel(size=(RECORDS, CLASSES))).argmax(1)
        xs.append(x.astype(np.float32))
        ys.append(y)
        clients.append(np.full(RECORDS, f"site-{site}"))
    np.savez(path, x=np.concatenate(xs), y=np.concatenate(ys), client=np.concatenate(clients))


if __name__ == "__main__":
    main(sys.argv[1])
