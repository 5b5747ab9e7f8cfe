"""Tables as Markdown and CSV, and for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pgfed.errors import unknown
from pgfed.report.tables import clients, federation, matrix, privacy, results
from pgfed.report.tables.against_paper import against_paper, domains_against_paper
from pgfed.report.tables.cells import Cell, Table
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group
from pgfed.results.formats import NONE
from pgfed.results.statistics import Comparison
from pgfed.results.verdict import gains as gains_of
from pgfed.results.verdict import judge

CSV_COLUMNS = (
    *(
        "federation",
        "method",
        "seeds",
        "metric",
        "kept",
        "kept_std",
        "last",
        "last_std",
        "window",
        "best",
        "best_std",
    ),
    *("gain", "gain_low", "gain_high", "gain_std_clients", "gain_worst_decile"),
    *("clients_gained", "clients_lost", "clients_untold"),
    *("over_control", "over_control_low", "over_control_high"),
    *("bytes", "samples_per_second", "replies_dropped"),
)


def all_tables(
    groups: Sequence[Group], name: str | None = None
) -> list[tuple[int | None, str, Table]]:
    """Every table that has rows, or those of this name: of which group (None: of all), heading."""
    found = list(_tables(groups))
    names = dict.fromkeys(table.name for _, _, table in found)
    if name is not None and name not in names:
        raise unknown("--table", name, names)
    return [one for one in found if name in (None, one[2].name)]


def _tables(groups: Sequence[Group]) -> Iterator[tuple[int | None, str, Table]]:
    if len(groups) > 1:
        yield None, "All federations", results.overview(groups)
    for index, group in enumerate(groups):
        found = {
            "Results": results.results(group),
            "What a method itself adds": results.control(group),
            "Every client": clients.each(group),
            f"Gain over {group.over}": clients.gains(group),
            "Rounds to a score": results.speed(group),
            "By domain": clients.domains(group),
            "The matrix A": matrix.matrix(group),
            "Site by site": federation.sites(group),
            "Privacy": privacy.spent(group),
            "Attack and defence": federation.attack(group),
            "Replies that did not count": federation.dropped(group),
            "Beside the paper": against_paper(group),
            "Beside the paper, by domain": domains_against_paper(group),
        }
        for heading, table in found.items():
            if table:
                several = len(groups) > 1
                yield index, f"{group.title}: {heading}" if several else heading, table


def markdown_report(groups: Sequence[Group], name: str | None = None) -> str:
    """The verdict and all tables; or the tables of this name alone."""
    if name is not None:
        return "\n".join(markdown(table) for _, _, table in all_tables(groups, name))
    lines = []
    for group in groups:
        verdict = judge(group)
        lines += [f"# {_md(group.title)}", "", f"**{_md(verdict.headline)}**", ""]
        lines += [_md(" ".join(verdict.sentences)), ""]
        lines += [f"- {_md(caveat)}" for caveat in verdict.caveats]
    for _, heading, table in all_tables(groups):
        lines += ["", f"## {_md(heading)}", "", markdown(table)]
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """GitHub's dialect."""
    head = [column.heading for column in table.columns]
    lines = [_md_line(head), _md_line(["---"] + ["---:"] * (len(head) - 1))]
    lines += [_md_line([_text(cell) for cell in row]) for row in table.rows]
    return "\n".join([*lines, "", f"*{_md(table.caption)}*", ""])


def _text(cell: Cell) -> str:
    return f"{cell.text} ({cell.note})" if cell.note else cell.text


def _md_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_md, cells)) + " |"


def _md(text: str) -> str:
    for sign in "\\`*_<>|[]":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def as_plain(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Verdict and tables of each group: a cell is its number, else its words."""
    found: list[dict[str, Any]] = [
        {"federation": group.title, "metric": group.metric.name, "verdict": asdict(judge(group))}
        for group in groups
    ]
    for index, _, table in _tables(groups):
        if index is not None:
            rows = [{k: _plain(cell) for k, cell in row.items()} for row in table.records()]
            found[index].setdefault("tables", {})[table.name] = rows
    return found


def _plain(cell: Cell) -> Any:
    if cell.interval is not None:
        return dict(zip(("low", "mean", "high"), map(float, cell.interval), strict=True))
    if cell.value is None:
        return None if cell.text == NONE else cell.text
    return cell.value if isinstance(cell.value, str | int) else float(cell.value)


def comma_separated(groups: Sequence[Group]) -> str:
    """One row per federation and method, plain numbers: for spreadsheets and scripts.

    For federations over Flower a second table follows after an empty line: a row per site.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for group in groups:
        gains = gains_of(group)
        for method in group.methods:
            gain, local = gains.get(method.label), group.baseline(method)
            other = group.control(method)
            over_local = None if gain is None or local is None else group.compare(method, local)
            over_control = None if other is None else group.compare(method, other)
            writer.writerow(
                [group.title, method.label, " ".join(map(str, method.seeds)), group.metric.name]
                + _numbers(*stats.mean_std(method.means("kept")))
                + [*_numbers(*stats.mean_std(method.means("last"))), str(method.window)]
                + _numbers(*stats.mean_std(method.means("best")))
                + _csv_interval(over_local)
                + (["", ""] if gain is None else _numbers(gain.std, gain.worst_decile))
                + ([""] * 3 if gain is None else [gain.gained, gain.lost, gain.untold])
                + _csv_interval(over_control)
                + [f"{method.sent():.0f}"]
                + _numbers(method.images_per_second() or float("nan"))
                + [sum(len(run.history.dropped) for run in method.runs.values())]
            )
    sites = [(group.title, table) for group in groups if (table := federation.sites(group))]
    for k, (title, table) in enumerate(sites):
        if k == 0:
            writer.writerows([[], ["federation", *(column.key for column in table.columns)]])
        writer.writerows([title, *_csv_site(record)] for record in table.records())
    return text.getvalue()


def _csv_site(record: dict[str, Cell]) -> list[float | str]:
    """The numbers behind the cells, but the site's name and its failures in words."""
    failures = record["failures"]
    words = {"site": record["site"].text, "failures": failures.text if failures.value else ""}
    numbers = {key: "" if cell.value is None else cell.value for key, cell in record.items()}
    return list((numbers | words).values())


def _csv_interval(found: Comparison | None) -> list[str]:
    return ["", "", ""] if found is None else _numbers(found.mean, found.low, found.high)


def _numbers(*values: float) -> list[str]:
    return ["" if np.isnan(value) else f"{value:.6g}" for value in values]
