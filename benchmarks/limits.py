"""What RESULTS.md says of each limit, as one table: `python -m benchmarks.limits`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.text import VERDICT, show, table

RESULTS = Path(__file__).with_name("RESULTS.md")


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """(what of which part, measured, its limit and goal)."""
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
                measured, limit = f"**{measured}**", f"{limit}: **not reached**"
            yield f"{part}: {under}{what}", measured, limit


def run() -> Iterator[str]:
    found = list(rows(RESULTS.read_text(encoding="utf-8")))
    yield from table(("", "measured", "must be (goal)"), found)


if __name__ == "__main__":
    show(run())
