"""One self-contained HTML page: text and tables in it, figures drawn by the plotly it carries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from pgfed.report.extras import module
from pgfed.report.figures.colours import DARK
from pgfed.report.figures.specification import Style, styles
from pgfed.report.pages.facts import (
    MAX_PICKED,
    about_clients,
    again,
    differing,
    facts,
    next_steps,
)
from pgfed.report.pages.markup import asset, code, packed, packed_plotly, shown, unbroken
from pgfed.report.pages.sections import sections as parts_of
from pgfed.report.tables import results
from pgfed.results.comparison import Group, Method
from pgfed.results.verdict import judge
from pgfed.version import __version__


def render(
    groups: Sequence[Group], *, live: dict[str, Any] | None = None, running: Sequence[Method] = ()
) -> str:
    """The page. Equal runs give equal pages: it holds no date and no path but the folders'.

    ``live``: the banner of a run that is going on; ``running``: its methods that have not finished,
    of which there are only curves.
    """
    markup = module("markupsafe").Markup
    environment = module("jinja2").Environment(autoescape=True)
    environment.filters["nb"] = unbroken
    environment.filters["code"] = lambda text: code(text, markup)
    style = styles([dataclasses.replace(g, methods=[*g.methods, *running]) for g in groups])
    sections = [_group(group, k, len(groups), style, running) for k, group in enumerate(groups)]
    scripts = ["sorting.js", "page.js", *(["live.js"] if live else [])]
    context = {
        "title": _title(groups),
        "groups": sections,
        "overview": shown(results.overview(groups)) if len(groups) > 1 else None,
        "styles": style,
        "version": __version__,
        "live": live,
        "css": markup(asset("page.css")),
        "js": markup("".join(map(asset, scripts))),
        "data": packed(json.dumps([s.pop("data") for s in sections], separators=(",", ":"))),
        "library": packed_plotly(),
    }
    text: str = environment.from_string(asset("table.html") + asset("page.html")).render(context)
    return text


def _title(groups: Sequence[Group]) -> str:
    """What it is about: the experiments' names say it only by luck."""
    titles = list(dict.fromkeys(group.title for group in groups))
    if len(titles) > 2:
        return f"{len(titles)} federations: {titles[0]} and others"
    names = dict.fromkeys(f.experiment.name for group in groups for f in group.folders)
    own = [name for name in names if not any(title.startswith(name) for title in titles)]
    told = "; ".join(titles)
    return f"{', '.join(own)}: {told}" if 0 < len(own) < 3 else told


# -- one federation ----------------------------------------------------------------------------


def _group(
    group: Group, index: int, of: int, style: Style, running: Sequence[Method]
) -> dict[str, Any]:
    prefix = f"g{index}-" if of > 1 else ""
    parts = [
        dataclasses.replace(
            part,
            id=prefix + part.id,
            figures=[dataclasses.replace(f, id=prefix + f.id) for f in part.figures],
        )
        for part in parts_of(group, style, prefix, running)
        if part.figures or part.tables or part.texts
    ]
    names = group.clients.names[:MAX_PICKED]
    verdict = judge(group)
    about = verdict.method if verdict.judged else None
    drawn = {
        f.id: [panel.specs for panel in f.panels if panel.specs]
        for part in parts
        for f in part.figures
    }
    return {
        "index": index,
        "prefix": prefix,
        "title": group.title,
        "facts": facts(group),
        "verdict": verdict,
        "next": [] if group.running else next_steps(group, verdict),
        "differing": differing(group),
        "results": shown(results.results(group), prefix, about),
        "methods": [(m.label, m.about.summary) for m in group.methods if m.about.summary],
        "control": shown(results.control(group), prefix),
        "parts": parts,
        "sections": [*((p.id, p.heading) for p in parts), (f"{prefix}again", "Do it again")],
        "client_names": names,
        "more_clients": len(group.clients) if len(group.clients) > len(names) else 0,
        "folders": [again(folder) for folder in group.folders],
        "data": {"figures": drawn, "clients": about_clients(group), "styles": style, "dark": DARK},
    }
