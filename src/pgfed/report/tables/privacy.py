"""What each method's clients spent of their privacy, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pgfed.report.tables.cells import Cell, Column, Table, fill
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import NONE, score
from pgfed.results.runs import RunData


@dataclass(frozen=True)
class _Spent:
    """What is known of some clients under one method."""

    label: str
    who: str
    plan: Mapping[str, Any]
    covered: bool | None = None
    score: str = NONE
    without: str = NONE


def _epsilon(one: _Spent) -> Cell:
    if "said" in one.plan:
        return Cell(str(one.plan["said"]))
    value = one.plan.get("epsilon")
    return Cell("no promise" if value is None else f"{value:.2f}", value)


def _covered(one: _Spent) -> Cell:
    return Cell({True: "covered", False: "stays at home", None: NONE}[one.covered])


_COLUMNS: list[Column[_Spent]] = [
    Column("method", "Method", "", lambda o: Cell(o.label)),
    Column("client", "Clients", "", lambda o: Cell(o.who)),
    Column("epsilon", "Epsilon", "Of one seed's run, the most of any client", _epsilon),
    Column("delta", "Delta", "", lambda o: Cell(f"{o.plan.get('delta', NONE)}")),
    Column("unit", "Per", "What is protected", lambda o: Cell(str(o.plan.get("unit", NONE)))),
    Column("size", "Declared", "Units that a client says it has",
           lambda o: Cell(str(o.plan.get("size", NONE)))),
    Column("noise", "Noise", "Of gradients, over the clip",
           lambda o: Cell(f"{o.plan.get('noise', {}).get('gradient', 0.0):.2f}")),
    Column("model", "Personal model", "Covered: it may leave; else exact gradients trained it",
           _covered),
    Column("score", "Score", "Mean over the clients, as kept", lambda o: Cell(o.score)),
    Column("without", "Without privacy", "The same method in this report, exact",
           lambda o: Cell(o.without)),
]  # fmt: skip


def spent(group: Group) -> Table:
    """A row per method of a simulation, per site of a federation."""
    rows = [(one.label, one) for folder in group.folders for one in _of(group, folder)]
    return fill(
        "privacy-table",
        "Per unit, client and run. A simulation accounts each method and seed by itself and "
        "promises nothing: its folder holds exact scores. In a federation a site's own ledger is "
        "what counts.",
        _COLUMNS,
        rows,
    )


def _of(group: Group, folder: RunData) -> Iterator[_Spent]:
    known = folder.environment.get("privacy", {})
    for method in group.methods:
        own = folder.runs.get(method.name, {}).values()
        here = any(run is one for run in method.runs.values() for one in own)
        plans = known.get(method.name) if here else None
        if plans:
            most = max(plans, key=lambda plan: plan["epsilon"] or float("inf"))
            who = f"all {len(plans)}"
            yield _Spent(
                method.label,
                who,
                most,
                most.get("covered"),
                _shown(group, method),
                _without(group, method),
            )
    for i, facts in sorted(folder.environment.get("sites", {}).items()):
        said = facts.get("privacy", "none")
        if said != "none":
            yield _Spent("", group.clients.names[int(i)], {"said": said})


def _shown(group: Group, method: Method) -> str:
    return score(method.mean(), group.metric) if method.sound else NONE


def _without(group: Group, method: Method) -> str:
    for other in group.methods:
        if other.base == method.base and other.settings.get("privacy") == "none":
            return _shown(group, other)
    return NONE
