"""Small made-up data of every kind, to try the commands of docs/your-data.md with before yours.

python stand_ins.py            (all of them, into the current folder)
python stand_ins.py xrays      (some)
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SITES = np.array(["east", "north", "south"])


def xrays() -> None:
    """xrays/SITE/CLASS/*.png, as hospitals have them: sizes, grey and colour mixed, two damaged
    files, a stray note, one hospital with few images, one with a class of its own; new/*.png."""
    from PIL import Image

    rng = np.random.default_rng(0)

    def write(path: Path, kind: int, size: int, mode: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (size, size))
        third = slice(kind * size // 3, (kind + 1) * size // 3)
        pixels[third, third] += 120  # what is to be seen is in another place for each class
        Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(path)

    classes = ("effusion", "healthy", "nodule")
    for site, n in (("east", 18), ("north", 18), ("south", 18), ("west", 6)):
        names = classes if site == "south" else classes[:2]
        for name in names:
            for i in range(n):
                size, mode = (16, "L") if i % 3 else (20, "RGB")
                write(Path("xrays", site, name, f"{i}.png"), classes.index(name), size, mode)
    Path("xrays", "notes.txt").write_text("taken in spring")
    Path("xrays", "east", "healthy", "3.png").write_bytes(b"\x89PNG broken")
    Path("xrays", "south", "nodule", "5.png").write_bytes(b"")
    for i in range(4):
        write(Path("new", f"{i}.png"), i % 2, 16, "L")
    Path("new", "2.png").write_bytes(b"\x89PNG broken")


def houses() -> None:
    """houses/TOWN.csv with prices, and houses-new.csv without."""
    rng = np.random.default_rng(1)
    Path("houses").mkdir(exist_ok=True)

    def rows(town: int, n: int) -> list[dict[str, Any]]:
        area, age = rng.uniform(40, 200, n).round(), rng.integers(0, 90, n)
        kind = rng.choice(["flat", "house"], n)
        price = 2000 * (1 + town) * area - 800 * age + 50_000 * (kind == "house")
        price = (price + rng.normal(0, 15_000, n)).round(-2)
        told = zip(area.tolist(), age.tolist(), kind.tolist(), price.tolist(), strict=True)
        return [dict(zip(("area", "age", "kind", "price"), row, strict=True)) for row in told]

    for town, name in enumerate(("harbour", "hill", "valley")):
        _table(Path("houses", f"{name}.csv"), rows(town, 60))
    new = rows(0, 5)
    for row in new:
        del row["price"]
    _table(Path("houses-new.csv"), new)


def findings() -> None:
    """findings.npz: for each scan which of five findings it shows, of three clinics."""
    rng, n = np.random.default_rng(2), 180
    x = rng.normal(size=(n, 12)).astype(np.float32)
    y = (x @ rng.normal(size=(12, 5)) + 0.3 * rng.normal(size=(n, 5)) > 0.5).astype(np.int64)
    names = ["atelectasis", "effusion", "mass", "nodule", "pneumonia"]
    np.savez("findings.npz", x=x, y=y, client=SITES[np.arange(n) % 3], class_names=names)


def letters() -> None:
    """letters.npz: eight words (numbers up to 40), and which one comes next."""
    rng, n = np.random.default_rng(3), 240
    x = rng.integers(0, 40, size=(n, 8))
    y = (x[:, -1] + 1 + np.arange(n) % 3 % 2) % 40  # the habits of one publisher differ
    names = [f"word {k}" for k in range(40)]
    np.savez("letters.npz", x=x, y=y, client=SITES[np.arange(n) % 3], class_names=names)


def machines() -> None:
    """machines.npz: two sensors over 30 time steps, is the bearing worn?; machines-may.npz: the
    next month; machines-new.npz: a plant that was not there."""
    for month, name in enumerate(("machines", "machines-may", "machines-new")):
        rng, n = np.random.default_rng(4 + month), 150
        worn, plant = np.arange(n) // 3 % 2, np.arange(n) % 3
        time = np.arange(30) * (0.3 + 0.1 * plant[:, None] + 0.3 * worn[:, None])
        x = np.stack([np.sin(time), np.cos(time)], axis=1) + 0.3 * rng.normal(size=(n, 2, 30))
        whose = {} if name == "machines-new" else {"client": SITES[plant]}
        y = np.array(["sound", "worn"])[worn]
        np.savez(f"{name}.npz", x=x.astype(np.float32), y=y, **whose)


def patients() -> None:
    """patients.npz: six samples of each patient, nearly the same; who is ill is by lot, so that
    nothing can be learned of others. With `group`, which says whose a sample is."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(60), 6)
    x = 2 * rng.normal(size=(60, 8))[group] + 0.05 * rng.normal(size=(360, 8))
    y = rng.permutation(np.arange(60) % 2)[group]
    np.savez("patients.npz", x=x.astype(np.float32), y=y, client=SITES[group % 3], group=group)


def wounds() -> None:
    """wounds.npz: pictures and masks, 1 where the wound is."""
    rng, n = np.random.default_rng(8), 60
    place, size = rng.integers(0, 9, (n, 2)), rng.integers(3, 7, n)
    at = np.arange(16)
    inside = (at >= place[..., None]) & (at < (place + size[:, None])[..., None])
    y = (inside[:, 0, :, None] & inside[:, 1, None, :]).astype(np.int64)
    x = (60 + 120 * y + rng.integers(0, 60, y.shape)).astype(np.uint8)
    np.savez("wounds.npz", x=x[:, None], y=y, client=SITES[np.arange(n) % 3])


def _table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


ALL: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (xrays, houses, findings, letters, machines, patients, wounds)
}

if __name__ == "__main__":
    for name in sys.argv[1:] or ALL:
        ALL[name]()
