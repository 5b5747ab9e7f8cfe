"""Write tables of three banks, banks/NAME.csv, and one with next month's payments: a stand-in.

python bank_tables.py

The banks differ in their customers and channels; some cells are empty, and one column is known
only after a fraud was found out.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

HEAD = ("payment", "customer", "amount", "channel", "age", "chargeback", "fraud")
BANKS = {"alpine": ("web", "counter"), "coastal": ("web", "phone"), "urban": ("web", "app")}


def payments(bank: int, n: int) -> list[list[object]]:
    rng = np.random.default_rng(bank)
    channels = list(BANKS.values())[bank % 3]
    made: list[list[object]] = []
    for i in range(n):
        fraud = bool(rng.random() < 0.2)
        amount = round(float(rng.lognormal(4 + 0.3 * bank + 1.2 * fraud, 0.5)), 2)
        age = int(rng.integers(18, 90))
        made.append(
            [
                f"p{1000 * bank + i}",
                f"c{rng.integers(n // 3)}",
                amount if rng.random() > 0.05 else "",
                channels[int(rng.random() < (0.8 if fraud else 0.3))],
                age if rng.random() > 0.1 else "?",
                "returned" if fraud else "none",
                "yes" if fraud else "no",
            ]
        )
    return made


def write(path: Path, head: tuple[str, ...], rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def main() -> None:
    for bank, name in enumerate(BANKS):
        write(Path("banks") / f"{name}.csv", HEAD, payments(bank, 240))
    # What is to be predicted is not known yet.
    write(Path("next-month.csv"), HEAD[:5], [row[:5] for row in payments(4, 20)])


if __name__ == "__main__":
    main()
