"""Tables as LaTeX, ready to stand in a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgfed.paper.printed import printed_name
from pgfed.report.tables.cells import Cell, Table
from pgfed.report.text import all_tables
from pgfed.results.comparison import Group
from pgfed.results.formats import count
from pgfed.results.verdict import judge

_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"$\sim$",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "≈": r"$\approx$",
    "<": r"$<$",
    ">": r"$>$",
}


def latex_report(groups: Sequence[Group], name: str | None = None) -> str:
    """All tables, or the one of this name; they need the package booktabs."""
    found = []
    for index, _, table in all_tables(groups, name):
        about = groups if index is None else [groups[index]]
        prefix = f"{index + 1}-" if index is not None and len(groups) > 1 else ""
        found.append(latex(table, about, prefix))
    return "\n".join(found)


def latex(table: Table, groups: Sequence[Group], prefix: str = "") -> str:
    """A booktabs table: printed names, the best bold, a caption that says of what it is."""
    names = {m.label: printed_name(m.name, m.label) for group in groups for m in group.methods}
    # Bold is a claim: a run that gives no verdict makes none.
    bold = _best(table) if all(judge(group).comparable for group in groups) else set()
    rows = [
        " & ".join(
            _cell(cell, names, bold=(i, j) in bold) for j, cell in enumerate(row)
        ) + r" \\"
        for i, row in enumerate(table.rows)
    ]  # fmt: skip
    about = " ".join(setting(group) for group in groups)
    caption = f"{table.caption} {about}" + (" Bold: the best." if bold else "")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(caption)}}}",
            rf"\label{{tab:{prefix}{table.name}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            " & ".join(_tex(column.heading) for column in table.columns) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def setting(group: Group) -> str:
    """What the numbers are of: data, clients, rounds, seeds."""
    rounds = sorted({method.settings["rounds"] for method in group.methods})
    seeds = sorted({seed for method in group.methods for seed in method.runs})
    told = " or ".join(f"{n:,}" for n in rounds[:-1]) + (" or " if rounds[1:] else "")
    named = ", ".join(map(str, seeds))
    return (
        f"{group.title}; {told}{count(rounds[-1], 'round')}; {count(len(seeds), 'seed')} ({named})."
    )


def _best(table: Table) -> set[tuple[int, int]]:
    """Row and column of what is best, of columns that are a matter of better and worse.

    All that read the same are; a bound is nobody's to choose, and one row has no rival.
    """
    able = [i for i, row in enumerate(table.rows) if not row[0].note.startswith("bound")]
    found = set()
    for j, column in enumerate(table.columns):
        rivals = {i: v for i in able if isinstance(v := table.rows[i][j].value, int | float)}
        if not column.better or len(rivals) < 2:
            continue
        top = max(rivals, key=lambda i: column.better * rivals[i])
        shown = _score(table.rows[top][j].text)
        found |= {(i, j) for i in rivals if _score(table.rows[i][j].text) == shown}
    return found


def _score(text: str) -> str:
    """Without its spread or interval."""
    return re.split(r" [±\[(]", text)[0]


def _cell(cell: Cell, names: dict[str, str], *, bold: bool) -> str:
    text = _tex(names.get(cell.text, cell.text))
    if bold:
        score = _tex(_score(cell.text))
        text = rf"\textbf{{{score}}}" + text.removeprefix(score)
    return f"{text} ({_tex(cell.note)})" if cell.note else text


def _tex(text: str) -> str:
    return "".join(_SIGNS.get(sign, sign) for sign in text)
