"""Tables as the template reads them, and what the page carries in itself."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import importlib.util
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pgfed.report.extras import missing
from pgfed.report.tables.cells import Table

LONG = 25  # rows; more scroll under their heading


def shown(
    table: Table, prefix: str = "", leader: str | None = None, heading: str = ""
) -> dict[str, Any]:
    """As the template reads it: intervals become positions on a strip."""
    if not table:
        return {}
    ends = [v for row in table.rows for cell in row for v in (cell.interval or ())]
    low, high = min([*ends, 0.0]), max([*ends, 0.0])

    def at(value: float) -> float:
        return 100 * (value - low) / ((high - low) or 1.0)

    def strip(interval: tuple[float, float, float] | None) -> str:
        if interval is None:
            return ""
        first, mean, last = map(at, interval)
        return (
            f"--zero:{at(0):.1f}%;--low:{first:.1f}%;--at:{mean:.1f}%;--width:{last - first:.1f}%"
        )

    return {
        "id": prefix + table.id,
        "caption": table.caption,
        "heading": heading,
        "columns": [(c.key, c.heading, c.help, c.muted) for c in table.columns],
        "long": len(table.rows) > LONG,
        "labels": table.labels,
        "leader": leader,
        "rows": [
            [{**dataclasses.asdict(cell), "strip": strip(cell.interval)} for cell in row]
            for row in table.rows
        ],
    }


def unbroken(text: str) -> str:
    """95 % stays together, an interval in its brackets, and the second end of another."""
    return re.sub(r"(\[[^ \]]+,|\bto) (?=[+−])", "\\1\u00a0", text.replace(" %", "\u00a0%"))


def code(text: str, markup: Any) -> Any:
    """What stands between backquotes as code; all of it escaped.

    A command's words stay whole, or an option would be broken at its hyphens.
    """
    pieces = unbroken(text).split("`")
    told = [_command(p, markup) if k % 2 else p for k, p in enumerate(pieces)]
    return markup("").join(told)


def _command(text: str, markup: Any) -> Any:
    words = [markup("<span>{}</span>").format(word) for word in text.split(" ")]
    return markup("<code>{}</code>").format(markup(" ").join(words))


# -- what the page carries ---------------------------------------------------------------------


def asset(name: str) -> str:
    return files("pgfed.report").joinpath("templates", name).read_text(encoding="utf-8")


def packed(text: str) -> str:
    """Compressed, in characters that end no script and need no escape."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


@cache
def packed_plotly() -> str:
    """The plotly.js inside the Python package; importing that package would take a second."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise missing("plotly")
    file = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return packed(file.read_text("utf-8"))
