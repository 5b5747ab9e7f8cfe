"""What the results say of each limit, on both kinds of processor: `python -m benchmarks.limits`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.text import VERDICT, show, table

RESULTS = {"AVX-512": "RESULTS.md", "AVX2": "RESULTS-avx2.md"}
NOT_MEASURED = "–"


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """(what of which part, measured, its limit and goal); bold where it misses the limit."""
    part = under = ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"(##+) (.+)", line):
            if heading[1] == "##":
                part, under = heading[2], ""
            else:
                under = f"{heading[2].lower()}, "
        if found := VERDICT.fullmatch(line):
            what, measured, bound, must, goal, said = found.groups()
            limit = f"{'≥' if bound == 'least' else '≤'} {must}" + (f" ({goal})" if goal else "")
            if said == "DOES NOT HOLD":
                measured = f"**{measured}**"
            yield f"{part}: {under}{what}", measured, limit


def run() -> Iterator[str]:
    measured: dict[str, dict[str, str]] = {}
    limits: dict[str, str] = {}
    for processor, name in RESULTS.items():
        for what, found, limit in rows(Path(__file__).with_name(name).read_text(encoding="utf-8")):
            measured.setdefault(what, {})[processor] = found
            limits.setdefault(what, limit)
    yield from table(
        ("bold: misses its limit", *RESULTS, "must be (goal)"),
        [
            (what, *(found.get(processor, NOT_MEASURED) for processor in RESULTS), limits[what])
            for what, found in measured.items()
        ],
    )


if __name__ == "__main__":
    show(run())
