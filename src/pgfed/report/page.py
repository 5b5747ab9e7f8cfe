"""One self-contained HTML page: text and tables in it, figures drawn by the plotly it carries."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import importlib.util
import json
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from pgfed.paper import printed as paper
from pgfed.report.extras import missing, module
from pgfed.report.figures import studies
from pgfed.report.figures.clients import gains, partition
from pgfed.report.figures.comparisons import differences
from pgfed.report.figures.curves import curves
from pgfed.report.figures.matrix import matrix
from pgfed.report.figures.specification import Figure, Style, styles
from pgfed.report.tables import clients, federation, results
from pgfed.report.tables.against_paper import against_paper, domains_against_paper
from pgfed.report.tables.cells import Table
from pgfed.report.tables.matrix import matrix as matrix_table
from pgfed.results import statistics as stats
from pgfed.results.comparison import Group
from pgfed.results.formats import axis, count, factor, size, travelling
from pgfed.results.runs import RunData
from pgfed.results.verdict import judge
from pgfed.version import __version__

MAX_PICKED = 1_000  # clients about whom the page knows everything
CURVE_POINTS = 40  # of a single client's curve


def render(groups: Sequence[Group]) -> str:
    """The page. Equal runs give equal pages: it holds no date and no path but the folders'."""
    markup = module("markupsafe").Markup
    environment = module("jinja2").Environment(autoescape=True)
    environment.filters["nb"] = lambda text: text.replace(" %", "\u00a0%")  # 95 % stays together
    style = styles(groups)
    sections = [_group(group, k, len(groups), style) for k, group in enumerate(groups)]
    context = {
        "title": _title(groups),
        "groups": sections,
        "overview": _table(results.overview(groups)) if len(groups) > 1 else None,
        "styles": style,
        "version": __version__,
        "css": markup(_asset("page.css")),
        "js": markup(_asset("page.js")),
        "data": _packed(json.dumps([s.pop("data") for s in sections], separators=(",", ":"))),
        "library": _packed(_plotly()),
    }
    text: str = environment.from_string(_asset("page.html")).render(context)
    return text


def _title(groups: Sequence[Group]) -> str:
    names = dict.fromkeys(f.experiment.name for group in groups for f in group.folders)
    return ", ".join(names)


# -- one federation ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Part:
    """A section of the page below the first screen."""

    id: str
    heading: str
    figures: list[Figure] = dataclasses.field(default_factory=list)
    tables: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    client: bool = False  # whether a client can be picked here


def _group(group: Group, index: int, of: int, style: Style) -> dict[str, Any]:
    prefix = f"g{index}-" if of > 1 else ""
    leader = group.ranked[0].label if group.ranked else None
    parts = [
        dataclasses.replace(
            part,
            id=prefix + part.id,
            figures=[dataclasses.replace(f, id=prefix + f.id) for f in part.figures],
        )
        for part in _parts(group, style, prefix)
        if part.figures or part.tables or part.texts
    ]
    names = group.clients.names[:MAX_PICKED]
    drawn = {f.id: [panel.specs for panel in f.panels] for part in parts for f in part.figures}
    return {
        "index": index,
        "prefix": prefix,
        "title": group.title,
        "facts": _facts(group),
        "verdict": judge(group),
        "results": _table(results.results(group), prefix, leader),
        "control": _table(results.control(group), prefix),
        "parts": parts,
        "sections": [*((p.id, p.heading) for p in parts), (f"{prefix}again", "Do it again")],
        "client_names": names,
        "more_clients": len(group.clients) if len(group.clients) > len(names) else 0,
        "folders": [_folder(folder) for folder in group.folders],
        "data": {"figures": drawn, "clients": _clients(group), "styles": style},
    }


def _parts(group: Group, style: Style, prefix: str) -> list[Part]:
    def present(*found: Figure | None) -> list[Figure]:
        return [figure for figure in found if figure is not None]

    def filled(*found: tuple[str, Table]) -> list[dict[str, Any]]:
        return [_table(table, prefix, heading=heading) for heading, table in found if table]

    compared = filled(("", against_paper(group)), ("By domain", domains_against_paper(group)))
    return [
        Part("exact", "Explicit against implicit", present(studies.explicit(group))),
        Part("newcomers", "Clients that came later", present(studies.new_clients(group, style))),
        Part(
            "learning",
            "How fast, and for how many bytes",
            present(curves(group, style)),
            filled(("Rounds to a score", results.speed(group))),
        ),
        Part(
            "clients",
            "Client by client",
            present(gains(group, style), partition(group)),
            filled(
                (f"Gain over {group.over}", clients.gains(group)),
                ("By domain", clients.domains(group)),
            ),
            client=True,
        ),
        Part("pairs", "Which method", present(differences(group, style))),
        Part(
            "helpers",
            "Who helps whom",
            present(matrix(group)),
            filled(("Correlations and controls", matrix_table(group))),
        ),
        Part("sites", "Site by site", [], filled(("", federation.sites(group)))),
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
    if not settings:
        return [
            f"The paper has no results on {group.title}; the bytes relative to FedAvg's do not "
            "depend on the data, but in the first round the server has no gradients to send: the "
            "fewer the rounds, the smaller the ratio."
        ]
    if len(settings) == 1:
        return [f"Differs from the paper's setting in: {text}." for text in settings]
    return [
        f"{', '.join(labels)}: differs from the paper's setting in {text}."
        for text, labels in settings.items()
    ]


def _facts(group: Group) -> str:
    first = group.folders[0].experiment
    data = first.data
    kind: str = data.partition or "given"
    if kind.startswith("dirichlet"):
        kind += f" {data.alpha:g}"
    seeds = {seed for method in group.methods for seed in method.runs}
    cohort = first.cohort_size(len(group.clients))
    return " · ".join(
        [
            group.title,
            f"partition {kind}",
            f"{count(cohort, 'client')} per round",
            count(first.rounds, "round"),
            count(len(seeds), "seed"),
            f"{count(first.train.epochs, 'local epoch')}, batch {first.train.batch_size or 'all'}, "
            f"learning rate {first.train.lr:g}",
            f"model {first.model.name or '?'}",
        ]
    )


def _model(known: object) -> str | None:
    """What of the model travels, what stays with the clients, and what is frozen."""
    try:
        return travelling(known)  # type: ignore[arg-type]
    except (AttributeError, LookupError, TypeError, ValueError):  # an older run, or damaged
        return None


def _folder(folder: RunData) -> dict[str, Any]:
    known = folder.environment
    packages = known.get("packages")
    data = known.get("data")
    rows = {
        "command": known.get("command"),
        "data fingerprint": folder.fingerprint,
        "data": f"{data.get('samples'):,} samples of {data.get('name')}"
        if isinstance(data, dict) and isinstance(data.get("samples"), int)
        else None,
        "model": _model(known.get("model")),
        "git commit": known.get("git_commit"),
        "packages": ", ".join(f"{k} {v}" for k, v in packages.items())
        if isinstance(packages, dict)
        else None,
        "python": known.get("python"),
        "machine": ", ".join(
            str(known[key]) for key in ("platform", "cpu") if known.get(key) is not None
        ),
        "cores": known.get("cores"),
        "changed during the run": "; ".join(map(str, known.get("changes") or ())) or None,
        "memory": size(known["memory_bytes"]) if known.get("memory_bytes") else None,
    }
    return {
        "path": str(folder.path),
        "command": f"pgfed run {shlex.quote(str(folder.path / 'experiment.toml'))} --out NEW",
        "toml": folder.text,
        "environment": [(key, value) for key, value in rows.items() if value],
    }


def _clients(group: Group) -> dict[str, Any]:
    """What the page tells of a picked client."""
    known, few = group.clients, slice(MAX_PICKED)
    classes = None
    if known.counts is not None:
        classes = [
            [[known.class_names[k], int(row[k])] for k in np.flatnonzero(row)]
            for row in known.counts[few]
        ]

    scale, digits = factor(group.metric), 1 if group.metric.unit == "share" else 4

    def shown(values: stats.Floats) -> list[float | None]:
        return [None if np.isnan(v) else round(scale * float(v), digits) for v in values[few]]

    methods = []
    for method in group.methods:
        gain = group.gain(method)
        curves = method.client_curves(CURVE_POINTS)
        methods.append(
            {
                "label": method.label,
                "last10": shown(stats.mean_over_seeds(method.scores("last10"))),
                "best": shown(stats.mean_over_seeds(method.scores("best"))),
                "gain": None if gain is None else shown(gain.per_client),
                "rounds": None if curves is None else curves[0],
                "curves": None if curves is None else [shown(row) for row in curves[1]],
            }
        )
    return {
        "names": known.names[few],
        "domains": None if known.domains is None else known.domains[few],
        "n_train": known.n_train[few].tolist(),
        "n_test": known.n_test[few].tolist(),
        "classes": classes,
        "axis": axis(group.metric),
        "over": group.over,
        "digits": {"share": 1, "number": 3, "target": 2}[group.metric.unit],
        "methods": methods,
    }


# -- tables ------------------------------------------------------------------------------------


def _table(
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
        "columns": [(column.key, column.heading, column.help) for column in table.columns],
        "labels": table.labels,
        "leader": leader,
        "rows": [
            [{**dataclasses.asdict(cell), "strip": strip(cell.interval)} for cell in row]
            for row in table.rows
        ],
    }


# -- what the page carries ---------------------------------------------------------------------


def _asset(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Compressed, in characters that end no script and need no escape."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _plotly() -> str:
    """The plotly.js inside the Python package; importing that package would take a second."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise missing("plotly")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text("utf-8")
