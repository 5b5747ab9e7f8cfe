"""One site's own page: what it gained, made at the site from what never leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pgfed.model.metrics import Metric
from pgfed.report.extras import module
from pgfed.report.pages.markup import asset, code, shown, unbroken
from pgfed.report.tables.cells import (
    NOT_JUDGED,
    Cell,
    Column,
    Table,
    fill,
    gained,
    integer,
    seeds,
    word,
)
from pgfed.results.caveats import SHORT
from pgfed.results.formats import NONE, axis, count, points, score, sentence
from pgfed.version import __version__

SAID = {"gained": "clearly gained", "lost": "clearly lost", "no": "cannot be told"}
UNKNOWN = "not known"  # without evidence
Row = Mapping[str, Any]  # a line of the site's report.csv


def site_page(rows: Sequence[Row], metric: Metric) -> str:
    """A page of one run at one site; ``rows``: a line per method and seed."""
    markup = module("markupsafe").Markup
    environment = module("jinja2").Environment(autoescape=True)
    environment.filters["nb"] = unbroken
    environment.filters["code"] = lambda text: code(text, markup)
    text: str = environment.from_string(asset("table.html") + asset("site.html")).render(
        name=rows[-1]["client"],
        run=rows[-1]["run"],
        verdict=headline(rows, metric),
        next=_next(rows) + _inside(rows),
        found=shown(table(rows, metric)),
        css=markup(asset("page.css")),
        version=__version__,
    )
    return text


def headline(rows: Sequence[Row], metric: Metric) -> list[str]:
    """The best method that was federated, and how surely it is better than training alone."""
    best = _best(rows)
    if best is None:
        return [
            "What federating gained here is not known: there is no score of training alone, or no "
            "test data."
        ]
    said = _said(best)
    gain = gained(_number(best, "gain") or 0.0, metric).text + points(metric)
    first = {
        "clearly gained": f"Federating helped here: {gain}.",
        "clearly lost": f"Federating harmed here: {gain}.",
        "cannot be told": f"Whether federating helped here cannot be told ({gain}).",
        UNKNOWN: f"Federated, the model scores {gain} here; how sure that is, is not known.",
        NOT_JUDGED: f"Too short to judge: {count(_rounds(best), 'round')}; {SHORT} are the least.",
    }[said]
    alone, final = (score(_number(best, key), metric) for key in ("local", "final"))
    n_test = int(_number(best, "n_test") or 0)
    second = (
        f"With {best['method']}, {metric.title} goes from {alone} without the others to {final}, "
        f"on {count(n_test, 'test sample')} of this site."
    )
    low, high = _number(best, "gain_low"), _number(best, "gain_high")
    if low is None or high is None:
        return [first, second]
    ends = f"{gained(low, metric).text} to {gained(high, metric).text}"
    return [first, f"{second} The 95 % interval of the gain is {ends}."]


def _rounds(row: Row) -> int:
    return int(_number(row, "round") or SHORT)


def _said(row: Row) -> str:
    """What this site's test samples say of a model that was trained for long enough."""
    if _rounds(row) < SHORT:
        return NOT_JUDGED
    return SAID.get(str(row.get("clearly") or ""), UNKNOWN)


def _best(rows: Sequence[Row]) -> Row | None:
    known = [row for row in rows if _number(row, "gain") is not None and row["method"] != "local"]
    return max(known, key=lambda row: _number(row, "gain") or 0.0, default=None)


def _next(rows: Sequence[Row]) -> list[str]:
    best = _best(rows)
    if best is None:
        return ["Keep some samples for testing (`test_share` in site.toml) to see what it gains."]
    said = _said(best)
    if said == NOT_JUDGED:
        return ["Ask for a run of more rounds; until then, use the model that was trained alone."]
    if said == "clearly lost":
        return ["Use the model that was trained alone, or ask for another method."]
    steps = [f"The model of {best['method']} lies in this site's folder: `pgfed predict MODEL`."]
    if said != "clearly gained":
        steps.append("More test samples of this site would tell more surely.")
    return steps


def _inside(rows: Sequence[Row]) -> list[str]:
    """What privacy does not cover of all this."""
    covered = {str(row["method"]): row["covered"] for row in rows if row.get("covered")}
    if not covered:
        return []
    said = [
        "This site trains with privacy, and these numbers are exact: they are for inside, and who "
        "publishes them goes beyond what was promised."
    ]
    exact = [method for method, word in covered.items() if str(word) == "False"]
    if exact:
        said.append(
            f"So does who gives away the model of {', '.join(exact)}: it was trained in part on "
            "exact gradients."
        )
    return said


def table(rows: Sequence[Row], metric: Metric) -> Table:
    """A row per method and seed."""

    def interval(row: Row) -> Cell:
        low, mean, high = (_number(row, key) for key in ("gain_low", "gain", "gain_high"))
        if low is None or mean is None or high is None:
            return Cell(NONE)
        text = f"{gained(low, metric).text} to {gained(high, metric).text}"
        return Cell(text, low, (low, mean, high))

    def scored(key: str) -> Any:
        return lambda row: seeds([_float(row, key)], metric)

    columns: list[Column[Row]] = [
        Column("method", "Method", "", lambda r: Cell(str(r["method"]))),
        Column("statement", "Gained?", "What this site's test samples say",
               lambda r: word(_said(r))),
        Column("gain", "Gain", "Over training alone",
               lambda r: gained(_float(r, "gain"), metric)),
        Column("interval", "95 % interval", "From this site's test samples", interval),
        Column("alone", "Without the others", f"{sentence(axis(metric))} of the site's own model",
               scored("local")),
        Column("federated", "Federated", f"{sentence(axis(metric))} of the personal model",
               scored("final")),
        Column("seed", "Seed", "", lambda r: integer(int(r["seed"]))),
        Column("n_train", "Training samples", "", lambda r: integer(int(r["n_train"]))),
        Column("n_test", "Test samples", "", lambda r: integer(int(r["n_test"]))),
    ]  # fmt: skip
    return fill(
        "site-table",
        "By the models that stay at this site, on its own test samples; it speaks of these models, "
        "not of training again. Nothing on this page has left the site but what the site's record "
        "names.",
        columns,
        [(str(row["method"]), row) for row in rows],
    )


def _number(row: Row, key: str) -> float | None:
    value = row.get(key)
    return None if value in (None, "") else float(value)


def _float(row: Row, key: str) -> float:
    found = _number(row, key)
    return float("nan") if found is None else found
