"""Tables with the paper's numbers beside ours, where the setting is the paper's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgfed.methods.registry import BASELINE
from pgfed.model.metrics import ACCURACY
from pgfed.paper import printed as paper
from pgfed.report import roles
from pgfed.report.tables.cells import Cell, Column, Table, fill, integer, ratio, score
from pgfed.report.tables.clients import domain, domain_names
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group, Method
from pgfed.results.formats import NONE
from pgfed.results.formats import gain as points


@dataclass(frozen=True)
class _Beside:
    """A method of a run, and the one that bytes are told relative to."""

    group: Group
    method: Method
    yardstick: Method | None

    @property
    def gain(self) -> Cell:
        local = self.group.find(BASELINE, self.method)  # the paper has no other baseline
        gain = None if local is None else self.group.gain_in_best_round(self.method, local)
        if gain is None:
            return Cell(NONE)
        mean, std = stats.mean_std(gain)
        return Cell(f"{points(mean, ACCURACY)} ± {100 * std:.1f}", mean)

    @property
    def rounds_to_70(self) -> int | None:
        curve = self.method.mean_curve
        return stats.rounds_to(curve.rounds, curve.score, 0.7)

    @property
    def sent(self) -> float | None:
        base = self.yardstick.sent() if self.yardstick else None
        return self.method.sent() / base if base else None

    @property
    def sent_paper(self) -> float | None:
        return None if self.sent is None else paper.bytes_ratio(self.method)

    @property
    def known(self) -> bool:
        """Whether the paper has the method on these data, with as many clients."""
        return paper.accuracy(self.group, self.method) is not None


Pair = tuple[Column[_Beside], Column[_Beside]]  # ours, the paper's


def _printed(row: dict[str, float] | None, gain: bool = False) -> Cell:
    """A number of the paper's, in percent there."""
    if row is None:
        return Cell(NONE)
    mean = points(row["mean"] / 100, ACCURACY, 2) if gain else f"{row['mean']:.2f}"
    return Cell(f"{mean} ± {row['std']:.2f}", row["mean"] / 100)


# Accuracies come first, which the caption relies on.
_PAIRS: list[Pair] = [
    (
        Column("accuracy", "Best on test", "Ours", lambda b: score(b.method, "best", ACCURACY)),
        Column("accuracy_paper", "Paper", "Paper: best on test",
               lambda b: _printed(paper.accuracy(b.group, b.method))),
    ),
    (
        Column("gain", "Gain over local", "Ours: at each method's best round, ± std over clients",
               lambda b: b.gain),
        Column("gain_paper", "Paper", "Paper: individual gain",
               lambda b: _printed(paper.gain(b.group, b.method), gain=True)),
    ),
    (
        Column("rounds", "Rounds to 70 %", "Ours", lambda b: integer(b.rounds_to_70)),
        Column("rounds_paper", "Paper", "Paper: rounds to 70 %",
               lambda b: integer(paper.rounds_to_70(b.group, b.method))),
    ),
    (
        Column("sent", "Bytes × FedAvg",
               "Ours, all rounds; in the first there are no gradients yet",
               lambda b: ratio(b.sent)),
        Column("sent_paper", "Paper", "Paper: communication cost", lambda b: ratio(b.sent_paper)),
    ),
]  # fmt: skip


def against_paper(group: Group) -> Table:
    """Ours beside the paper's, where data set, number of clients and method match."""
    yardstick = roles.yardstick(group)
    methods = [_Beside(group, method, yardstick) for method in group.methods]
    rows = [(beside.method.label, beside) for beside in methods if beside.known]
    pairs = [
        (ours, theirs)
        for ours, theirs in _PAIRS
        if any(theirs.cell(beside).text != NONE for _, beside in rows)
    ]
    caption = "Luo et al., ICCV 2023."
    if _PAIRS[0] in pairs:
        caption += " Accuracies are best-on-test, as the paper prints; mean ± std."
    name: Column[_Beside] = Column("method", "Method", "", lambda b: Cell(b.method.label))
    return fill(
        "paper-table", caption, [name, *(column for pair in pairs for column in pair)], rows
    )


def domains_against_paper(group: Group) -> Table:
    """The paper's Office-Home table in its own form."""
    names = domain_names(group)

    def printed(name: str) -> Column[Method]:
        def cell(method: Method) -> Cell:
            return _printed(paper.domain_accuracy(group, method, name))

        return Column(f"{name}_paper", "Paper", "Paper", cell)

    columns: list[Column[Method]] = [Column("method", "Method", "", lambda m: Cell(m.label))]
    for name in names:
        columns += [replace(domain(group, name), help="Ours"), printed(name)]
    known = [
        method
        for method in group.methods
        if len(names) > 1 and any(paper.domain_accuracy(group, method, name) for name in names)
    ]
    return fill(
        "paper-domains-table",
        "Accuracy by domain, ours and the paper's (Luo et al., ICCV 2023).",
        columns,
        [(method.label, method) for method in known],
    )
