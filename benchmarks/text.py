"""Lines of a report: readable in a terminal, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


def show(lines: Iterable[str]) -> list[str]:
    """Print the lines as they come, and give them back."""
    shown = []
    for line in lines:
        print(line, flush=True)
        shown.append(line)
    return shown


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    width = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    rule = ["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])]
    yield ""
    for row in [cells[0], rule, *cells[1:]]:
        first, *others = row
        aligned = [cell.rjust(w) for cell, w in zip(others, width[1:], strict=True)]
        yield "| " + " | ".join([first.ljust(width[0]), *aligned]) + " |"
    yield ""


# A line that `verdict` has written: what, found, least or most, must, goal, what is said of it.
VERDICT = re.compile(r"- (.+): (.+) \(must be at (least|most) ([^,]+?)(?:, goal (.+))?\): (.+)")


def verdict(
    what: str,
    found: float,
    must: float,
    goal: float | None = None,
    *,
    unit: str = "",
    at_most: bool = False,
) -> str:
    """One line: what was found, what must hold, and whether it does."""

    def within(limit: float) -> bool:
        return found <= limit if at_most else found >= limit

    said = "holds" if within(must) else "DOES NOT HOLD"
    if goal is not None and within(goal):
        said = "goal reached"
    aim = "" if goal is None else f", goal {goal:g}{unit}"
    bound = f"must be at {'most' if at_most else 'least'} {must:g}{unit}"
    return f"- {what}: {found:.3g}{unit} ({bound}{aim}): {said}"
