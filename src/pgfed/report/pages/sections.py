"""The sections of the page below its first screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pgfed.paper import printed as paper
from pgfed.report.figures import studies
from pgfed.report.figures.clients import gains, partition
from pgfed.report.figures.comparisons import differences
from pgfed.report.figures.curves import curves
from pgfed.report.figures.matrix import matrix
from pgfed.report.figures.specification import Figure, Style
from pgfed.report.pages.markup import shown
from pgfed.report.tables import clients, federation, privacy, results
from pgfed.report.tables.against_paper import against_paper, domains_against_paper
from pgfed.report.tables.cells import Table
from pgfed.report.tables.matrix import matrix as matrix_table
from pgfed.results.caveats import WEIGHED, matrix_diverged
from pgfed.results.comparison import Group, Method


@dataclass(frozen=True)
class Part:
    """A section of the page below the first screen."""

    id: str
    heading: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    client: bool = False  # whether a client can be picked here


def sections(group: Group, style: Style, prefix: str, running: Sequence[Method]) -> list[Part]:
    """Those that have something to show, what people ask first at the top."""

    def present(*found: Figure | None) -> list[Figure]:
        return [figure for figure in found if figure is not None]

    def filled(*found: tuple[str, Table]) -> list[dict[str, Any]]:
        return [shown(table, prefix, heading=heading) for heading, table in found if table]

    has_matrix = any(r.matrix is not None for m in group.methods for r in m.runs.values())
    compared = filled(("", against_paper(group)), ("By domain", domains_against_paper(group)))
    return [
        Part("exact", "Explicit against implicit", present(studies.explicit(group))),
        Part("newcomers", "Clients that came later", present(studies.new_clients(group, style))),
        Part(
            "clients",
            "Who gained, client by client",
            present(gains(group, style)),
            filled(
                ("Every client", clients.each(group)),
                (f"Gain over {group.over}, method by method", clients.gains(group)),
                ("By domain", clients.domains(group)),
            ),
            client=True,
        ),
        Part(
            "learning",
            "How fast, and for how many bytes",
            present(curves(group, style, running)),
            filled(
                ("Rounds to a score", results.speed(group)),
                ("What travelled", results.travelled(group)),
            ),
            results.pace(group),
        ),
        Part("held", "Who holds what", present(partition(group) if group.methods else None)),
        Part("pairs", "Which method", present(differences(group, style))),
        Part(
            "helpers",
            "Who weighed whom",
            present(matrix(group)),
            filled(("Correlations and controls", matrix_table(group))),
            [*matrix_diverged(group), WEIGHED] if has_matrix else [],
        ),
        Part("sites", "Site by site", [], filled(("", federation.sites(group)))),
        Part("privacy", "Privacy", [], filled(("", privacy.spent(group)))),
        Part("attack", "Attack and defence", [], filled(("", federation.attack(group)))),
        Part("lost", "Replies that did not count", [], filled(("", federation.dropped(group)))),
        Part("paper", "Beside the paper", [], compared, _setting(group) if compared else []),
    ]


def _setting(group: Group) -> list[str]:
    """In what the runs are not the paper's."""
    settings: dict[str, list[str]] = {}
    for method in group.methods:
        if paper.accuracy(group, method) is not None:
            text = ", ".join(paper.differences(group, method))
            settings.setdefault(text, []).append(method.label)
    if len(settings) == 1:
        return [f"Differs from the paper's setting in: {text}." for text in settings]
    return [
        f"{', '.join(labels)}: differs from the paper's setting in {text}."
        for text, labels in settings.items()
    ]
