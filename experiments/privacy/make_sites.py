"""Made-up sites for the table of docs/privacy.md: `python make_sites.py FILE [SEED] [SITES]`.

Sixteen sites with 2,000 records each: 80 numbers from -1 to 1, eight classes. What a class looks
like is the same everywhere but for a small turn at each site; how frequent the classes are is not
(label shift). A common model knows what classes look like, and not how frequent they are here; a
site alone knows the latter, and has too few records for the former. Nothing of it is anybody's, so
that settings can be tuned as often as one likes: with another seed than the table's.
"""

from __future__ import annotations

import sys

import numpy as np

SITES, RECORDS, FEATURES, CLASSES = 16, 2000, 80, 8
APART, TURN, SHIFT = 0.25, 0.03, 0.5  # of classes, of sites, and how alike class shares are


def main(path: str, seed: int = 16, sites: int = SITES) -> None:
    rng = np.random.default_rng(seed)
    common = APART * rng.normal(size=(CLASSES, FEATURES))
    xs, ys, clients = [], [], []
    for site in range(sites):
        means = common + TURN * rng.normal(size=common.shape)
        shares = rng.dirichlet(np.full(CLASSES, SHIFT))
        y = rng.choice(CLASSES, RECORDS, p=0.95 * shares + 0.05 / CLASSES)
        x = means[y] + rng.normal(size=(RECORDS, FEATURES))
        xs.append(np.clip(x / 4, -1, 1).astype(np.float32))
        ys.append(y)
        clients.append(np.full(RECORDS, f"site-{site}"))
    np.savez(path, x=np.concatenate(xs), y=np.concatenate(ys), client=np.concatenate(clients))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
