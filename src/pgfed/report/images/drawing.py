"""How every figure is drawn and written: one style, and matplotlib only when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgfed.errors import UserError
from pgfed.report.extras import module
from pgfed.report.figures.colours import BLUE, PALETTE

NEEDED_BY = "the figure"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": f"cycler('color', {[BLUE, *PALETTE]})",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",  # words stay words, to be searched and edited
    "pdf.fonttype": 42,
    "svg.hashsalt": "pgfed",  # equal figures are equal files
}
KINDS = ("pdf", "png", "svg")
OPTIONS: dict[str, dict[str, Any]] = {  # no date, for the same reason
    ".png": {"dpi": 200},
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
}


def check_matplotlib() -> None:
    """One line on how to get it where it is missing; asked before hours of work."""
    module("matplotlib.figure", NEEDED_BY)


def check_format(path: Path) -> None:
    if path.suffix.lower() not in OPTIONS:
        allowed = ", ".join(OPTIONS)
        raise UserError(f"{path}: cannot draw {path.suffix!r}; allowed: {allowed}")


@contextmanager
def styled() -> Iterator[None]:
    """What is drawn within looks like all other figures."""
    with module("matplotlib", NEEDED_BY).rc_context(STYLE):
        yield


def blank(width: float, height: float) -> Any:
    """A figure of so many inches."""
    figures = module("matplotlib.figure", NEEDED_BY)
    return figures.Figure(figsize=(width, height), layout="constrained")


def write(figure: Any, path: Path) -> Path:
    """Save the figure; the folder is made where it is missing."""
    check_format(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with styled():
            figure.savefig(path, **OPTIONS[path.suffix.lower()])
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    return path


def heat_map(
    figure: Any,
    axes: Any,
    values: Any,
    scale: Sequence[Sequence[Any]],
    label: str,
    limit: float | None = None,
    blank: str = "white",
) -> None:
    """Values in the colours of a scale, from -limit to limit where there is one.

    ``blank``: the colour of what has no value.
    """
    colours = [(at, colour) for at, colour in scale]
    maps = module("matplotlib.colors", NEEDED_BY).LinearSegmentedColormap
    axes.grid(visible=False)
    axes.set_facecolor(blank)
    bounds = {} if limit is None else {"vmin": -limit, "vmax": limit}
    shown = axes.imshow(
        values,
        cmap=maps.from_list(label, colours),
        aspect="auto",
        interpolation="nearest",
        **bounds,
    )
    figure.colorbar(shown, ax=axes, label=label, shrink=0.8 if limit else 1)
