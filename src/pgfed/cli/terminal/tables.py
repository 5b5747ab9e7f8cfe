"""Tables on the terminal. Light: `pgfed methods` answers at once."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 120  # columns where the output is no terminal
UNBROKEN = "\u00a0"
WHOLE = 24  # letters of a name that is never broken, be the terminal narrow


def console() -> Console:
    plain = not sys.stdout.isatty()
    return Console(file=sys.stdout, highlight=False, width=PIPED_WIDTH if plain else None)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table whose numbers are aligned to the right."""
    cells = [[_text(cell) for cell in row] for row in rows]
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, column in enumerate(columns):
        numeric = all(row[k].plain[:1] in "+-−–0123456789" for row in cells)
        name = k == 0 and all(len(row[k]) <= WHOLE for row in cells)
        side: Literal["right", "left"] = "right" if numeric else "left"
        made.add_column(column, justify=side, overflow="fold", no_wrap=name)
    for row in cells:
        made.add_row(*row)
    return made


def prose(screen: Console, line: str, style: str | None = None) -> None:
    """A sentence: wrapped at words on a terminal, where "95 %" stays together; whole elsewhere."""
    if screen.is_terminal:
        kept = line.replace(" %", f"{UNBROKEN}%")
        line = textwrap.fill(kept, screen.width, break_long_words=False, break_on_hyphens=False)
        line = line.replace(UNBROKEN, " ")
    screen.print(line, soft_wrap=True, markup=False, style=style)


def _text(cell: Any) -> Text:
    """A name is never read as markup."""
    if isinstance(cell, Text):
        return cell
    return Text("" if cell is None else str(cell))
