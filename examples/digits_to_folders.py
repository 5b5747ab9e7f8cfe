"""Write scikit-learn's digits as image files, one folder per site: sites/<site>/<class>/*.png.

python digits_to_folders.py

A stand-in for your own images. Sites see different digits, as real ones do; the last site goes to
new-site/<class>/*.png, as if it had not been there when the others trained together.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SITES = ("airport", "bank", "clinic", "depot", "embassy", "factory", "harbour")


def main() -> None:
    digits = load_digits()
    rng = np.random.default_rng(1)
    # How much of each digit (rows) goes to each site.
    shares = rng.dirichlet(np.full(len(SITES), 0.6), size=10)
    for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        site = SITES[rng.choice(len(SITES), p=shares[digit])]
        folder = Path("new-site") if site == SITES[-1] else Path("sites") / site
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.rint(pixels * (255 / 16)).astype(np.uint8))
        image.save(folder / str(digit) / f"{number:04}.png")


if __name__ == "__main__":
    main()
