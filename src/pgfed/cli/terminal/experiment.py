"""A run for people: what it would take, how it ended, who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from pgfed.cli.terminal.tables import console, prose, table
from pgfed.model.metrics import Metric
from pgfed.results.comparison import Group, Method, group
from pgfed.results.folder.layout import methods_of
from pgfed.results.formats import count, duration, score, size, travelling
from pgfed.results.formats import gain as points
from pgfed.results.verdict import gains as gains_of
from pgfed.results.verdict import judge, last_rounds

if TYPE_CHECKING:
    from pgfed.data.federation import Federation
    from pgfed.engine.setup import Setup
    from pgfed.results.runs import RunData
    from pgfed.tuning.cost import Estimate

COLUMNS = ("method", "{}", "{last}", "gain over {over}", "clearly gained", "lost", "sent")
GAIN = -4  # its column
MEDIAN = "median client"  # beside a mean that one client can own
OUTPUTS = {"classes": "classes", "labels": "labels", "values": "values", "masks": "pixel classes"}
MANY_CLIENTS = 60  # beyond this many a table of clients is cut
MANY_CLASSES = 20  # beyond this many their shares are not drawn
BARS = " ▁▂▃▄▅▆▇█"


def outcomes(run: RunData, page: Path | None = None) -> None:
    """The table per method, the verdict, and where the rest is."""
    (found,) = group([run])
    screen = console()
    last = last_rounds(found).lower()
    columns = [name.format(found.metric.title, over=found.over, last=last) for name in COLUMNS]
    if not found.metric.bounded:
        columns.insert(2, MEDIAN)
    rows: list[list[str | Text]] = [list(row) for row in outcome_rows(found)]
    verdict = judge(found)
    for row, method in zip(rows, _as_asked(found), strict=True):
        style = _colour(found, method) if verdict.judged else ""
        row[GAIN] = Text(str(row[GAIN]), style=style)
    screen.print(table(columns, rows))
    for k, line in enumerate(verdict.lines):
        prose(screen, line, "bold" if k == 0 else None)
    screen.print(f"Run folder: {run.path}", soft_wrap=True, markup=False)
    if page is not None:
        shown = Text("Report: ").append(str(page), style=f"link {page.absolute().as_uri()}")
        screen.print(shown, soft_wrap=True)


def outcome_rows(of: Group) -> list[list[str]]:
    """One row per method, means over its seeds; clients gain by their mean over the seeds."""
    rows, gains = [], gains_of(of)
    for method in _as_asked(of):
        gain, alone = gains.get(method.label), method.about.role == "baseline"
        gained, lost = (None, None) if gain is None else (gain.gained, gain.lost)
        cells = [
            "" if alone else points(None if gain is None else gain.mean, of.metric),
            "" if alone else "–" if gained is None else f"{gained:,}",
            "" if alone else "–" if lost is None else f"{lost:,}",
            size(method.sent()),
        ]
        kept, last = (_mean(method.means(which), of.metric) for which in ("kept", "last"))
        median = [] if of.metric.bounded else [_mean(method.medians("kept"), of.metric)]
        rows.append([method.label, kept, *median, last, *cells])
    return rows


def _as_asked(of: Group) -> list[Method]:
    """In the order of the experiment file."""
    asked = methods_of(of.folders[0].experiment)
    return sorted(of.methods, key=lambda m: asked.index(m.name))


def _colour(of: Group, method: Method) -> str:
    """Of a mean gain whose interval leaves out zero; others have none."""
    alone = of.baseline(method)
    if alone is None or method.about.role == "baseline":
        return ""
    found = of.compare(method, alone)
    return "" if found is None or not found.clear else "green" if found.mean > 0 else "red"


def _mean(scores: Sequence[float], metric: Metric) -> str:
    return score(float(np.mean(scores)) if scores else None, metric)


def header(setup: Setup) -> str:
    """What runs, in a line."""
    experiment, federation = setup.experiment, setup.federation
    return (
        f"{experiment.name}: {count(len(setup.methods), 'method')} x "
        f"{count(len(experiment.seeds), 'seed')} x {count(experiment.rounds, 'round')}, "
        f"{setup.cohort} of {count(len(federation), 'client')} per round, model "
        f"{experiment.model.name} ({setup.layout.n:,} numbers)"
    )


def dry_run(setup: Setup, estimates: Sequence[Estimate], memory: float) -> None:
    """What would run, and what it would take."""
    screen = console()
    federation = setup.federation
    prose(screen, header(setup))
    screen.print(f"The model: {travelling(setup.about_model())}.", soft_wrap=True)
    clients(federation)
    columns = ("method", "time", "down", "up", "disk")
    rows = [
        (e.method, duration(e.seconds), size(e.bytes_down), size(e.bytes_up), size(e.disk_bytes))
        for e in estimates
    ]
    screen.print(table(columns, rows))
    screen.print(
        f"Estimated in all: {duration(sum(e.seconds for e in estimates))}, "
        f"{size(memory)} of memory, {size(sum(e.disk_bytes for e in estimates))} on disk, "
        f"{size(sum(e.bytes_down + e.bytes_up for e in estimates))} sent. Nothing was written.",
        soft_wrap=True,
    )


def clients(federation: Federation) -> None:
    """Sizes and classes of each client."""
    screen = console()
    rows = federation.table()
    names = federation.class_names
    head = ["client", "train", "test"]
    classes = federation.targets == "classes"
    if classes:
        head += ["classes", "samples per class"]
    extra = [
        (title, key)
        for title, key in (("domain", "domain"), ("validation", "n_validation"))
        if any(row.get(key) for row in rows)
    ]
    shown = []
    for row in rows[:MANY_CLIENTS]:
        cells = [row.get("label", row["client"]), row["n_train"], row["n_test"]]
        if classes:
            cells += [row["classes"], _shares(row, names)]
        shown.append([*cells, *(row[key] for _, key in extra)])
    screen.print(table([*head, *(title for title, _ in extra)], shown))
    if len(rows) > MANY_CLIENTS:
        screen.print(f"... and {count(len(rows) - MANY_CLIENTS, 'more client')}")
    n = federation.n_train
    screen.print(
        f"{federation.name}: {count(len(rows), 'client')}, {len(federation.y):,} samples, "
        f"{len(names)} {OUTPUTS[federation.targets]}; "
        f"training samples per client: {n.min()} to {n.max()}, median {np.median(n):g}",
        soft_wrap=True,
        markup=False,
    )


def _shares(row: Mapping[str, Any], names: Sequence[str]) -> str:
    counts = row["counts"]
    if len(counts) <= MANY_CLASSES:
        top = max(counts)
        return "".join(BARS[-(-8 * n // top)] for n in counts)
    largest = sorted(range(len(counts)), key=lambda k: -counts[k])[:3]
    return ", ".join(f"{names[k]} {counts[k]}" for k in largest if counts[k]) + ", ..."


def datasets(rows: Sequence[Mapping[str, Any]], root: Path) -> None:
    """The named data sets, and whether their files are there."""
    screen = console()
    columns = ("name", "what", "input", "classes", "samples", "here", "files")
    cells = [
        (
            row["name"],
            row["what"],
            "x".join(map(str, row["input"])),
            row["classes"] if row["targets"] == "classes" else row["targets"],
            f"{row['samples']:,}",
            "yes" if row["present"] else "no",
            row["files"],
        )
        for row in rows
    ]
    screen.print(table(columns, cells))
    screen.print(f"Files are looked for under {root}.", markup=False, soft_wrap=True)
    screen.print(
        "Own data: npz:PATH (arrays x and y; if you like client, group, domain, split, "
        "class_names), folder:PATH (PATH/<class>/*), csv:PATH or parquet:PATH (one file, or one "
        "per site; `pgfed data schema` writes the schema).",
        markup=False,
        soft_wrap=True,
    )
